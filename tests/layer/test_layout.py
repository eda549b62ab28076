"""The data space: order, sharing, holes, the chunk index, and reading contents back."""

from __future__ import annotations

import stat
import struct
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.errors import CorruptError, InputError
from layerkit.layer.chunk_index import BLOCK_SIZE, LAST, ZERO, ChunkIndex
from layerkit.layer.contents import canonical_chunks
from layerkit.layer.layout import HOLE, ContentReader, Layout, Placement, data_order, lay_out, unit_size
from layerkit.layer.tree import Chunk, Content, Inode
from tests.layer.layer_trees import directory, file

KIB, MIB = 1 << 10, 1 << 20


def chunk_id(number: int) -> bytes:
    return struct.pack("<Q", number) * 4


def content(*chunks: tuple[int, int | None]) -> Content:
    """From (length, number of the id or None for zeros)."""
    parts = tuple(Chunk(length, b"" if number is None else chunk_id(number)) for length, number in chunks)
    return Content(sum(part.length for part in parts), parts)


def regular(body: Content) -> Inode:
    return Inode(stat.S_IFREG | 0o644, body=body)


def read_back(layout: Layout, body: Content, reader: ContentReader | None = None) -> Content:
    index = ChunkIndex.from_bytes(layout.chunk_index.to_bytes())
    reader = reader or ContentReader(index)
    place = layout.placements[body]
    if place.chunk_blocks is None:
        return reader.flat(place.block, body.size)
    return reader.mapped(body.size, place.chunk_bits, place.chunk_blocks)


# Files as ingestion cuts them: chunks of up to 1 MiB, runs of zeros between, offsets aligned where zeros begin.
pieces = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 5), st.integers(0, 3)),
        st.tuples(st.just("zeros"), st.sampled_from([16, 17, 40, 256, 1 << 20, 1 << 22]), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


def from_pieces(parts: list[tuple[str, int, int]], tail: int) -> Content:
    chunks: list[tuple[int, int | None]] = [
        (blocks * BLOCK_SIZE, None if kind == "zeros" else number) for kind, blocks, number in parts
    ]
    return content(*chunks, *([(tail, 9)] if tail else []))


@given(st.lists(st.tuples(pieces, st.sampled_from([0, 1, 300, 4095])), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_contents_come_back(files: list) -> None:
    bodies = [from_pieces(parts, tail) for parts, tail in files]
    layout = lay_out(directory({b"%d" % number: regular(body) for number, body in enumerate(bodies)}))
    index = ChunkIndex.from_bytes(layout.chunk_index.to_bytes())
    assert index.to_bytes() == layout.chunk_index.to_bytes()
    reader = ContentReader(index)
    for body in bodies:
        got = read_back(layout, body, reader)
        assert (got.size, got.chunks) == (body.size, canonical_chunks(body.chunks))
    for entry in range(index.entry_count):
        assert index.id(entry) == (b"" if index.is_zero(entry) else index.stored_id(index.stored_number(entry)))
    for number in range(index.stored_count):
        assert index.stored_number(index.entry_of_stored(number)) == number
        assert not index.is_zero(index.entry_of_stored(number))


def test_order_is_by_directory_then_extension_then_name() -> None:
    names = [b"b.so.1.2", b"a.so", b"z", b"a.py", b".bashrc", b"1.2", b"c.so.6"]
    assert sorted(names, key=data_order) == [b".bashrc", b"1.2", b"z", b"a.py", b"a.so", b"b.so.1.2", b"c.so.6"]
    sub = regular(content((300, 1)))
    tree = directory(
        {b"a": directory({b"x.c": sub}), b"b.c": regular(content((300, 2))), b"z": regular(content((300, 3)))}
    )
    layout = lay_out(tree)
    assert [layout.chunk_index.id(entry) for entry in range(3)] == [chunk_id(3), chunk_id(2), chunk_id(1)]


def test_l24_order_of_entries_does_not_matter() -> None:
    files = {b"f%d" % number: regular(content((5000 + number, number))) for number in range(50)}
    one = lay_out(directory(files)).chunk_index.to_bytes()
    assert lay_out(directory(dict(reversed(files.items())))).chunk_index.to_bytes() == one


def test_l19_identical_contents_are_stored_once() -> None:
    one, other = content((5000, 1), (6000, 2)), content((5000, 1), (6000, 2))
    layout = lay_out(directory({b"a": regular(one), b"b": regular(other), b"c": regular(content((5000, 1)))}))
    assert layout.placements[one] == layout.placements[other] == Placement(0)
    assert layout.chunk_index.entry_count == 3
    assert layout.chunk_index.data_blocks == 3 + 2


def test_every_file_begins_at_a_block() -> None:
    bodies = [content((257, 1)), content((4096, 2)), content((4097, 3)), content((1, 4), (4096, 5))]
    layout = lay_out(directory({b"%d" % number: regular(body) for number, body in enumerate(bodies)}))
    assert [layout.placements[body].block for body in bodies] == [0, 1, 2, 4]
    assert list(layout.chunk_index.offsets) == [0, 4096, 8192, 16384, 16385]
    assert layout.chunk_index.last == b"\1\1\1\0\1"


def test_l31_a_file_of_zeros_takes_no_data() -> None:
    for size in (257, 4096, 65536, 1 << 40):
        body = content((size, None))
        layout = lay_out(directory({b"z": regular(body)}))
        place = layout.placements[body]
        assert place.chunk_blocks is not None
        assert set(place.chunk_blocks) == {HOLE}
        assert layout.chunk_index.entry_count == layout.chunk_index.data_blocks == 0
        assert read_back(layout, body).chunks == canonical_chunks(body.chunks)


def test_b27_a_tebibyte_hole_has_a_map_of_kilobytes() -> None:
    size = 1 << 40
    body = content((4096, 1), (size - 8192, None), (4096, 2))
    layout = lay_out(directory({b"lastlog": regular(body)}))
    place = layout.placements[body]
    assert place.chunk_blocks is not None
    assert len(place.chunk_blocks) == 8192
    assert 1 << place.chunk_bits == unit_size(size) == 128 * MIB
    assert layout.chunk_index.data_blocks == 2 * 128 * MIB // BLOCK_SIZE
    assert read_back(layout, body).chunks == canonical_chunks(body.chunks)


def test_units_follow_the_file_size() -> None:
    assert unit_size(1) == unit_size(512 * MIB) == 64 * KIB
    assert unit_size(512 * MIB + 1) == 128 * KIB
    assert unit_size(292 << 30) == 64 * MIB


def test_zeros_inside_units_stay_in_the_index() -> None:
    body = content((4096, 1), (64 * KIB, None), (4096, 2))
    layout = lay_out(directory({b"f": regular(body)}))
    assert layout.placements[body].chunk_blocks is None
    assert [layout.chunk_index.is_zero(entry) for entry in range(3)] == [False, True, False]
    assert layout.chunk_index.stored_count == 2
    assert read_back(layout, body).chunks == body.chunks


@pytest.mark.parametrize(
    "body",
    [
        Content(300, (Chunk(299, chunk_id(1)),)),
        Content(2 * MIB, (Chunk(2 * MIB, chunk_id(1)),)),
        Content(300, (Chunk(300, b"short"),)),
        Content(300, (Chunk(300, chunk_id(1)), Chunk(0, chunk_id(2)))),
        Content(0, ()),
        Content(256, (Chunk(256, chunk_id(1)),)),
    ],
)
def test_impossible_contents_are_refused(body: Content) -> None:
    with pytest.raises(InputError, match=r"^f"):
        lay_out(directory({b"f": regular(body), b"g": file(b"x")}))


# The index over untrusted bytes


def index_bytes(words: list[int], ids: bytes, blocks: int, **header: object) -> bytes:
    fields = {"magic": b"LKCX", "version": 1, "reserved": 0, "count": len(words), "rest": bytes(8)} | header
    head = struct.pack("<4sHHQQ8s", fields["magic"], fields["version"], fields["reserved"], fields["count"], blocks,
                       fields["rest"])  # fmt: skip
    return head + array("I", words).tobytes() + ids


def test_l31_empty_index() -> None:
    data = index_bytes([], b"", 0)
    assert ChunkIndex.from_bytes(data).to_bytes() == data
    assert ChunkIndex.from_bytes(data).range(0, 100) == (0, -1)
    assert len(data) == 32


@pytest.mark.parametrize(
    "data",
    [
        b"",
        index_bytes([300 | LAST], bytes(32), 1)[:-1],
        index_bytes([300 | LAST], bytes(32), 1) + b"x",
        index_bytes([300 | LAST], bytes(32), 2),
        index_bytes([300], bytes(32), 1),
        index_bytes([LAST], bytes(32), 0),
        index_bytes([300 | LAST | ZERO], bytes(32), 1),
        index_bytes([(MIB + 1) | LAST], bytes(32), 257),
        index_bytes([300 | LAST], bytes(32), 1, count=1 << 60),
        index_bytes([300 | LAST], bytes(32), 1 << 40),
        index_bytes([300 | LAST], bytes(32), 1, version=2),
        index_bytes([300 | LAST], bytes(32), 1, magic=b"LKCY"),
        index_bytes([300 | LAST], bytes(32), 1, reserved=1),
        index_bytes([300 | LAST], bytes(32), 1, rest=b"12345678"),
    ],
)
def test_l32_hostile_indexes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        ChunkIndex.from_bytes(data)


@given(st.binary(max_size=200), st.lists(st.integers(0, (1 << 32) - 1), max_size=8))
@settings(max_examples=200)
def test_l32_fuzzed_indexes_are_corrupt_or_whole(tail: bytes, words: list[int]) -> None:
    stored = sum(not word & ZERO for word in words)
    for data in (tail, index_bytes(words, tail, 1), index_bytes(words, bytes(32 * stored), len(words))):
        try:
            index = ChunkIndex.from_bytes(data)
        except CorruptError:
            continue
        assert index.to_bytes() == data


def test_find_and_range() -> None:
    index = ChunkIndex.from_bytes(index_bytes([100, 300 | LAST, 4096 | LAST], bytes(96), 2))
    assert [index.find(offset) for offset in (0, 99, 100, 399, 400, 4095, 4096, 8191)] == [0, 0, 1, 1, 1, 1, 2, 2]
    for offset in (-1, 8192):
        with pytest.raises(IndexError):
            index.find(offset)
    assert index.range(0, 8192) == (0, 2)
    assert index.range(99, 2) == (0, 1)
    assert index.range(0, 100) == (0, 0)
    assert index.range(4095, 2) == (2, 2)
    first, last = index.range(400, 3696)
    assert last < first


def test_l32_images_that_disagree_with_their_index_are_corrupt() -> None:
    index = ChunkIndex.from_bytes(index_bytes([100, 300 | LAST, 4096 | LAST], bytes(96), 2))
    for block, size in ((0, 399), (0, 401), (0, 100), (1, 4095), (1, 4097), (2, 1), (0, 8192), (1 << 31, 4096)):
        with pytest.raises(CorruptError):
            ContentReader(index).flat(block, size)
    reader = ContentReader(index)
    assert reader.flat(0, 400) is reader.flat(0, 400)
    for blocks in ([1], [0, 0], [HOLE, 0, HOLE], [0, HOLE]):
        with pytest.raises(CorruptError):
            reader.mapped(400, 16, array("I", blocks))
    with pytest.raises(CorruptError):
        reader.mapped(64 * KIB + 400, 16, array("I", [HOLE, 0]))


def test_l32_no_entry_is_read_for_two_files() -> None:
    """Many maps over one long run of chunks would be work without bound."""
    index = ChunkIndex.from_bytes(index_bytes([100, 300 | LAST], bytes(64), 1))
    reader = ContentReader(index)
    reader.mapped(64 * KIB + 400, 16, array("I", [HOLE, 0]))
    with pytest.raises(CorruptError):
        reader.mapped(128 * KIB + 400, 16, array("I", [HOLE, HOLE, 0]))
