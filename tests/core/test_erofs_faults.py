"""L32: each way in which an image can be wrong is named by its type, its text and its place, by both readers."""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from layerkit.core.erofs_reader import ErofsImage, check_image
from layerkit.errors import CorruptError, LayerkitError, UnsupportedError
from tests.core.erofs_agreement import walk_both
from tests.core.erofs_by_hand import (
    CHUNKS,
    DIRECTORY,
    FILE,
    INLINE,
    LINK,
    PLAIN,
    HandImage,
    compact,
    extended,
    listing,
    tree,
    xattr_body,
    xattr_entry,
)
from tests.core.erofs_samples import by_hand

Change = Callable[[HandImage], object]


def slot(nid: int, part: bytes) -> Change:
    """Another inode in place of one that the sample has."""
    return lambda hand: hand.slots.__setitem__(nid, part)


def fields(**values: object) -> Change:
    return lambda hand: hand.__dict__.update(values)


def flat(content: bytes, nlink: int = 2) -> bytes:
    """An inline directory of these bytes."""
    return compact(INLINE, DIRECTORY, size=len(content), nlink=nlink, tail=content)


def names(*extra: tuple[bytes, int, int], nid: int = 90, parent: int = 84) -> list[tuple[bytes, int, int]]:
    return [(b".", nid, 2), (b"..", parent, 2), *extra]


def raw_block(first_offset: int, *rest: bytes) -> bytes:
    return flat(struct.pack("<QHBB", 90, first_offset, 2, 0) + b"".join(rest))


def xattred(body: bytes) -> bytes:
    return compact(PLAIN, FILE, xattrs=body)


SUB = "/dir/sub (nid 90)"
SUPERBLOCK: dict[str, tuple[Change, type[LayerkitError], str]] = {
    "magic": (fields(magic=0xE0F5E1E3), CorruptError, "no EROFS superblock"),
    "block size": (fields(block_bits=9), UnsupportedError, "2\\^9 bytes"),
    "directory block size": (fields(dir_bits=1), UnsupportedError, "directory blocks"),
    "compression": (fields(incompat=0xE), UnsupportedError, "features 0x2"),
    "unknown feature": (fields(incompat=0x8000000C), UnsupportedError, "features 0x80000000"),
    "long prefixes": (fields(incompat=0x4C), UnsupportedError, "features 0x40"),
    "extension slots": (fields(extslots=185), CorruptError, "impossible value"),
    "epoch": (fields(epoch=(0, 10**9)), CorruptError, "impossible value"),
    "two devices": (fields(devices=2), UnsupportedError, "2 devices"),
    "device without an address": (fields(mapped=0, devices=1), UnsupportedError, "mapped into the block space"),
    "slot outside": (fields(slot_at=0xFFFF), CorruptError, "device slot"),
    "device over metadata": (fields(mapped=3), CorruptError, "device slot"),
    "device past 2^32": (fields(data_blocks=0xFFFFFFFF), CorruptError, "device slot"),
    "truncated": (fields(blocks=5), CorruptError, "ends before byte 20480"),
}
WALK: dict[str, tuple[Change, type[LayerkitError], str]] = {
    "checksum": (fields(good_checksum=False), CorruptError, "superblock: the superblock's checksum"),
    "root outside": (fields(root_nid=65535), CorruptError, "nid 65535"),
    "root is a file": (fields(root_nid=70), CorruptError, "root is not a directory"),
    "inode count": (fields(inodes=18), CorruptError, "superblock\\): 17 inodes"),
    "metadata outside": (fields(meta_blkaddr=9), CorruptError, "ends before|outside"),
    "entry outside": (slot(90, flat(listing(names((b"x", 1 << 40, 1))))), CorruptError, "/dir/sub/x"),
    "entry far outside": (slot(90, flat(listing(names((b"x", (1 << 64) - 1, 1))))), CorruptError, "/dir/sub/x"),
    "format": (slot(120, struct.pack("<H", 0x10) + compact(PLAIN, FILE)[2:]), UnsupportedError, "/empty .nid 120"),
    "layout 5": (slot(120, compact(5, FILE)), UnsupportedError, "format 0xa"),
    "compressed": (slot(120, compact(1, FILE)), UnsupportedError, "compressed"),
    "compact compressed": (slot(120, compact(3, FILE)), UnsupportedError, "compressed"),
    "mode": (slot(120, compact(PLAIN, 0o170644)), CorruptError, "file type"),
    "size": (slot(120, extended(PLAIN, FILE, size=1 << 63)), CorruptError, "impossible size"),
    "fifo with bytes": (slot(118, compact(PLAIN, stat.S_IFIFO, size=1)), CorruptError, "impossible size 1"),
    "nanoseconds": (slot(120, extended(PLAIN, FILE, nsec=10**9)), CorruptError, "nanoseconds"),
    "compact time": (slot(120, compact(PLAIN, FILE, delta=1)), UnsupportedError, "time of its own"),
    "inline over a block": (slot(120, compact(INLINE, FILE, size=3000)), CorruptError, "inline data"),
    "chunk format": (slot(120, compact(CHUNKS, FILE, word=0x40)), UnsupportedError, "chunk format 0x40"),
    "chunk map outside": (slot(120, extended(CHUNKS, FILE, size=1 << 62)), CorruptError, "ends before"),
    "chunk outside": (slot(74, compact(CHUNKS, FILE, size=4096, tail=b"\7\0\0\0")), CorruptError, "/sparse"),
    "last chunk outside": (slot(74, compact(CHUNKS, FILE, size=12289, word=1, tail=struct.pack("<2I", 8, 1007))),
                           CorruptError, "/sparse"),
    "device id": (slot(78, compact(CHUNKS, FILE, size=4096, word=0x20, tail=struct.pack("<HHI", 0, 1, 20))),
                  UnsupportedError, "device id 1"),
    "blocks between": (slot(70, compact(PLAIN, FILE, size=1, word=5)), CorruptError, "/flat"),
    "blocks past the data": (slot(70, compact(PLAIN, FILE, size=4097, word=1007)), CorruptError, "blocks from 1007"),
    "null blocks": (slot(70, compact(PLAIN, FILE, size=1, word=0xFFFFFFFF)), CorruptError, "/flat"),
    "target in the data": (slot(82, compact(PLAIN, LINK, size=6, word=8)), CorruptError, "/link.*do not lie"),
    "target empty": (slot(82, compact(INLINE, LINK)), CorruptError, "target of 0 bytes"),
    "target too long": (slot(82, compact(PLAIN, LINK, size=4096, word=0)), CorruptError, "target of 4096"),
    "target with zero": (slot(82, compact(INLINE, LINK, size=3, tail=b"a\0b")), CorruptError, "zero byte"),
    "target in chunks": (slot(82, compact(CHUNKS, LINK, size=6, tail=bytes(4))), CorruptError, "do not lie"),
    "xattr header alone": (slot(120, xattred(xattr_body())), CorruptError, "/empty.*xattrs"),
    "shared past the body": (slot(120, xattred(struct.pack("<IB7xI", 0, 2, 0))), CorruptError, "xattrs"),
    "shared outside": (slot(120, xattred(xattr_body(shared=[1 << 30]))), CorruptError, "xattrs"),
    "shared last number": (slot(120, xattred(xattr_body(shared=[0xFFFFFFFF]))), CorruptError, "xattrs"),
    "xattr past the body": (slot(120, xattred(struct.pack("<I8xBBH", 0, 1, 1, 9) + b"nvvv")), CorruptError, "xattrs"),
    "xattr index": (slot(120, xattred(xattr_body([(5, b"x", b"")]))), UnsupportedError, "name index 5"),
    "xattr long prefix": (slot(120, xattred(xattr_body([(0x81, b"x", b"")]))), UnsupportedError, "name index 129"),
    "xattr without name": (slot(120, xattred(xattr_body([(1, b"", b"v")]))), CorruptError, "xattr name"),
    "ACL with name": (slot(120, xattred(xattr_body([(2, b"x", b"v")]))), CorruptError, "xattr name"),
    "xattr name with zero": (slot(120, xattred(xattr_body([(1, b"a\0", b"v")]))), CorruptError, "xattr name"),
    "xattr twice": (slot(120, xattred(xattr_body([(1, b"a", b"v"), (1, b"a", b"w")]))), CorruptError, "two xattrs"),
    "xattr twice, shared": (slot(120, xattred(xattr_body([(1, b"shared", b"")], shared=[0]))), CorruptError, "/empty"),
    "directory of 11 bytes": (slot(90, flat(bytes(11))), CorruptError, SUB.replace("(", "\\(").replace(")", "\\)")),
    "directory empty": (slot(90, flat(b"")), CorruptError, "/dir/sub .nid 90.*`.`"),
    "first offset 0": (slot(90, raw_block(0, bytes(20))), CorruptError, "directory block"),
    "first offset odd": (slot(90, raw_block(13, bytes(20))), CorruptError, "directory block"),
    "first offset at the end": (slot(90, raw_block(24, bytes(12))), CorruptError, "directory block"),
    "names descend": (slot(90, raw_block(24, struct.pack("<QHBB", 84, 23, 2, 0), b"...")), CorruptError, "block"),
    "names past the end": (slot(90, raw_block(24, struct.pack("<QHBB", 84, 999, 2, 0), b"...")), CorruptError, "block"),
    "name empty": (slot(90, raw_block(24, struct.pack("<QHBB", 84, 25, 2, 0), b".\0\0")), CorruptError, "name"),
    "name with zero": (slot(90, raw_block(24, struct.pack("<QHBB", 84, 26, 2, 0), b".\0..")), CorruptError, "name"),
    "name of 256": (slot(90, flat(listing(names((b"n" * 256, 120, 1))))), CorruptError, "entry 2 has"),
    "name with slash": (slot(90, flat(listing(names((b"a/b", 120, 1))))), CorruptError, "entry 2 has"),
    "order": (slot(90, flat(listing(names((b"b", 120, 1), (b"a", 120, 1)), sort=False))), CorruptError, "/a .*order"),
    "name twice": (slot(90, flat(listing(names((b"a", 120, 1), (b"a", 120, 1))))), CorruptError, "order"),
    "no dot": (slot(90, flat(listing(names()[1:]))), CorruptError, "`.`"),
    "no dotdot": (slot(90, flat(listing(names()[:1]))), CorruptError, "`.`"),
    "dot elsewhere": (slot(90, flat(listing(names(nid=84)))), CorruptError, "/dir/sub/. .*`.`"),
    "dotdot elsewhere": (slot(90, flat(listing(names(parent=40)))), CorruptError, "`.`"),
    "dot as a file": (slot(90, flat(listing([(b".", 90, 1), (b"..", 84, 2)]))), CorruptError, "`.`"),
    "file type": (slot(90, flat(listing(names((b"f", 120, 2))))), CorruptError, "/dir/sub/f .*type 2"),
    "file type unknown": (slot(90, flat(listing(names((b"f", 120, 0))))), CorruptError, "type 0"),
    "cycle": (slot(90, tree(90, {b"up": (84, DIRECTORY)}, parent=84)), CorruptError, "/dir/sub/up .*two names"),
    "itself": (slot(90, tree(90, {b"me": (90, DIRECTORY)}, parent=84)), CorruptError, "/dir/sub/me .*two names"),
    "the root again": (slot(90, tree(90, {b"top": (40, DIRECTORY)}, parent=84)), CorruptError, "two names"),
    "links of a file": (slot(112, compact(INLINE, FILE, size=2, nlink=3, tail=b"xy")), CorruptError, "2 were found"),
    "links of a directory": (slot(90, tree(90, {}, parent=84, nlink=3)), CorruptError, "/dir/sub .*link count"),
    "links 0": (slot(120, compact(PLAIN, FILE, nlink=0)), CorruptError, "/empty .*link count"),
    "directory in the data": (slot(90, compact(PLAIN, DIRECTORY, size=4096, word=8)), CorruptError, "do not lie"),
    "directory in chunks": (slot(90, compact(CHUNKS, DIRECTORY, size=4096, tail=bytes(4))), CorruptError, "do not"),
    "directory far too large": (slot(90, extended(PLAIN, DIRECTORY, size=1 << 40, nlink=2)), CorruptError, "overlap"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUPERBLOCK)
def test_l32_superblocks(name: str) -> None:
    change, kind, text = SUPERBLOCK[name]
    hand = by_hand()
    change(hand)
    with pytest.raises(kind, match=text) as caught:
        ErofsImage(hand.bytes())
    assert caught.value.where == "superblock"
    assert walk_both(hand.bytes()) is None


@pytest.mark.parametrize("name", WALK)
def test_l32_images(name: str) -> None:
    change, kind, text = WALK[name]
    hand = by_hand()
    change(hand)
    if name == "metadata outside":
        hand.slots, hand.blocks = {}, None
    image = hand.bytes()
    with pytest.raises(kind, match=text):
        check_image(image)
    assert walk_both(image) is None


def test_the_sample_itself_is_good() -> None:
    check_image(by_hand().bytes())


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1151, 4095])
def test_l32_short_images(size: int) -> None:
    with pytest.raises(CorruptError, match="ends before byte 4096"):
        ErofsImage(by_hand().bytes()[:size])


def test_l32_truncated_anywhere() -> None:
    hand = replace(by_hand(), mapped=0, devices=0, incompat=4)
    for nid in (70, 71, 74, 78, 110):
        hand.slots[nid] = compact(PLAIN, FILE)
    image = hand.bytes()
    assert walk_both(image)
    for size in range(4096, len(image), 60):
        walk_both(image[:size])


def test_the_methods_name_the_nid() -> None:
    hand = by_hand()
    hand.slots[82] = compact(PLAIN, LINK, size=6, word=8)
    hand.slots[120] = compact(PLAIN, FILE, xattrs=xattr_body([(1, b"a", b"v"), (1, b"a", b"w")]))
    hand.slots[90] = flat(bytes(11))
    reader = ErofsImage(hand.bytes())
    calls: list[Callable[[], object]] = [
        lambda: reader.read_metadata(82),
        lambda: reader.xattrs(120),
        lambda: reader.entries(90),
        lambda: reader.find(90, b"x"),
        lambda: reader.entries(70),
        lambda: reader.inode(1 << 40),
        lambda: reader.inode(1 << 64),
        lambda: reader.inode(-1),
    ]
    for call in calls:
        with pytest.raises(CorruptError) as caught:
            call()
        assert caught.value.where.startswith("nid ")


def test_a_last_name_that_runs_on_behind_the_directory() -> None:
    hand = by_hand()
    content = listing(names())
    hand.slots[90] = compact(PLAIN, DIRECTORY, size=len(content), word=4, nlink=2)
    hand.extra[4] = content
    hand.mapped = 16
    for nid in (70, 71, 74, 78, 110):
        hand.slots[nid] = compact(PLAIN, FILE)
    assert walk_both(hand.bytes())
    hand.extra[4] = content + b"!"
    with pytest.raises(CorruptError, match="directory block"):
        check_image(hand.bytes())
    assert walk_both(hand.bytes()) is None


def test_values_of_65535_bytes() -> None:
    hand = by_hand()
    hand.extra[4] = xattr_entry(1, b"big", b"v" * 65535)
    hand.slots[120] = compact(PLAIN, FILE, xattrs=xattr_body(shared=[1024]))
    hand.mapped = 64
    for nid in (70, 71, 74, 78, 110):
        hand.slots[nid] = compact(PLAIN, FILE)
    image = hand.bytes()
    assert ErofsImage(image).xattrs(120) == {b"user.big": b"v" * 65535}
    assert walk_both(image)
