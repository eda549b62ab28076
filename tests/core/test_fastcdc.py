"""Cutting: the C core against the reference, streams against wholes, and the laws that dedupe relies on."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.core import fastcdc
from layerkit.core.fastcdc import FileCutter, Piece, cut, cut_file_bytes, is_zero, zero_runs
from tests.core import reference_fastcdc as reference

KIB, MIB = 1 << 10, 1 << 20
GEAR_HEADER = Path(fastcdc.__file__).parent / "src/private/gear_table.h"
POOL = random.Random(5).randbytes(6 * MIB)


def content(parts: Iterable[tuple[str, int]]) -> bytes:
    """Bytes made of ("zeros" | "noise" | "same", length) parts."""
    out = bytearray()
    for kind, length in parts:
        if kind == "noise":
            at = len(out) * 7919 % MIB
            out += POOL[at : at + length]
        else:
            out += bytes(length) if kind == "zeros" else b"x" * length
    return bytes(out)


def streamed(data: bytes, feed_sizes: list[int]) -> list[tuple[int, bool]]:
    """What a FileCutter says for these feeds, its offsets and bytes checked against the data."""
    cutter = FileCutter()
    pieces: list[tuple[int, bool]] = []
    at = 0

    def take(piece: Piece) -> None:
        nonlocal at
        assert piece.offset == at
        if piece.is_zero:
            assert is_zero(data[at : at + piece.length])
        else:
            assert piece.data == data[at : at + piece.length]
        at += piece.length
        pieces.append((piece.length, piece.is_zero))

    position = turn = 0
    while position < len(data):
        size = feed_sizes[turn % len(feed_sizes)]
        for piece in cutter.feed(data[position : position + size]):
            take(piece)
        position += size
        turn += 1
    for piece in cutter.finish():
        take(piece)
    assert at == len(data)
    return pieces


def test_gear_table_is_derived_from_its_seed() -> None:
    numbers = [int(text, 16) for text in re.findall(r"0x([0-9a-f]{16})u", GEAR_HEADER.read_text())]
    assert numbers == reference.gear_table()


EDGES = [0, 1, 4095, 4096, 4097, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1]


@pytest.mark.parametrize("size", [*EDGES, MIB, MIB + 1, 3 * MIB + 17])
@pytest.mark.parametrize("kind", ["zeros", "noise", "same"])
def test_l31_edge_sizes_follow_the_reference(kind: str, size: int) -> None:
    data = content([(kind, size)])
    assert cut_file_bytes(data) == reference.cut_file(data) == streamed(data, [100_000])


@pytest.mark.parametrize(
    "parts",
    [
        [("noise", 5000), ("zeros", 64 * KIB + 8191)],
        [("noise", 5000), ("zeros", 64 * KIB + 3287)],
        [("noise", 4096), ("zeros", 64 * KIB), ("noise", 1)],
        [("noise", 4096), ("zeros", 64 * KIB - 1), ("noise", 1)],
        [("zeros", 64 * KIB), ("noise", 300 * KIB), ("zeros", 65 * KIB)],
        [("zeros", 60 * KIB), ("noise", 1), ("zeros", 200 * KIB), ("noise", 2 * MIB)],
        [("noise", 700 * KIB), ("zeros", 3 * MIB + 5), ("noise", 10)],
        [("noise", 256 * KIB), ("zeros", 256 * KIB), ("noise", 256 * KIB + 1)],
        [("noise", 4096 * 3 + 1), ("zeros", 17 * 4096 - 1)],
        [("noise", 1), ("zeros", 16 * 4096 + 100)],
    ],
)
def test_zero_runs_follow_the_reference(parts: list[tuple[str, int]]) -> None:
    data = content(parts)
    assert cut_file_bytes(data) == reference.cut_file(data) == streamed(data, [65_537])
    runs = reference.kept_zero_runs(data)
    assert zero_runs(data) == runs
    assert zero_runs(data, final=False) == [run for run in runs if run[1] < len(data)]


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["zeros", "noise", "zeros", "noise", "same"]),
        st.one_of(st.sampled_from(EDGES), st.integers(1, 40).map(lambda n: n * 4096), st.integers(0, 700 * KIB)),
    ),
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=4))
def test_streams_equal_wholes(parts: list[tuple[str, int]], feed_sizes: list[int]) -> None:
    data = content(parts)
    slow_enough = [max(size, len(data) // 2000) for size in feed_sizes]
    assert streamed(data, slow_enough) == cut_file_bytes(data)


@settings(max_examples=12, deadline=None)
@given(PARTS)
def test_c_equals_reference(parts: list[tuple[str, int]]) -> None:
    data = content(parts)[: 1200 * KIB]
    assert cut_file_bytes(data) == reference.cut_file(data)


def test_streams_longer_than_the_window_equal_wholes() -> None:
    parts = [("noise", 5 * MIB), ("zeros", 9 * MIB + 11), ("noise", 4 * MIB), ("zeros", 50 * KIB), ("noise", 3 * MIB)]
    data = content(parts)
    whole = cut_file_bytes(data)
    for feed_size in (4097, 999_983, 4 * MIB, 64 * MIB):
        assert streamed(data, [feed_size]) == whole


@settings(max_examples=40, deadline=None)
@given(PARTS)
def test_holes_equal_zeros(parts: list[tuple[str, int]]) -> None:
    cutter = FileCutter()
    found: list[tuple[int, bool]] = []
    for kind, length in parts:
        fed = cutter.feed_hole(length) if kind == "zeros" else cutter.feed(content([(kind, length)]))
        found += [(piece.length, piece.is_zero) for piece in fed]
    found += [(piece.length, piece.is_zero) for piece in cutter.finish()]
    # content() draws noise by position; here every part is drawn anew from position 0.
    data = b"".join(content([part]) for part in parts)
    assert found == cut_file_bytes(data)


def test_b27_a_hole_of_a_tebibyte_is_quick() -> None:
    cutter = FileCutter()
    pieces = [(p.length, p.is_zero) for p in cutter.feed(b"head")]
    pieces += [(p.length, p.is_zero) for p in cutter.feed_hole(1 << 40)]
    pieces += [(p.length, p.is_zero) for p in cutter.feed(b"tail")]
    pieces += [(p.length, p.is_zero) for p in cutter.finish()]
    run = (1 << 40) - 4092
    tail = (4 + (1 << 40)) % 4096 + 4
    run -= tail - 4
    expected = [(4096, False)] + [(1 << 31, True)] * (run >> 31) + [(run % (1 << 31), True), (tail, False)]
    assert pieces == expected


def test_a_cutter_serves_one_file_after_another() -> None:
    cutter = FileCutter()
    for data in (content([("noise", 2 * MIB)]), b"", content([("zeros", 100)]), content([("noise", 9)])):
        found = [(p.length, p.is_zero) for p in [*cutter.feed(data), *cutter.finish()]]
        assert found == cut_file_bytes(data)


def test_the_window_exports_no_buffer() -> None:
    # If it did, CPython 3.11 would crash when a cutter is collected in a cycle of garbage.
    cutter = FileCutter()
    assert b"".join(bytes(piece.data) for piece in (*cutter.feed(b"x" * 100), *cutter.finish())) == b"x" * 100
    cutter._window.release()


def test_cut_reports_only_what_is_certain() -> None:
    data = content([("noise", 3 * MIB)])
    whole = cut(data, final=True)
    assert whole == reference.fastcdc(data)
    assert cut(data[: 256 * KIB], final=True) == [256 * KIB]
    assert cut(data[: 256 * KIB], final=False) == []
    for end in (300 * KIB, MIB, 2 * MIB + 1):
        certain = cut(data[:end], final=False)
        assert certain == whole[: len(certain)]
        rest = cut(data[sum(certain) :], final=True, continued=True)
        assert certain + rest == whole


@pytest.mark.parametrize("edit", [b"!", b"!!" * 700, b""])
def test_an_edit_moves_few_boundaries(edit: bytes) -> None:
    data = content([("noise", 5 * MIB)]) * 2
    place = 3 * MIB + 4321
    edited = data[:place] + edit + data[place + (not edit) :]

    def chunks(whole: bytes) -> list[bytes]:
        out, at = [], 0
        for length, _ in cut_file_bytes(whole):
            out.append(whole[at : at + length])
            at += length
        return out

    before = chunks(data)
    known = set(before)
    assert sum(chunk not in known for chunk in chunks(edited)) <= 3
    assert len(before) > 20


def test_chunk_sizes_keep_their_bounds() -> None:
    data = b"".join(random.Random(seed).randbytes(4 * MIB) for seed in range(10))
    lengths = [length for length, _ in cut_file_bytes(data)]
    assert max(lengths) <= MIB
    assert min(lengths[:-1]) >= 64 * KIB
    assert 200 * KIB < len(data) / len(lengths) < 350 * KIB


def test_l23_l26_five_gibibytes_in_bounded_memory() -> None:
    block = random.Random(1).randbytes(8 * MIB - 5)
    cutter = FileCutter()
    tracemalloc.start()
    try:
        total = sum(piece.length for _ in range(641) for piece in cutter.feed(block))
        total += sum(piece.length for piece in cutter.finish())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 641 * len(block) > 5 << 30
    assert peak < 8 * MIB
