"""Contents of regular files: their one canonical form, equality, checks; imported by rank 2 up. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from layerkit.core.hashing import CHUNK_ID_SIZE
from layerkit.errors import InputError
from layerkit.layer.tree import INLINE_MAX, ZERO_CHUNK_ID, Chunk, Content

ZERO_CHUNK_MAX = 1 << 31
"""Longest zero chunk of a Content, in bytes; longer runs are several."""

CHUNK_MAX = 1 << 20
"""Longest stored chunk, in bytes (docs/formats/chunking.md)."""


def zero_chunks(length: int) -> Iterator[Chunk]:
    """A run of zeros as chunks: as few as possible, the longest first."""
    while length > ZERO_CHUNK_MAX:
        yield Chunk(ZERO_CHUNK_MAX, ZERO_CHUNK_ID)
        length -= ZERO_CHUNK_MAX
    if length:
        yield Chunk(length, ZERO_CHUNK_ID)


def runs(chunks: Iterable[Chunk]) -> Iterator[tuple[int, bytes]]:
    """(length, id) of the chunks with neighbouring zero chunks joined to one run, however long, with the id b''."""
    zeros = 0
    for length, chunk_id in chunks:
        if not chunk_id:
            zeros += length
            continue
        if zeros:
            yield zeros, ZERO_CHUNK_ID
            zeros = 0
        yield length, chunk_id
    if zeros:
        yield zeros, ZERO_CHUNK_ID


def canonical_chunks(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """The same bytes with every run of zeros spelt in the one canonical way."""
    if all(chunk.id for chunk in chunks):
        return chunks
    result: list[Chunk] = []
    for length, chunk_id in runs(chunks):
        if chunk_id:
            result.append(Chunk(length, chunk_id))
        else:
            result.extend(zero_chunks(length))
    return tuple(result)


def same_body(one: object, other: object) -> bool:
    """Whether two non-directory bodies hold the same bytes, however their zeros are cut."""
    if one is other:
        return True
    if isinstance(one, Content) and isinstance(other, Content):
        return one.size == other.size and (
            one.chunks == other.chunks or canonical_chunks(one.chunks) == canonical_chunks(other.chunks)
        )
    return type(one) is type(other) and one == other


def check_content(content: Content, where: str) -> None:
    """Refuse a Content that no layer can hold: callers of `build_image` make them, so this is their mistake.

    Raises:
        InputError: lengths that do not add up, chunks out of bounds, or a file small enough to be inline.
    """
    total = 0
    for length, chunk_id in content.chunks:
        if length <= 0 or (chunk_id and (length > CHUNK_MAX or len(chunk_id) != CHUNK_ID_SIZE)):
            raise InputError(f"a chunk of {length} bytes with an id of {len(chunk_id)}", where=where)
        total += length
    if total != content.size:
        raise InputError(f"chunks hold {total} bytes, the file has {content.size}", where=where)
    if total <= INLINE_MAX:
        raise InputError(f"a file of {total} bytes is kept as bytes, not as chunks", where=where)
