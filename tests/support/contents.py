"""File contents for tests: bytes become `layer.tree.Content`, chunk bytes are kept in a dict by chunk id.

Zero runs follow the format's cutting rule; what lies between is cut every 256 KiB instead of by FastCDC, so that tests
of images do not depend on the cutter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layerkit.core.hashing import chunk_id
from layerkit.layer.tree import INLINE_MAX, ZERO_CHUNK_ID, Chunk, Content

BLOCK = 4096
PIECE = 256 * 1024
ZERO_RUN_MIN = 64 * 1024
ZERO_CHUNK_MAX = 1 << 31

Chunks = dict[bytes, bytes]


def zero_runs(data: bytes) -> list[tuple[int, int]]:
    """The zero runs of a file as the format counts them: block-aligned, 64 KiB or more, or all of it."""
    runs = []
    at = 0
    while at < len(data):
        if data[at]:
            at += 1
            continue
        rest = data[at:].lstrip(b"\0")
        end = len(data) - len(rest)
        first = -(-at // BLOCK) * BLOCK
        last = end if end == len(data) else end // BLOCK * BLOCK
        if last - first >= ZERO_RUN_MIN or (first == 0 and last == len(data)):
            runs.append((first, last))
        at = end
    return runs


def body_of(data: bytes, chunks: Chunks) -> Content | bytes:
    """The body of a regular file with these bytes; new chunks go into `chunks`."""
    if len(data) <= INLINE_MAX:
        return data
    pieces: list[bytes | int] = []
    at = 0
    for first, last in zero_runs(data):
        pieces += [data[at:first], last - first]
        at = last
    pieces.append(data[at:])
    return content_of_pieces(pieces, chunks)


def content_of_pieces(pieces: Sequence[bytes | int], chunks: Chunks) -> Content:
    """A content of given bytes and, for each number, so many zeros; for sparse files too large to hold."""
    made: list[Chunk] = []
    for piece in pieces:
        if isinstance(piece, int):
            made += [Chunk(min(ZERO_CHUNK_MAX, piece - at), ZERO_CHUNK_ID) for at in range(0, piece, ZERO_CHUNK_MAX)]
            continue
        for at in range(0, len(piece), PIECE):
            part = piece[at : at + PIECE]
            made.append(Chunk(len(part), chunk_id(part)))
            chunks[made[-1].id] = part
    return Content(sum(chunk.length for chunk in made), tuple(made))


def extents(content: Content, chunks: Chunks) -> Iterator[tuple[int, int, bytes | None]]:
    """(offset, length, bytes or None for zeros) of each chunk."""
    at = 0
    for chunk in content.chunks:
        yield at, chunk.length, chunks[chunk.id] if chunk.id else None
        at += chunk.length


def hole_unit(size: int) -> int:
    """Bytes in which holes of a file of this size are counted: z of the format."""
    unit = ZERO_RUN_MIN
    while unit < -(-size // 8192):
        unit *= 2
    return unit


def hole_units(content: Content) -> list[bool]:
    """Whether each unit of the file is a hole: it lies within the zero chunks."""
    unit = hole_unit(content.size)
    mapped = [False] * -(-content.size // unit)
    at = 0
    for chunk in content.chunks:
        if chunk.id:
            for index in range(at // unit, (at + chunk.length - 1) // unit + 1):
                mapped[index] = True
        at += chunk.length
    return [not is_mapped for is_mapped in mapped]


def read(content: Content, chunks: Chunks, first: int, length: int) -> bytes:
    """Bytes of a content; the range may end behind its end."""
    parts = []
    for at, size, data in extents(content, chunks):
        start, end = max(at, first), min(at + size, first + length)
        if start < end:
            parts.append(data[start - at : end - at] if data is not None else bytes(end - start))
    return b"".join(parts)
