"""The slow, plain reference of docs/formats/chunking.md, written from the page and not from the C code."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK, ZERO_RUN = 4096, 64 << 10
MIN, NORMAL, MAX = 64 << 10, 256 << 10, 1 << 20
ZERO_PIECE_MAX = 1 << 31
MASK64 = (1 << 64) - 1
SEED = int.from_bytes(b"layerkit", "big")


def gear_table() -> list[int]:
    def outputs() -> Iterator[int]:
        state = SEED
        while True:
            state = (state + 0x9E3779B97F4A7C15) & MASK64
            z = state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
            yield z ^ (z >> 31)

    source = outputs()
    return [next(source) for _ in range(256)]


GEAR = gear_table()


def fastcdc(segment: bytes) -> list[int]:
    """Chunk lengths of a segment that is longer than NORMAL."""
    lengths = []
    start = 0
    while start < len(segment):
        length = first_cut(segment[start : start + MAX])
        lengths.append(length)
        start += length
    return lengths


def first_cut(data: bytes) -> int:
    gear = 0
    for at in range(max(0, MIN - 64), len(data)):
        gear = ((gear << 1) + GEAR[data[at]]) & MASK64
        length = at + 1
        if length >= MIN and gear >> (44 if length < NORMAL else 48) == 0:
            return length
    return len(data)


def kept_zero_runs(data: bytes) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for start in range(0, len(data), BLOCK):
        end = min(start + BLOCK, len(data))
        if any(data[start:end]):
            continue
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return [(start, end) for start, end in runs if end - start >= ZERO_RUN or (start, end) == (0, len(data))]


def cut_file(data: bytes) -> list[tuple[int, bool]]:
    pieces: list[tuple[int, bool]] = []
    at = 0
    for start, end in [*kept_zero_runs(data), (len(data), len(data))]:
        segment = data[at:start]
        if segment:
            lengths = [len(segment)] if len(segment) <= NORMAL else fastcdc(segment)
            pieces += [(length, False) for length in lengths]
        for run_at in range(start, end, ZERO_PIECE_MAX):
            pieces.append((min(ZERO_PIECE_MAX, end - run_at), True))
        at = end
    return pieces
