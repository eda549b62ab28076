"""Files to contents: cut as the format says, bounded, and nothing half-read leaks into the next file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.build.ingest import MAX_FILE_SIZE, WHOLE_MAX
from layerkit.build.pieces import Piece, file_pieces
from layerkit.errors import LimitError, SourceChangedError
from layerkit.layer.contents import check_content, same_body
from layerkit.layer.tree import Content
from tests.support.chunk_bag import ChunkBag

MIB = 1 << 20


def plain(pieces: list[Piece]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in pieces)


def read(pieces: list[Piece], bag: ChunkBag | None = None) -> tuple[Content | bytes, ChunkBag]:
    bag = bag or ChunkBag()
    size = sum(piece if isinstance(piece, int) else len(piece) for piece in pieces)
    return bag.ingester().read(pieces, size, b"f"), bag


@pytest.mark.parametrize(
    "size", [0, 1, 256, 257, 4095, 4096, 65_535, 65_536, 262_144, 262_145, WHOLE_MAX, WHOLE_MAX + 1, 5 * MIB + 7]
)
def test_l31_sizes_around_every_edge(size: int) -> None:
    for data in (random.Random(size).randbytes(size), bytes(size)):
        body, bag = read([data[at : at + MIB] for at in range(0, size, MIB)])
        assert bag.read(body) == data
        if isinstance(body, Content):
            check_content(body, "f")
        if not any(data) and size > 256:
            assert bag.chunks == {}


pieces = st.lists(
    st.one_of(
        st.integers(1, 300_000),
        st.builds(lambda size, byte: bytes([byte]) * size, st.integers(1, 200_000), st.integers(0, 255)),
        st.builds(lambda size, seed: random.Random(seed).randbytes(size), st.integers(1, 700_000), st.integers(0, 9)),
    ),
    max_size=9,
)


@given(pieces)
@settings(max_examples=60, deadline=None)
def test_holes_and_zeros_are_the_same_content(parts: list[Piece]) -> None:
    """Whether zeros come as holes or as bytes, in one piece or many, whole or through the window."""
    body, bag = read(parts)
    data = plain(parts)
    assert bag.read(body) == data
    again, _ = read([data])
    assert same_body(body, again)
    small, _ = read([data[at : at + 9973] for at in range(0, len(data), 9973)])
    assert same_body(body, small)
    if isinstance(body, Content):
        check_content(body, "f")
        assert body.chunks == (again.chunks if isinstance(again, Content) else ())


def test_b27_a_hole_of_a_pib_takes_moments_and_no_chunks() -> None:
    body, bag = read([1, MAX_FILE_SIZE - 5, b"end!"])
    assert isinstance(body, Content)
    assert body.size == MAX_FILE_SIZE
    assert sum(map(len, bag.chunks.values())) <= 128 << 10
    with pytest.raises(LimitError):
        ChunkBag().ingester().read([1 << 60], 1 << 60, b"too/large")


def test_known_chunks_are_not_stored_again() -> None:
    data = random.Random(1).randbytes(3 * MIB)
    bag = ChunkBag()
    one, _ = read([data], bag)
    before = dict(bag.chunks)
    other, _ = read([data], bag)
    assert same_body(one, other)
    assert bag.chunks == before


@pytest.mark.parametrize("size", [100, 5000, 3 * MIB])
def test_a_file_that_shrank_or_grew_is_named(size: int) -> None:
    for wrong in (size - 1, size + 1):
        with pytest.raises(SourceChangedError, match="bytes were read") as caught:
            ChunkBag().ingester().read([bytes(size - 1) + b"x"], wrong, b"the/file")
        assert caught.value.where == "the/file"


def test_a_read_that_broke_off_leaves_nothing_for_the_next_file() -> None:
    bag = ChunkBag()
    ingester = bag.ingester()

    def breaking() -> object:
        yield random.Random(1).randbytes(3 * MIB)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        ingester.read(breaking(), 9 * MIB, b"f")  # type: ignore[arg-type]
    data = random.Random(2).randbytes(3 * MIB)
    body = ingester.read([data], len(data), b"g")
    assert bag.read(body) == data
    assert body.chunks == read([data])[0].chunks  # type: ignore[union-attr]


def test_pieces_of_sparse_files(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(40 * MIB)
        file.write(b"middle")
        file.truncate(1 << 40)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = list(file_pieces(fd, 1 << 40, sparse=True))
        assert sum(piece if isinstance(piece, int) else len(piece) for piece in found) == 1 << 40
        assert sum(len(piece) for piece in found if isinstance(piece, bytes)) < 64 << 10
        assert found[0][:5] == b"begin"  # type: ignore[index]
        os.truncate(path, 10)
        assert list(file_pieces(fd, 1000, sparse=False)) == [b"begin" + bytes(5)]
    finally:
        os.close(fd)
