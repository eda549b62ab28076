"""What the kernel shows of our images, in the three views: every attribute and byte. Needs root."""

from __future__ import annotations

import os
import stat
from array import array
from pathlib import Path

import pytest

from layerkit.core.erofs_views import flat_view, old_view
from layerkit.core.erofs_writer import HOLE, NodeTable, seal_erofs, write_erofs
from layerkit.layer.tree import INLINE_MAX, Inode, new_directory
from tests.support.contents import BLOCK, Chunks, body_of, content_of_pieces
from tests.support.erofs_images import Script, image_of, script_of
from tests.support.erofs_judge import judge_mounts, judge_tools, mount_erofs
from tests.support.random_trees import ACL, CAPABILITY, ODD_NAMES, TIMES_NS, random_tree

pytestmark = pytest.mark.privileged


def judge(folder: Path, root: Inode, chunks: Chunks | None = None) -> Script:
    """Mount and compare a tree's image in every view; its script."""
    script = script_of(root, chunks or {})
    judge_mounts(folder, image_of(script), script.write_data, root, chunks or {})
    return script


def regular(body: bytes = b"", **attributes: object) -> Inode:
    return Inode(stat.S_IFREG | 0o644, body=body, **attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(25))
def test_random_trees(seed: int, tmp_path: Path) -> None:
    tree = random_tree(seed, whiteouts=True)
    judge(tmp_path, tree.root, tree.chunks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1080))
def test_many_random_trees(seed: int, tmp_path: Path) -> None:
    tree = random_tree(seed, size=seed % 7 * 100, whiteouts=True)
    script = judge(tmp_path, tree.root, tree.chunks)
    judge_tools(tmp_path, image_of(script), script.write_data, tree.root, tree.chunks)


def test_l19_hard_links_over_directories_are_one_inode(tmp_path: Path) -> None:
    chunks: Chunks = {}
    linked = Inode(stat.S_IFREG | 0o644, body=body_of(os.urandom(50_000), chunks))
    root = new_directory()
    for name in (b"a", b"b", b"c"):
        root.entries[name] = new_directory()
        root.entries[name].entries[b"x"] = linked
    script = judge(tmp_path, root, chunks)
    assert len(script.nodes) == 5
    assert script.data_blocks == 13


def test_l20_hard_links_of_every_type(tmp_path: Path) -> None:
    root = new_directory()
    root.entries[b"d"] = new_directory()
    special = {
        b"symlink": Inode(stat.S_IFLNK | 0o777, body=b"target"),
        b"fifo": Inode(stat.S_IFIFO | 0o600),
        b"socket": Inode(stat.S_IFSOCK | 0o600),
        b"char": Inode(stat.S_IFCHR | 0o600, rdev=os.makedev(4095, 2**20 - 1)),
        b"block": Inode(stat.S_IFBLK | 0o600, rdev=os.makedev(7, 300)),
        b"whiteout": Inode(stat.S_IFCHR, rdev=0),
        b"empty": regular(),
    }
    for name, inode in special.items():
        root.entries[name] = root.entries[b"d"].entries[name] = inode
    judge(tmp_path, root)


def test_l21_l22_xattrs(tmp_path: Path) -> None:
    root = new_directory()
    root.xattrs = {b"trusted.overlay.opaque": b"y", b"system.posix_acl_default": ACL, b"system.posix_acl_access": ACL}
    root.entries[b"capability"] = regular(xattrs={b"security.capability": CAPABILITY})
    root.entries[b"empty"] = regular(xattrs={b"user.empty": b"", b"user.e2": b""})
    root.entries[b"large"] = regular(b"x" * 200, xattrs={b"user.large": os.urandom(65_535), b"user.small": b"s"})
    root.entries[b"large2"] = regular(xattrs={b"user.large": bytes(65_535), b"trusted.large": bytes(range(255)) * 257})
    for number in range(20):
        many = {b"user.%03d" % i: b"the same value" for i in range(270)}
        root.entries[b"many%d" % number] = regular(xattrs=many | {b"trusted.own": b"%d" % number})
    root.entries[b"link"] = Inode(
        stat.S_IFLNK | 0o777, body=b"t" * 4000, xattrs={b"trusted.x": b"v", b"security.y": b""}
    )  # fmt: skip
    judge(tmp_path, root)


def test_b30_times(tmp_path: Path) -> None:
    root = new_directory(mtime_ns=-1)
    for number, mtime_ns in enumerate(TIMES_NS):
        root.entries[b"%d" % number] = regular(mtime_ns=mtime_ns)
        root.entries[b"d%d" % number] = new_directory(mtime_ns=mtime_ns)
    judge(tmp_path, root)


@pytest.mark.parametrize("epoch_ns", [-1_500_000_000, 2**34 * 10**9 + 1])
def test_b30_times_as_epoch(epoch_ns: int, tmp_path: Path) -> None:
    root = new_directory(mtime_ns=epoch_ns)
    root.entries[b"f"] = regular(mtime_ns=epoch_ns)
    judge(tmp_path, root)


def test_b31_neighbouring_times_stay_apart(tmp_path: Path) -> None:
    root = new_directory()
    for number in range(100):
        root.entries[b"m%d.pyc" % number] = regular(mtime_ns=10**18 + number)
    judge(tmp_path, root)


def test_b33_names_and_targets_are_bytes(tmp_path: Path) -> None:
    root = new_directory()
    for number, name in enumerate((*ODD_NAMES, bytes(range(1, 47)), bytes(range(48, 256)))):
        root.entries[name] = regular(b"%d" % number)
        root.entries[b"l%d" % number] = Inode(stat.S_IFLNK | 0o777, body=name)
    judge(tmp_path, root)


def test_b34_longest_names_and_targets(tmp_path: Path) -> None:
    root = at = new_directory()
    for _ in range(12):
        for number in range(20):
            at.entries[b"%02d" % number + b"n" * 253] = regular(b"%d" % number)
        at.entries[b"link"] = Inode(stat.S_IFLNK | 0o777, body=b"t" * 4095)
        at.entries[b"d" * 255] = new_directory()
        at = at.entries[b"d" * 255]
    judge(tmp_path, root)


def test_l31_nothing_zeros_and_edges(tmp_path: Path) -> None:
    chunks: Chunks = {}
    root = new_directory()
    root.entries[b"directory"] = new_directory()
    for size in (0, 1, INLINE_MAX, INLINE_MAX + 1, BLOCK, 65_536, 65_537, 262_144, 524_288, 1 << 20):
        root.entries[b"zeros%d" % size] = regular(body_of(bytes(size), chunks))  # type: ignore[arg-type]
        root.entries[b"bytes%d" % size] = regular(body_of(b"b" * size, chunks))  # type: ignore[arg-type]
    judge(tmp_path, root, chunks)
    judge(tmp_path, new_directory())
    judge(tmp_path, random_tree(0, size=0).root)


def test_b27_a_sparse_terabyte(tmp_path: Path) -> None:
    chunks: Chunks = {}
    root = new_directory()
    pieces = [b"head" * 1024, (1 << 40) - 4096, b"middle" * 3000, 5 << 20, b"end"]
    root.entries[b"lastlog"] = regular(content_of_pieces(pieces, chunks))  # type: ignore[arg-type]
    script = judge(tmp_path, root, chunks)
    assert len(image_of(script)) < 100_000


def large_files_script() -> Script:
    """5 GiB twice at the same blocks, 1 GiB behind them; a chunk-based file with chunks over 4 GiB apart."""
    attributes = {"uid": 0, "gid": 0, "mtime_ns": 0}
    script = Script(data_blocks=(6 << 30) // BLOCK)
    script.nodes = [
        {"mode": stat.S_IFDIR | 0o755, **attributes},
        {"mode": stat.S_IFREG | 0o644, **attributes, "size": (5 << 30) - 1, "block": 0},
        {"mode": stat.S_IFREG | 0o600, **attributes, "size": (5 << 30) - 1, "block": 0},
        {"mode": stat.S_IFREG | 0o644, **attributes, "size": 1 << 30, "block": (5 << 30) // BLOCK},
    ]
    script.links = [(0, b"a", 1), (0, b"b", 2), (0, b"c", 3)]
    for place in (0, 1 << 31, (1 << 32) - BLOCK, 1 << 32, (5 << 30) - BLOCK, 5 << 30, (6 << 30) - BLOCK):
        script.pieces.append((place // BLOCK, b"%020d" % place * (BLOCK // 20)))
    return script


def expected_block(script: Script, offset: int) -> bytes:
    return next((data for block, data in script.pieces if block == offset // BLOCK), b"").ljust(BLOCK, b"\0")


def test_l23_files_over_4_gib(tmp_path: Path) -> None:
    script = large_files_script()
    meta = image_of(script)
    for view, device in ((meta, True), (flat_view(meta), False), (old_view(meta), False)):
        image, data = tmp_path / "image", tmp_path / "data"
        image.write_bytes(view)
        script.write_data(data if device else image, start=0 if device else len(view))
        with mount_erofs(image, tmp_path / "m", data if device else None) as mounted:
            for name, start, size in ((b"a", 0, (5 << 30) - 1), (b"b", 0, (5 << 30) - 1), (b"c", 5 << 30, 1 << 30)):
                descriptor = os.open(os.fsencode(mounted) + b"/" + name, os.O_RDONLY)
                try:
                    assert os.fstat(descriptor).st_size == size
                    for block, _ in script.pieces:
                        offset = block * BLOCK - start
                        if 0 <= offset < size:
                            expected = expected_block(script, block * BLOCK)[: size - offset]
                            assert os.pread(descriptor, BLOCK, offset) == expected, (name, offset)
                finally:
                    os.close(descriptor)


@pytest.mark.slow
def test_l23_files_over_4_gib_read_back_whole(tmp_path: Path) -> None:
    script = large_files_script()
    image, data = tmp_path / "image", tmp_path / "data"
    image.write_bytes(image_of(script))
    script.write_data(data)
    step = 4 << 20
    with mount_erofs(image, tmp_path / "m", data) as mounted, data.open("rb") as plain:
        with (mounted / "a").open("rb") as read:
            for at in range(0, (5 << 30) - 1, step):
                assert read.read(step) == plain.read(min(step, (5 << 30) - 1 - at)), at


def test_chunk_maps_reach_over_4_gib(tmp_path: Path) -> None:
    script = large_files_script()
    place = ((6 << 30) - BLOCK) // BLOCK
    chunk_blocks = array("I", [0, HOLE, place - 15, (1 << 32) // BLOCK])
    script.nodes.append({**script.nodes[1], "size": 3 * 65_536 + 100, "chunk_bits": 16, "chunk_blocks": chunk_blocks})
    del script.nodes[-1]["block"]
    script.links.append((0, b"d", 4))
    image, data = tmp_path / "image", tmp_path / "data"
    image.write_bytes(image_of(script))
    script.write_data(data)
    with mount_erofs(image, tmp_path / "m", data) as mounted:
        got = (mounted / "d").read_bytes()
    assert got[:BLOCK] == expected_block(script, 0)
    assert got[65_536 : 2 * 65_536] == bytes(65_536)
    assert got[3 * 65_536 - BLOCK : 3 * 65_536] == expected_block(script, place * BLOCK)
    assert got[3 * 65_536 :] == expected_block(script, 1 << 32)[:100]


@pytest.mark.parametrize("count", [5000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_l25_large_directories(count: int, tmp_path: Path) -> None:
    script = Script(nodes=[{"mode": stat.S_IFDIR | 0o755, "uid": 0, "gid": 0, "mtime_ns": 0}])
    for number in range(count):
        script.nodes.append({"mode": stat.S_IFREG | 0o644, "uid": 0, "gid": 0, "mtime_ns": 0, "inline": b"%d" % number})
        script.links.append((0, b"entry-%d" % number, number + 1))
    image = tmp_path / "image"
    image.write_bytes(image_of(script))
    with mount_erofs(image, tmp_path / "m") as mounted:
        assert sorted(os.listdir(os.fsencode(mounted))) == sorted(name for _, name, _ in script.links)
        for number in range(0, count, 97):
            assert (mounted / f"entry-{number}").read_bytes() == b"%d" % number
            assert not (mounted / f"entry-{number}x").exists()


@pytest.mark.slow
def test_l25_a_million_files_mount(tmp_path: Path) -> None:
    table = NodeTable()
    attributes = {"uid": 0, "gid": 0}
    table.add(mode=stat.S_IFDIR | 0o755, mtime_ns=0, **attributes)
    for outer in range(1000):
        parent = table.add(mode=stat.S_IFDIR | 0o755, mtime_ns=outer, **attributes)
        table.link(0, b"%d" % outer, parent)
        for inner in range(1000):
            child = table.add(mode=stat.S_IFREG | 0o644, mtime_ns=inner, inline=b"%d" % inner, **attributes)
            table.link(parent, b"file%d" % inner, child)
    meta = write_erofs(table, data_blocks=0)
    seal_erofs(meta, b"\x01" * 16)
    image = tmp_path / "image"
    image.write_bytes(meta)
    with mount_erofs(image, tmp_path / "m") as mounted:
        assert len(os.listdir(mounted)) == 1000
        for outer in range(0, 1000, 37):
            assert len(os.listdir(mounted / f"{outer}")) == 1000
            for inner in range(0, 1000, 113):
                path = mounted / f"{outer}" / f"file{inner}"
                assert path.read_bytes() == b"%d" % inner
                assert path.stat().st_mtime_ns == inner


def test_identical_files_share_blocks(tmp_path: Path) -> None:
    chunks: Chunks = {}
    root = new_directory()
    for number in range(5):
        data = b"z" * 10_000 + bytes(200_000)
        root.entries[b"%d" % number] = Inode(stat.S_IFREG | 0o600 + number, body=body_of(data, chunks))
    script = judge(tmp_path, root, chunks)
    assert script.data_blocks == 65_536 // BLOCK


def test_a_broken_checksum_does_not_mount(tmp_path: Path) -> None:
    image = bytearray(image_of(script_of(new_directory(), {})))
    image[1024 + 50] ^= 1
    path = tmp_path / "image"
    path.write_bytes(image)
    with pytest.raises(OSError, match="mount"), mount_erofs(path, tmp_path / "m"):
        pass
