"""The EROFS reader over images of mkfs.erofs and by hand: against their sources, a reference and the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import stat
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit.core.erofs_reader import HOLE, BodyKind, ErofsImage, Extent, Layout, Walk, check_image
from layerkit.errors import CorruptError, UnsupportedError
from layerkit.layer.tree import Chunk, Content, Inode
from tests.core.erofs_agreement import walk_both
from tests.core.erofs_by_hand import CHUNKS, DIRECTORY, FILE, PLAIN, HandImage, compact, extended, listing, tree
from tests.core.erofs_samples import ACL, MKFS_OPTIONS, by_hand, make_tree, mkfs

needs_mkfs = pytest.mark.skipif(not shutil.which("mkfs.erofs"), reason="needs mkfs.erofs")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree") / "root"
    root.mkdir()
    return make_tree(root)


def paths(walk: Walk) -> dict[bytes, int]:
    """Every path of a walk to its row."""
    found: dict[bytes, int] = {b"": 0}
    of_row = {0: b""}
    for parent, name, child in zip(walk.parent, walk.name, walk.child, strict=True):
        path = of_row[parent] + b"/" + name
        of_row.setdefault(child, path)
        found[path] = child
    return found


def content(image: bytes, reader: ErofsImage, nid: int) -> bytes:
    out = b""
    for extent in reader.map(nid):
        assert extent.file_offset == len(out)
        at = extent.image_offset
        out += image[at : at + extent.length] if at is not None else bytes(extent.length)
    return out


@needs_mkfs
@pytest.mark.parametrize("options", MKFS_OPTIONS.values(), ids=MKFS_OPTIONS)
def test_l19_l20_l21_mkfs_images_hold_their_source(options: tuple[str, ...], source: Path, tmp_path: Path) -> None:
    image = mkfs(tmp_path / "image", source, *options)
    both = walk_both(image)
    assert both
    walk, reader = both[0], ErofsImage(image)
    found = paths(walk)
    listed = {os.fsencode(path)[len(os.fsencode(source)) :]: path for path in source.rglob("*")}
    assert found.keys() == {b"", *listed}
    for name, path in listed.items():
        row, status = found[name], path.lstat()
        size = status.st_size if stat.S_ISREG(status.st_mode) or path.is_symlink() else walk.size[row]
        assert (walk.mode[row], walk.uid[row], walk.gid[row], walk.size[row]) == (
            status.st_mode, status.st_uid, status.st_gid, size)  # fmt: skip
        assert walk.nlink[row] == status.st_nlink
        assert walk.rdev[row] == status.st_rdev
        assert walk.mtime_ns[row] == 1_700_000_000 * 10**9
        expected = {os.fsencode(key): os.getxattr(path, key, follow_symlinks=False)
                    for key in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
        assert walk.xattrs.get(row, {}) == expected
        if path.is_symlink():
            assert walk.inline[row] == os.fsencode(os.readlink(path))
        elif path.is_file():
            assert content(image, reader, walk.nid[row]) == path.read_bytes()


@needs_mkfs
def test_mkfs_keeps_its_own_times_too(source: Path, tmp_path: Path) -> None:
    os.utime(source / "twin", ns=(0, -1_500_000_000))
    subprocess.run(["mkfs.erofs", str(tmp_path / "image"), str(source)], check=True, capture_output=True)
    both = walk_both((tmp_path / "image").read_bytes())
    assert both
    assert both[0].mtime_ns[paths(both[0])[b"/twin"]] == -1_500_000_000


@needs_mkfs
def test_compressed_images_are_unsupported(source: Path, tmp_path: Path) -> None:
    (source / "compressible").write_bytes(b"layerkit " * 20_000)
    image = mkfs(tmp_path / "image", source, "-zlz4")
    with pytest.raises(UnsupportedError, match="compressed"):
        check_image(image)


def test_l31_every_kind_by_hand() -> None:
    both = walk_both(by_hand().bytes())
    assert both
    walk, nodes = both
    rows = paths(walk)
    kinds = {name: BodyKind(walk.body[row]).name for name, row in rows.items()}
    assert [kinds[name] for name in (b"", b"/flat", b"/inline", b"/sparse", b"/pipe", b"/empty", b"/link")] == [
        "DIRECTORY", "DATA", "INLINE", "CHUNKS", "NONE", "INLINE", "INLINE"]  # fmt: skip
    assert walk.body_at[rows[b"/flat"]] == walk.body_at[rows[b"/twin"]] == 0
    assert rows[b"/dir/again"] == rows[b"/\xff"]
    assert walk.mtime_ns[rows[b"/flat"]] == -4_750_000_000
    assert walk.mtime_ns[rows[b"/old"]] == -(1 << 33) * 10**9 + 7
    assert walk.uid[rows[b"/old"]] == 4_294_967_294
    assert walk.rdev[rows[b"/disk"]] == os.makedev(259, 70_000)
    assert walk.inline[rows[b"/empty"]] == b""
    hole = rows[b"/hole"]
    assert walk.xattrs[hole] == {b"user.own": b"", b"system.posix_acl_access": ACL, b"user.shared": b"value",
                                 b"security.capability": b"\1\0\0\2" + bytes(16)}  # fmt: skip
    assert walk.xattrs[rows[b"/inline"]][b"user.shared"] is walk.xattrs[hole][b"user.shared"]
    assert len(nodes) == len(walk) == 17


def test_map_tells_data_image_and_holes() -> None:
    image = by_hand().bytes()
    reader = ErofsImage(image)
    assert reader.map(70) == [Extent(0, 10_000, 0)]
    assert reader.map(74) == [
        Extent(0, 65536, 92 * 4096),
        Extent(65536, 65536, None),
        Extent(131072, 65536, 108 * 4096),
        Extent(196608, 1, 0),
    ]
    assert reader.map(78) == [Extent(0, 4096, 12 * 4096), Extent(4096, 4096, None), Extent(8192, 4096, 20 * 4096)]
    assert reader.map(122) == [Extent(0, 1 << 40, None)]
    assert reader.map(120) == []
    (extent,) = reader.map(72)
    assert (extent.length, extent.data_offset) == (5, None)
    assert image[extent.image_offset :][:5] == b"hello"
    assert reader.inode(78).layout is Layout.CHUNK_BASED


@pytest.mark.parametrize("nid", [70, 74, 122])
def test_read_metadata_refuses_what_is_not_there(nid: int) -> None:
    with pytest.raises(CorruptError, match=r"do not lie|more than the image"):
        ErofsImage(by_hand().bytes()).read_metadata(nid)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, mmap.mmap])
def test_any_buffer_will_do(kind: type, tmp_path: Path) -> None:
    image = by_hand().bytes()
    (tmp_path / "image").write_bytes(image)
    with open(tmp_path / "image", "rb") as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if kind is mmap.mmap else kind(image)
        assert ErofsImage(buffer).read_metadata(82) == b"target"


def big_directory(count: int) -> bytes:
    """A root with `count` names of the longest kind, all links to one file; its blocks behind the inodes."""
    names = [(f"{number:07}".encode() + b"n" * 248, 60, 1) for number in range(count)]
    content = listing([(b".", 40, 2), (b"..", 40, 2), *names])
    hand = HandImage()
    hand.slots[40] = compact(PLAIN, DIRECTORY, size=len(content), word=1, nlink=2)
    hand.slots[60] = extended(PLAIN, FILE, nlink=count)
    hand.extra[1] = content
    return hand.bytes()


@pytest.mark.parametrize("count", [1, 14, 15, 16, 200_000])
def test_l25_large_directories_with_names_of_255_bytes(count: int) -> None:
    reader = ErofsImage(big_directory(count))
    entries = reader.entries(40)
    assert len(entries) == len(reader.walk().name) == count
    assert {len(entry.name) for entry in entries} == {255}
    for entry in entries[:: max(1, count // 500)]:
        assert reader.find(40, entry.name) == 60
        assert reader.find(40, entry.name[:-1]) is None
        assert reader.find(40, entry.name + b"x") is None
    assert reader.find(40, b".") == reader.find(40, b"..") == 40
    assert reader.find(40, b"") is reader.find(40, b"\xff") is None


def test_l25_files_up_to_the_end_of_the_block_space() -> None:
    hand = HandImage(mapped=1 << 20, data_blocks=(1 << 32) - (1 << 20))
    hand.slots[40] = tree(40, {b"six": (60, FILE), b"all": (64, FILE)})
    hand.slots[60] = extended(PLAIN, FILE, size=6 << 30, word=1 << 20)
    hand.slots[64] = extended(PLAIN, FILE, size=((1 << 32) - (1 << 20)) * 4096, word=1 << 20)
    both = walk_both(hand.bytes())
    assert both
    assert sorted(both[0].size)[-2:] == [6 << 30, ((1 << 32) - (1 << 20)) * 4096]


def many_inodes(count: int, *, names_per_directory: int = 250) -> bytes:
    """Directories below the root with small files: half flat in the data, some inline, every tenth with xattrs."""
    hand = HandImage(mapped=1 << 24, data_blocks=1 << 20, slot_at=9)
    shared = struct.pack("<IB7xI", 0, 1, 0)
    hand.xattr_blkaddr = 1
    hand.extra[1] = struct.pack("<BBH", 6, 6, 4) + b"common" + b"same" + bytes(2)
    block, root = 2, {}
    for directory in range(count // names_per_directory):
        base = block * 128
        records, names = b"", [(b".", base, 2), (b"..", 40, 2)]
        for number in range(names_per_directory):
            names.append((b"file-%05d.py" % number, base + 4 * (number + 1), 1))
            xattrs = shared if number % 10 == 0 else b""
            is_inline = number % 3 == 0 and not xattrs
            size, layout, word = (40, 2, 0) if is_inline else (10_000, 0, (1 << 24) + number)
            record = extended(layout, FILE, size=size, word=word, mtime=number, nsec=5, xattrs=xattrs)
            records += record.ljust(128, b"x" if is_inline else b"\0")
        content = listing(names)
        length = 128 + len(records)
        inode = extended(PLAIN, DIRECTORY, size=len(content), word=block + -(-length // 4096), nlink=2)
        hand.slots[base] = inode.ljust(128, b"\0") + records
        hand.extra[block + -(-length // 4096)] = content
        block += -(-length // 4096) + -(-len(content) // 4096)
        root[b"dir-%05d" % directory] = (base, DIRECTORY)
    names = [(b".", 40, 2), (b"..", 40, 2)] + [(name, nid, 2) for name, (nid, _) in root.items()]
    content = listing(names)
    hand.slots[40] = compact(PLAIN, DIRECTORY, size=len(content), word=block, nlink=2 + len(root))
    hand.extra[block] = content
    hand.inodes = 1 + len(root) * (1 + names_per_directory)
    return hand.bytes()


def load(walk: Walk) -> Inode:
    """A tree of layer.tree inodes from a walk: the loop that the columns are made for."""
    inodes = [
        Inode(mode, uid, gid, mtime_ns, rdev, {}, inline)
        for mode, uid, gid, mtime_ns, rdev, inline in zip(
            walk.mode, walk.uid, walk.gid, walk.mtime_ns, walk.rdev, walk.inline, strict=True
        )
    ]
    for row, xattrs in walk.xattrs.items():
        inodes[row].xattrs = xattrs
    shared: dict[int, Content] = {}
    for row, (kind, at, size) in enumerate(zip(walk.body, walk.body_at, walk.size, strict=True)):
        if kind == BodyKind.DATA:
            inodes[row].body = shared.get(at) or shared.setdefault(at, Content(size, (Chunk(size, b"x" * 32),)))
        elif kind == BodyKind.DIRECTORY:
            inodes[row].body = {}
    for parent, name, child in zip(walk.parent, walk.name, walk.child, strict=True):
        inodes[parent].entries[name] = inodes[child]
    return inodes[0]


def test_sixty_thousand_inodes_load_quickly() -> None:
    image = many_inodes(60_000)
    start = time.process_time()
    root = load(ErofsImage(image).walk())
    took = time.process_time() - start
    assert sum(len(child.entries) for child in root.entries.values()) == 60_000
    # About 0.1 s on an idle machine; the bound is for busy ones.
    assert took < 0.5


def test_many_inodes_follow_the_reference() -> None:
    assert walk_both(many_inodes(1000, names_per_directory=50))


@pytest.mark.slow
def test_l25_a_million_inodes() -> None:
    walk = ErofsImage(many_inodes(1_000_000)).walk()
    assert len(walk) == 1_000_000 + 4000 + 1


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    """The image by hand, mounted by the kernel with its data device; the device's bytes too."""
    libc = ctypes.CDLL(None, use_errno=True)
    data = os.urandom(1000 * 4096)
    (tmp_path / "data").write_bytes(data)
    (tmp_path / "meta").write_bytes(by_hand().bytes())
    target = tmp_path / "mount"
    target.mkdir()
    options = f"device={tmp_path}/data".encode()
    if libc.mount(os.fsencode(tmp_path / "meta"), os.fsencode(target), b"erofs", 1, options):
        error = ctypes.get_errno()
        pytest.skip(f"the kernel does not mount EROFS from files: {os.strerror(error)}")
    try:
        yield target, data
    finally:
        libc.umount2(os.fsencode(target), 0)


@pytest.mark.privileged
def test_the_kernel_sees_the_same(mounted: tuple[Path, bytes]) -> None:
    root, data = mounted
    reader = ErofsImage(by_hand().bytes())
    walk = reader.walk()
    for path, row in paths(walk).items():
        place = os.fsencode(root) + path
        status = os.lstat(place)
        assert (status.st_mode, status.st_uid, status.st_gid) == (walk.mode[row], walk.uid[row], walk.gid[row])
        assert (status.st_nlink, status.st_rdev, status.st_mtime_ns) == (
            walk.nlink[row], walk.rdev[row], walk.mtime_ns[row])  # fmt: skip
        if stat.S_ISLNK(status.st_mode):
            assert os.fsencode(os.readlink(place)) == walk.inline[row]
        if not stat.S_ISREG(status.st_mode) or status.st_size > 1 << 30:
            continue
        mine = b""
        for extent in reader.map(walk.nid[row]):
            if extent.data_offset is not None:
                mine += data[extent.data_offset : extent.data_offset + extent.length]
            else:
                mine += (walk.inline[row] or b"") if extent.image_offset is not None else bytes(extent.length)
        assert Path(os.fsdecode(place)).read_bytes() == mine
    hole = os.fsencode(root) + b"/hole"
    kernel = {os.fsencode(key): os.getxattr(hole, key) for key in os.listxattr(hole)}
    assert walk.xattrs[paths(walk)[b"/hole"]] == kernel


def test_holes_have_the_documented_number() -> None:
    walk = ErofsImage(by_hand().bytes()).walk()
    row = paths(walk)[b"/sparse"]
    assert walk.chunk_bits[row] == 16
    assert list(walk.chunks[walk.body_at[row] :][:4]) == [92, HOLE, 108, 0]
    assert CHUNKS == Layout.CHUNK_BASED


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_image_exports_no_buffer_of_a_view(kind: type) -> None:
    # If it did, CPython 3.11 would crash when an image is collected in a cycle of garbage.
    data = Path("fixtures/golden/layers/types/meta.erofs")
    image = ErofsImage(kind((Path(__file__).parent.parent.parent / data).read_bytes()))
    assert len(image.walk()) > 1
    image._bytes.release()
