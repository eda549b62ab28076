"""The C writer against the slow reference writer, its canonical order, and what it refuses. No mounts."""

from __future__ import annotations

import random
import stat
import struct
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from layerkit.core._core import ffi

from layerkit.core.erofs_writer import HOLE, NodeTable, seal_erofs, superblock_checksum, write_erofs
from layerkit.errors import CorruptError, InputError, LayerkitError, LimitError
from layerkit.layer.tree import Inode, new_directory
from tests.core import reference_erofs_writer
from tests.support.erofs_images import Script, image_of, script_of, table_of
from tests.support.random_trees import EPOCH_NS, random_tree

DIRECTORY: dict[str, Any] = {"mode": stat.S_IFDIR | 0o755, "uid": 0, "gid": 0, "mtime_ns": 0}
FILE: dict[str, Any] = {"mode": stat.S_IFREG | 0o644, "uid": 0, "gid": 0, "mtime_ns": 0}
SYMLINK: dict[str, Any] = {"mode": stat.S_IFLNK | 0o777, "uid": 0, "gid": 0, "mtime_ns": 0}


def written(script: Script, shuffle: random.Random | None = None) -> bytes:
    return bytes(write_erofs(table_of(script, shuffle), data_blocks=script.data_blocks))


def agree(root: Inode, chunks: dict[bytes, bytes] | None = None) -> bytes:
    """The image of a tree, which both writers make."""
    script = script_of(root, chunks or {})
    image = written(script)
    assert image == reference_erofs_writer.write(script)
    return image


def file_with(xattrs: dict[bytes, bytes]) -> Inode:
    return Inode(stat.S_IFREG | 0o644, xattrs=xattrs, body=b"")


def test_c_structs_are_what_python_packs() -> None:
    assert [ffi.sizeof(f"lk_erofs_{name}") for name in ("node", "link", "xattr")] == [48, 12, 8]
    assert array("I").itemsize == 4


@pytest.mark.parametrize("seed", range(40))
def test_agrees_with_the_reference_writer(seed: int) -> None:
    tree = random_tree(seed, whiteouts=True)
    agree(tree.root, tree.chunks)


@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_the_reference_writer_on_larger_trees(seed: int) -> None:
    tree = random_tree(seed, size=2500)
    agree(tree.root, tree.chunks)


@pytest.mark.parametrize("seed", range(15))
def test_l24_order_of_adding_does_not_matter(seed: int) -> None:
    tree = random_tree(seed, size=300)
    script = script_of(tree.root, tree.chunks)
    images = {written(script, random.Random(shuffle)) for shuffle in range(4)}
    assert images == {written(script)}


def test_l31_empty_trees() -> None:
    image = agree(new_directory())
    assert len(image) == 4096
    root = new_directory()
    root.entries[b"d"] = new_directory()
    root.entries[b"d"].entries[b"e"] = new_directory()
    root.entries[b"empty"] = Inode(stat.S_IFREG | 0o644, body=b"")
    assert len(agree(root)) == 4096


@pytest.mark.parametrize("count", [1, 2, 100, 135, 136, 137, 200, 271, 272, 400, 5000])
def test_directories_around_block_edges(count: int) -> None:
    root = new_directory()
    shared = Inode(stat.S_IFREG | 0o644, body=b"x")
    for number in range(count):
        root.entries[b"name-%013d" % number] = shared
    agree(root)


@pytest.mark.parametrize("size", [1, 3999, 4000, 4031, 4032, 4033, 4063, 4064, 4065, 4095])
@pytest.mark.parametrize("mtime_ns", [0, 1])
def test_tails_around_block_edges(size: int, mtime_ns: int) -> None:
    root = new_directory()
    for number in range(5):
        root.entries[b"l%d" % number] = Inode(stat.S_IFLNK | 0o777, mtime_ns=mtime_ns, body=b"t" * size)
        root.entries[b"f%d" % number] = Inode(stat.S_IFREG | 0o644, mtime_ns=mtime_ns, body=b"f" * (size + 1))
    agree(root)


def test_large_inodes_leave_no_gaps_that_small_ones_could_fill() -> None:
    root = new_directory()
    for group in range(100):
        for number in range(3):
            root.entries[b"%03da%d" % (group, number)] = Inode(stat.S_IFLNK | 0o777, body=b"t" * 3008)
        for number in range(12):
            root.entries[b"%03db%02d" % (group, number)] = Inode(stat.S_IFREG | 0o644, body=b"f" * 224)
    used = 100 * (3 * (32 + 3008) + 12 * (32 + 224) + 15 * (12 + 6))
    assert len(agree(root)) < used * 1.03


def test_l22_xattrs_of_every_size_and_number() -> None:
    root = new_directory()
    for size in (0, 1, 3, 4, 4000, 4050, 65_534, 65_535):
        root.entries[b"v%d" % size] = file_with({b"user.v": b"v" * size})
    for count in (254, 255, 256, 300):
        root.entries[b"n%d" % count] = file_with({b"user.%03d" % i: b"value" * 3 for i in range(count)})
    root.entries[b"sum"] = file_with({b"trusted.%d" % i: bytes([i]) * 65_500 for i in range(4)})
    agree(root)


def test_xattrs_are_shared_only_where_that_is_smaller() -> None:
    def image(value: bytes, count: int) -> bytes:
        root = new_directory()
        for number in range(count):
            root.entries[b"%d" % number] = file_with({b"user.x": value})
        return agree(root)

    assert image(b"security label", 2).count(b"security label") == 1
    assert image(b"ab", 2).count(b"xab") == 2
    assert image(b"ab", 3).count(b"xab") == 1


def test_the_epoch_is_the_most_frequent_time_and_the_smaller_of_two() -> None:
    root = new_directory(mtime_ns=-5_000_000_001)
    for number in range(4):
        root.entries[b"%d" % number] = Inode(stat.S_IFREG, mtime_ns=7 * 10**9 + number // 2, body=b"")
    seconds, nanoseconds = struct.unpack_from("<qI", agree(root), 1024 + 24)
    assert (seconds, nanoseconds) == (7, 0)
    root.entries[b"d"] = new_directory(mtime_ns=-5_000_000_001)
    seconds, nanoseconds = struct.unpack_from("<qI", agree(root), 1024 + 24)
    assert (seconds, nanoseconds) == (-6, 999_999_999)


def test_many_links_make_an_extended_inode() -> None:
    root = new_directory()
    linked = Inode(stat.S_IFREG | 0o644, body=b"x")
    for number in range(65_536):
        root.entries[b"%d" % number] = linked
    agree(root)


def test_l25_a_deep_tree_needs_no_stack() -> None:
    root = at = new_directory()
    for _ in range(3000):
        at.entries[b"d"] = new_directory()
        at = at.entries[b"d"]
    agree(root)


def test_sealing_sets_uuid_and_checksum() -> None:
    image = write_erofs(table_of(script_of(new_directory(), {})), data_blocks=0)
    seal_erofs(image, bytes(range(16)))
    assert image[1024 + 48 : 1024 + 64] == bytes(range(16))
    assert struct.unpack_from("<I", image, 1028)[0] == superblock_checksum(image) != 0
    with pytest.raises(InputError):
        seal_erofs(image, bytes(16))
    with pytest.raises(CorruptError):
        seal_erofs(bytearray(4096), b"u" * 16)


CHUNKS = array("I", [HOLE, 4])
# What is refused: (error, nodes behind the root, links, text that the error holds).
REFUSED: dict[str, tuple[type[LayerkitError], list[dict[str, Any]], list[tuple[int, bytes, int]], str]] = {
    "b34-long-name": (LimitError, [DIRECTORY, FILE | {"inline": b""}],
                      [(0, b"d", 1), (1, b"n" * 256, 2)], "/d/" + "n" * 256 + ": the name is longer than 255"),
    "b34-long-target": (LimitError, [SYMLINK | {"inline": b"t" * 4096}], [(0, b"link", 1)], "/link: the link target"),
    "l22-large-value": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"user.a", b"v" * 65_536)]}],
                        [(0, b"f", 1)], "/f: the xattr's value is longer than 65535 bytes: user.a"),
    "l22-sum": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"user.%d" % i, b"v" * 65_535) for i in range(5)]}],
                [(0, b"f", 1)], "/f: the xattrs take more"),
    "xattr-prefix": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"btrfs.x", b"")]}],
                     [(0, b"f", 1)], "/f: EROFS has no number for the namespace of this xattr: btrfs.x"),
    "xattr-bare-prefix": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"user.", b"")]}], [(0, b"f", 1)], "user."),
    "xattr-acl-tail": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"system.posix_acl_accessx", b"")]}],
                       [(0, b"f", 1)], "namespace"),
    "xattr-long-name": (LimitError, [FILE | {"inline": b"", "xattrs": [(b"user." + b"n" * 251, b"")]}],
                        [(0, b"f", 1)], "name is longer"),
    "xattr-nul": (InputError, [FILE | {"inline": b"", "xattrs": [(b"user.a\0b", b"")]}], [(0, b"f", 1)], "NUL"),
    "xattr-twice": (InputError, [FILE | {"inline": b"", "xattrs": [(b"user.a", b""), (b"user.a", b"1")]}],
                    [(0, b"f", 1)], "/f: the same xattr"),
    "name-nul": (InputError, [FILE | {"inline": b""}], [(0, b"a\0", 1)], "a name is"),
    "name-slash": (InputError, [FILE | {"inline": b""}], [(0, b"a/b", 1)], "a name is"),
    "name-empty": (InputError, [FILE | {"inline": b""}], [(0, b"", 1)], "a name is"),
    "name-dot": (InputError, [FILE | {"inline": b""}], [(0, b".", 1)], "a name is"),
    "name-dots": (InputError, [FILE | {"inline": b""}], [(0, b"..", 1)], "a name is"),
    "name-twice": (InputError, [FILE | {"inline": b""}, FILE | {"inline": b""}],
                   [(0, b"\xffa", 1), (0, b"b", 1), (0, b"\xffa", 2)], "/\\xffa: the name stands twice"),
    "no-directory": (InputError, [FILE | {"inline": b""}] * 2, [(0, b"a", 1), (1, b"b", 2)], "/a/b: the parent"),
    "linked-directory": (InputError, [DIRECTORY], [(0, b"a", 1), (0, b"b", 1)], "/b: a directory has a second name"),
    "linked-root": (InputError, [], [(0, b"a", 0)], "/a: a directory has a second name"),
    "cycle": (InputError, [DIRECTORY] * 2, [(1, b"a", 2), (2, b"b", 1)], "node 1: the root does not lead"),
    "no-name": (InputError, [FILE | {"inline": b""}], [], "node 1: the root does not lead"),
    "no-such-node": (InputError, [], [(0, b"a", 7)], "contradicts itself"),
    "empty-target": (InputError, [SYMLINK | {"inline": b""}], [(0, b"l", 1)], "/l: a link target is empty"),
    "nul-target": (InputError, [SYMLINK | {"inline": b"a\0b"}], [(0, b"l", 1)], "/l: a link target"),
    "symlink-in-data": (InputError, [SYMLINK | {"block": 0, "size": 5}], [(0, b"l", 1)], "/l: the body"),
    "no-type": (InputError, [FILE | {"mode": 0o644, "inline": b""}], [(0, b"f", 1)], "/f: the mode"),
    "no-body": (InputError, [FILE], [(0, b"f", 1)], "/f: the body"),
    "directory-body": (InputError, [DIRECTORY | {"inline": b"x"}], [(0, b"d", 1)], "/d: the body"),
    "empty-in-data": (InputError, [FILE | {"block": 0, "size": 0}], [(0, b"f", 1)], "/f: the body"),
    "behind-data": (InputError, [FILE | {"block": 3, "size": 4097}], [(0, b"f", 1)], "/f: blocks outside"),
    "chunk-behind-data": (InputError, [FILE | {"size": 9 << 12, "chunk_bits": 15, "chunk_blocks": CHUNKS}],
                          [(0, b"f", 1)], "/f: blocks outside"),
    "small-chunks": (InputError, [FILE | {"size": 2048, "chunk_bits": 11, "chunk_blocks": array("I", [HOLE])}],
                     [(0, b"f", 1)], "/f: blocks outside"),
    "large-inline": (LimitError, [FILE | {"inline": b"x" * 4097}], [(0, b"f", 1)], "/f: more than 4096 bytes inline"),
    "large-rdev": (LimitError, [FILE | {"mode": stat.S_IFCHR, "rdev": 1 << 44}], [(0, b"c", 1)], "/c: the device"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_l25_what_cannot_be_written_is_refused_with_its_path(case: str) -> None:
    error, nodes, links, text = REFUSED[case]
    table = NodeTable()
    for node in [DIRECTORY, *nodes]:
        table.add(**node)
    for link in links:
        table.link(*link)
    with pytest.raises(error) as caught:
        write_erofs(table, data_blocks=4)
    assert text in str(caught.value)


def test_the_root_is_a_directory() -> None:
    with pytest.raises(InputError, match="node 0"):
        write_erofs(NodeTable(), data_blocks=0)
    table = NodeTable()
    table.add(**FILE, inline=b"")
    with pytest.raises(InputError, match="node 0"):
        write_erofs(table, data_blocks=0)


def test_l25_the_address_space_ends_at_2_32_blocks() -> None:
    table = NodeTable()
    table.add(**DIRECTORY)
    assert len(write_erofs(table, data_blocks=2**32 - 2)) == 4096
    for blocks in (2**32 - 1, 2**32, 2**63):
        with pytest.raises(LimitError, match="2\\^32 blocks"):
            write_erofs(table, data_blocks=blocks)


@pytest.mark.parametrize(
    "arguments",
    [
        FILE | {"uid": -1, "inline": b""},
        FILE | {"gid": 2**32, "inline": b""},
        FILE | {"mtime_ns": 2**94, "inline": b""},
        FILE | {"inline": b"", "block": 1},
        FILE | {"inline": b"", "rdev": 1},
        FILE | {"size": 8192, "chunk_bits": 12, "chunk_blocks": array("I", [0])},
        FILE | {"size": 8192, "chunk_bits": 12, "chunk_blocks": array("B", [0, 0])},
    ],
    ids=["uid", "gid", "mtime", "bodies", "rdev", "chunks", "chunk-type"],
)
def test_a_node_out_of_range_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        NodeTable().add(**arguments)


def test_images_of_one_tree_are_equal_and_sealed() -> None:
    tree = random_tree(3)
    script = script_of(tree.root, tree.chunks)
    assert image_of(script) == image_of(script_of(tree.root, tree.chunks))


def filled(count: int) -> NodeTable:
    """Files in directories of 60, half of them with an xattr and most with a time of their own."""
    table = NodeTable()
    table.add(**DIRECTORY)
    parent = 0
    for number in range(count):
        if number % 60 == 0:
            parent = table.add(**DIRECTORY)
            table.link(0, b"dir%07d" % number, parent)
        xattrs = ((b"security.selinux", b"label"),) if number % 2 else ()
        mtime_ns = EPOCH_NS + number
        child = table.add(mode=0o100644, uid=0, gid=0, mtime_ns=mtime_ns, size=5000, block=number * 2, xattrs=xattrs)
        table.link(parent, b"file-%07d.txt" % number, child)
    return table


def best_of(runs: int, action: Callable[[], object]) -> float:
    """The shortest of several runs in seconds: other work on the machine only adds."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return min(taken)


def test_sixty_thousand_nodes_are_quick() -> None:
    table = filled(60_000)
    assert best_of(5, lambda: filled(60_000)) < 0.3
    assert best_of(5, lambda: write_erofs(table, data_blocks=120_000)) < 0.15


@pytest.mark.slow
def test_l25_a_million_inodes_take_seconds() -> None:
    started = time.monotonic()
    table = filled(1_000_000)
    image = write_erofs(table, data_blocks=2_000_000)
    assert time.monotonic() - started < 20
    assert struct.unpack_from("<Q", image, 1024 + 16)[0] == table.count
