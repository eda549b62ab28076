"""A tree as a layer's bytes, and back: metadata image plus chunk index; imported by rank 2 up. Pure; any thread.

Validate, lay out, emit: `layout` decides where contents lie, the C core writes and reads EROFS, this module only
carries values between them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import NamedTuple

from layerkit.core.erofs_reader import BodyKind, ErofsImage, Walk
from layerkit.core.erofs_writer import NodeTable, seal_erofs, write_erofs
from layerkit.errors import CorruptError, InputError
from layerkit.layer.chunk_index import BLOCK_SIZE, ChunkIndex
from layerkit.layer.layout import ContentReader, Layout, lay_out
from layerkit.layer.tree import INLINE_MAX, Content, Inode, walk


class LayerImage(NamedTuple):
    """The two parts of a layer that hold its tree, and the length of its data space."""

    meta: bytes
    chunk_index: bytes
    data_blocks: int


def build_image(root: Inode) -> LayerImage:
    """The bytes of a tree; equal for equal trees, whatever order they were made in.

    Raises:
        InputError: an inode whose body does not fit its type, or a content that contradicts itself.
        LimitError: what EROFS cannot hold, with the path.
    """
    layout = lay_out(root)
    image = write_erofs(_node_table(root, layout), data_blocks=layout.chunk_index.data_blocks)
    chunk_index = layout.chunk_index.to_bytes()
    seal_erofs(image, _uuid(image, chunk_index))
    return LayerImage(bytes(image), chunk_index, layout.chunk_index.data_blocks)


def load_tree(meta: bytes | memoryview, chunk_index: bytes | memoryview) -> Inode:
    """The tree that `build_image` made: `build_image(load_tree(*image))` equals the image.

    Equal contents come back as one shared Content.

    Raises:
        CorruptError: the image is damaged, is none that layerkit writes, or contradicts its chunk index.
        UnsupportedError: the image uses features that layerkit does not know.
    """
    index = ChunkIndex.from_bytes(chunk_index)
    image = ErofsImage(meta)
    if image.superblock.data_blocks != index.data_blocks:
        raise CorruptError(
            f"the image has {image.superblock.data_blocks} blocks of data, its chunk index {index.data_blocks}"
        )
    return _tree_of(image, ContentReader(index))


def _uuid(image: bytearray, chunk_index: bytes) -> bytes:
    """The image's name for kernels, made from its content: version 8, RFC 9562."""
    digest = hashlib.sha256(image)
    digest.update(hashlib.sha256(chunk_index).digest())
    uuid = bytearray(digest.digest()[:16])
    uuid[6] = uuid[6] & 0x0F | 0x80
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)


def _node_table(root: Inode, layout: Layout) -> NodeTable:
    table = NodeTable()
    numbers: dict[Inode, int] = {root: _add(table, root, root, layout)}
    pending = [root]
    while pending:
        directory = pending.pop()
        parent = numbers[directory]
        for name, inode in directory.entries.items():
            number = numbers.get(inode)
            if number is None:
                numbers[inode] = number = _add(table, root, inode, layout)
                if type(inode.body) is dict:
                    pending.append(inode)
            table.link(parent, name, number)
    return table


def _add(table: NodeTable, root: Inode, inode: Inode, layout: Layout) -> int:
    mode, body, xattrs = inode.mode, inode.body, tuple(inode.xattrs.items()) if inode.xattrs else ()
    if type(body) is Content and stat.S_ISREG(mode):
        place = layout.placements[body]
        return table.add(
            mode=mode, uid=inode.uid, gid=inode.gid, mtime_ns=inode.mtime_ns, xattrs=xattrs, size=body.size,
            block=place.block if place.chunk_blocks is None else None, chunk_bits=place.chunk_bits,
            chunk_blocks=place.chunk_blocks,
        )  # fmt: skip
    if not _fits(inode):
        path = next(path for path, found in walk(root) if found is inode)
        raise InputError(f"an inode of mode {mode:#o} with a body that does not fit", where=os.fsdecode(path))
    return table.add(
        mode=mode, uid=inode.uid, gid=inode.gid, mtime_ns=inode.mtime_ns, rdev=inode.rdev, xattrs=xattrs,
        inline=body if isinstance(body, bytes) else None,
    )  # fmt: skip


def _fits(inode: Inode) -> bool:
    """Whether an inode that is no file in the data space has the body that its type demands."""
    body = inode.body
    match stat.S_IFMT(inode.mode):
        case stat.S_IFDIR:
            return isinstance(body, dict) and not inode.rdev
        case stat.S_IFREG:
            return isinstance(body, bytes) and len(body) <= INLINE_MAX and not inode.rdev
        case stat.S_IFLNK:
            return isinstance(body, bytes) and not inode.rdev
        case stat.S_IFCHR | stat.S_IFBLK:
            return body is None
        case stat.S_IFIFO | stat.S_IFSOCK:
            return body is None and not inode.rdev
    return False


def _tree_of(image: ErofsImage, contents: ContentReader) -> Inode:
    found = image.walk()
    inodes = [
        Inode(mode, uid, gid, mtime_ns, rdev, {}, body)
        for mode, uid, gid, mtime_ns, rdev, body in zip(
            found.mode, found.uid, found.gid, found.mtime_ns, found.rdev, _bodies(image, found, contents), strict=True
        )
    ]
    for row, xattrs in found.xattrs.items():
        inodes[row].xattrs = xattrs
    for parent, name, child in zip(found.parent, found.name, found.child, strict=True):
        inodes[parent].body[name] = inodes[child]  # type: ignore[index]
    return inodes[0]


def _bodies(
    image: ErofsImage, found: Walk, contents: ContentReader
) -> list[dict[bytes, Inode] | Content | bytes | None]:
    none, directory, inline, data, chunks = (
        BodyKind.NONE.value, BodyKind.DIRECTORY.value, BodyKind.INLINE.value, BodyKind.DATA.value,
        BodyKind.CHUNKS.value,
    )  # fmt: skip
    bodies: list[dict[bytes, Inode] | Content | bytes | None] = []
    for row, (kind, at, size, small) in enumerate(
        zip(found.body, found.body_at, found.size, found.inline, strict=True)
    ):
        if kind == directory:
            bodies.append({})
        elif kind == inline and (size <= INLINE_MAX or not stat.S_ISREG(found.mode[row])):
            bodies.append(small)
        elif kind == BodyKind.IMAGE and (size <= INLINE_MAX or not stat.S_ISREG(found.mode[row])):
            # A tail that finds no room behind long xattrs has a block of its own.
            bodies.append(image.read_metadata(found.nid[row]))
        elif kind == data and size > INLINE_MAX:
            bodies.append(contents.flat(at // BLOCK_SIZE, size))
        elif kind == chunks and size > INLINE_MAX:
            bits = found.chunk_bits[row]
            bodies.append(contents.mapped(size, bits, found.chunks[at : at + -(-size >> bits)]))
        elif kind == none:
            bodies.append(None)
        else:
            raise CorruptError(f"inode {found.nid[row]} keeps its {size} bytes where no layer does")
    return bodies
