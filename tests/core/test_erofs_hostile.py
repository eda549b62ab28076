"""L32: images made to cost time or memory are refused, or walked, at a price that follows their size."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from layerkit.core.erofs_reader import ErofsImage, check_image
from layerkit.errors import CorruptError
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

BLOCK = 4096


@contextmanager
def bounded(*, seconds: float, megabytes: float) -> Iterator[None]:
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
    finally:
        took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took < seconds
    assert peak < megabytes * 1e6


def root_of(hand: HandImage, children: list[tuple[bytes, int, int]], *, nlink: int = 2) -> None:
    """A root directory of any size in blocks behind everything else."""
    content = listing([(b".", 40, 2), (b"..", 40, 2), *children])
    block = max([1, *(address + -(-len(part) // BLOCK) for address, part in hand.extra.items())])
    block = max([block, *(-(-(nid * 32 + len(part)) // BLOCK) for nid, part in hand.slots.items())])
    hand.slots[40] = compact(PLAIN, DIRECTORY, size=len(content), word=block, nlink=nlink)
    hand.extra[block] = content


def inodes_at(hand: HandImage, first: int, record: bytes, count: int) -> list[int]:
    """The same record `count` times, one after another; their nids."""
    step = -(-len(record) // 32)
    hand.slots[first] = record.ljust(step * 32, b"\0") * count
    return [first + number * step for number in range(count)]


def test_many_files_may_share_their_blocks() -> None:
    hand = HandImage(mapped=1 << 20, data_blocks=1 << 28)
    nids = inodes_at(hand, 128, extended(PLAIN, FILE, size=1 << 40, word=1 << 20), 100_000)
    hand.inodes = 1 + len(nids)
    root_of(hand, [(b"%06d" % number, nid, 1) for number, nid in enumerate(nids)])
    image = hand.bytes()
    with bounded(seconds=1, megabytes=60):
        assert len(ErofsImage(image).walk()) == 100_001


def test_small_files_that_share_a_block_of_the_image() -> None:
    hand = HandImage()
    hand.extra[1] = b"s" * BLOCK
    nids = inodes_at(hand, 256, compact(PLAIN, FILE, size=BLOCK, word=1), 50_000)
    hand.inodes = 1 + len(nids)
    root_of(hand, [(b"%06d" % number, nid, 1) for number, nid in enumerate(nids)])
    image = hand.bytes()
    with bounded(seconds=1, megabytes=40):
        walk = ErofsImage(image).walk()
    # Given out as inline as long as the image is worth it, then left to ErofsImage.map.
    given = sum(data is not None and len(data) for data in walk.inline)
    assert 0 < given <= len(image)
    assert len(walk) == 50_001


def test_l32_directories_that_share_their_blocks() -> None:
    hand = HandImage(blocks=1000)
    hand.extra[900] = listing([(b".", 128, 2), (b"..", 40, 2), *((b"%05d" % n, 200_000, 1) for n in range(50_000))])
    nids = inodes_at(hand, 128, compact(PLAIN, DIRECTORY, size=len(hand.extra[900]), word=900, nlink=2), 20_000)
    root_of(hand, [(b"%06d" % number, nid, 2) for number, nid in enumerate(nids)], nlink=20_002)
    hand.blocks = None
    image = hand.bytes()
    with bounded(seconds=1, megabytes=40), pytest.raises(CorruptError, match=r"overlap|`.`"):
        check_image(image)


def test_l32_chunk_maps_that_overlap() -> None:
    hand = HandImage(mapped=1 << 20, data_blocks=10)
    record = extended(CHUNKS, FILE, size=4096 * 100_000)
    nids = inodes_at(hand, 128, record, 20_000)
    hand.slots[128] += b"\xff" * 400_000
    root_of(hand, [(b"%06d" % number, nid, 1) for number, nid in enumerate(nids)])
    image = hand.bytes()
    with bounded(seconds=1, megabytes=40), pytest.raises(CorruptError, match=r"overlap|blocks from"):
        check_image(image)


def test_l32_xattr_bodies_that_overlap() -> None:
    hand = HandImage(xattr_blkaddr=1)
    hand.extra[1] = xattr_entry(1, b"n", b"v" * 60_000)
    # Every record claims the 64 KiB behind it as its xattrs: headers with 255 references to one value.
    body = struct.pack("<IB7x", 0, 255) + struct.pack("<I", 0) * 255
    record = compact(PLAIN, FILE, xattrs=body)
    nids = inodes_at(hand, 4096, record, 5000)
    root_of(hand, [(b"%06d" % number, nid, 1) for number, nid in enumerate(nids)])
    with bounded(seconds=2, megabytes=60), pytest.raises(CorruptError, match=r"two xattrs|overlap|link count|inodes"):
        check_image(hand.bytes())


def test_l32_shared_values_that_overlap() -> None:
    hand = HandImage(xattr_blkaddr=1)
    # Each word of the area begins an entry: a name of 4 bytes, a value that covers all that follows.
    count = 10_000
    hand.extra[1] = b"".join(struct.pack("<BBH", 4, 1, 40_000) for _ in range(count)) + bytes(70_000)
    records = b""
    nids = []
    for number in range(count // 200):
        body = xattr_body(shared=range(number * 200, number * 200 + 200))
        record = compact(PLAIN, FILE, xattrs=body)
        nids.append(4096 + len(records) // 32)
        records += record.ljust(-(-len(record) // 32) * 32, b"\0")
    hand.slots[4096] = records
    root_of(hand, [(b"%06d" % number, nid, 1) for number, nid in enumerate(nids)])
    with bounded(seconds=1, megabytes=20), pytest.raises(CorruptError, match=r"overlap|xattr name"):
        check_image(hand.bytes())


def test_l32_symlinks_that_share_their_target() -> None:
    hand = HandImage()
    hand.extra[1] = b"t" * 4095 + b"\0"
    nids = inodes_at(hand, 256, compact(PLAIN, LINK, size=4095, word=1), 50_000)
    root_of(hand, [(b"%06d" % number, nid, 7) for number, nid in enumerate(nids)])
    with bounded(seconds=1, megabytes=40), pytest.raises(CorruptError, match="overlap"):
        check_image(hand.bytes())


@pytest.mark.parametrize("size", [1 << 31, 1 << 40, (1 << 63) - 1])
def test_l32_huge_sizes_allocate_nothing(size: int) -> None:
    hand = HandImage(mapped=1 << 20, data_blocks=10)
    hand.slots[60] = extended(PLAIN, DIRECTORY, size=size, word=0, nlink=2)
    hand.slots[64] = extended(INLINE, LINK, size=size)
    hand.slots[68] = extended(CHUNKS, FILE, size=size, word=31)
    hand.slots[40] = tree(40, {b"d": (60, DIRECTORY), b"f": (68, FILE), b"l": (64, LINK)})
    reader = ErofsImage(hand.bytes())
    with bounded(seconds=0.5, megabytes=1):
        for call in (reader.entries, reader.read_metadata, lambda nid: reader.find(nid, b"x"), reader.map):
            for nid in (60, 64, 68):
                try:
                    call(nid)
                except CorruptError:
                    continue
        with pytest.raises(CorruptError):
            check_image(hand.bytes())


def test_deep_trees_need_no_stack() -> None:
    depth = 30_000
    hand = HandImage(root_nid=128)
    for level in range(depth):
        nid, parent = 128 + level * 4, 128 + max(0, level - 1) * 4
        names = {b"d": (nid + 4, DIRECTORY)} if level + 1 < depth else {}
        hand.slots[nid] = tree(nid, names, parent=parent)
    image = hand.bytes()
    with bounded(seconds=1, megabytes=30):
        walk = ErofsImage(image).walk()
    assert len(walk) == depth
    hand.inodes = 1
    with bounded(seconds=1, megabytes=30), pytest.raises(CorruptError, match=f"{depth} inodes"):
        check_image(hand.bytes())


def test_small_ones_follow_the_reference() -> None:
    hand = HandImage(xattr_blkaddr=1)
    hand.extra[1] = b"".join(struct.pack("<BBH", 4, 1, 3000) for _ in range(400)) + bytes(4000)
    hand.slots[512] = compact(PLAIN, FILE, xattrs=xattr_body(shared=range(200)))
    hand.slots[40] = tree(40, {b"f": (512, FILE)})
    assert walk_both(hand.bytes()) is None
