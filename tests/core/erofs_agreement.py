"""Compares the C reader with the reference on one image; used by the reader's tests and its fuzzer."""

from __future__ import annotations

import stat

from layerkit.core.erofs_reader import HOLE, BodyKind, ErofsImage, Walk
from layerkit.errors import CorruptError, UnsupportedError
from tests.core.reference_erofs_reader import BLOCK, Inode, Node, ReferenceImage, RefusedError


def walk_both(image: bytes) -> tuple[Walk, list[Node]] | None:
    """Both walks, checked to be equal; None when both refuse the image."""
    reference = nodes = walk = None
    why = ""
    try:
        reference = ReferenceImage(image)
        nodes = reference.walk()
    except RefusedError as error:
        why = f"only the reference refuses: {error}"
    try:
        walk = ErofsImage(image).walk()
    except (CorruptError, UnsupportedError) as error:
        why = f"only the C reader refuses: {error}"
    assert (walk is None) == (nodes is None), why
    if reference is None or walk is None or nodes is None:
        return None
    assert_same(ErofsImage(image), reference, walk, nodes)
    return walk, nodes


def assert_same(image: ErofsImage, reference: ReferenceImage, walk: Walk, nodes: list[Node]) -> None:
    superblock = image.superblock
    assert (superblock.blocks, superblock.inodes, superblock.root_nid, superblock.uuid, superblock.epoch_ns) == (
        reference.blocks, reference.inodes, reference.root_nid, reference.uuid, reference.epoch_ns)  # fmt: skip
    assert (superblock.mapped_blkaddr, superblock.data_blocks) == (reference.mapped, reference.data_blocks)
    assert len(walk) == len(nodes)
    links = sorted(zip(walk.child, walk.parent, walk.name, strict=True))
    assert links == sorted((row, *link) for row, node in enumerate(nodes) for link in node.links)
    assert list(walk.parent) == sorted(walk.parent)
    for row, node in enumerate(nodes):
        inode = node.inode
        assert (walk.nid[row], walk.mode[row], walk.uid[row], walk.gid[row], walk.mtime_ns[row]) == (
            inode.nid, inode.mode, inode.uid, inode.gid, inode.mtime_ns)  # fmt: skip
        assert (walk.nlink[row], walk.size[row], walk.rdev[row]) == (inode.nlink, inode.size, inode.rdev)
        assert walk.xattrs.get(row, {}) == node.xattrs
        assert_same_body(walk, row, node)
        assert_same_methods(image, reference, inode)


def assert_same_body(walk: Walk, row: int, node: Node) -> None:
    inode, kind = node.inode, BodyKind(walk.body[row])
    assert walk.inline[row] == node.data
    assert (kind == BodyKind.DIRECTORY) == stat.S_ISDIR(inode.mode)
    if not stat.S_ISREG(inode.mode) or kind in (BodyKind.INLINE, BodyKind.IMAGE):
        return
    size = inode.size if kind == BodyKind.DATA else 1 << walk.chunk_bits[row]
    count = -(-inode.size // size)
    blocks = walk.chunks[walk.body_at[row] :][:count] if kind == BodyKind.CHUNKS else [walk.body_at[row] // BLOCK]
    mapped: dict[int, int | None] = {}
    for start, length, data_offset, image_offset in node.extents:
        assert image_offset is None
        for at in range(start, start + length, size):
            mapped[at] = None if data_offset is None else data_offset + at - start
    assert mapped == {
        number * size: None if block == HOLE else block * BLOCK for number, block in enumerate(blocks)
    }  # fmt: skip


def assert_same_methods(image: ErofsImage, reference: ReferenceImage, inode: Inode) -> None:
    info = image.inode(inode.nid)
    assert (info.mode, info.uid, info.gid, info.mtime_ns, info.nlink, info.size, info.rdev, info.layout, info.ino) == (
        inode.mode, inode.uid, inode.gid, inode.mtime_ns, inode.nlink, inode.size, inode.rdev, inode.layout,
        inode.ino)  # fmt: skip
    assert image.xattrs(inode.nid) == reference.xattrs(inode)
    if stat.S_ISDIR(inode.mode):
        entries = reference.entries(inode)
        assert [tuple(entry) for entry in image.entries(inode.nid)] == [e for e in entries if e[0] not in (b".", b"..")]
        for name, nid, _ in entries[:50] + entries[-50:]:
            assert image.find(inode.nid, name) == nid
            assert image.find(inode.nid, name + b"\1") is None
    elif stat.S_ISREG(inode.mode):
        assert [tuple(extent) for extent in image.map(inode.nid)] == reference.map(inode)
    elif stat.S_ISLNK(inode.mode):
        assert image.read_metadata(inode.nid) == reference.read(inode)
