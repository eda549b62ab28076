"""Files in, contents out: cuts, hashes and packs what a source holds. `build` only; one thread.

A chunk that no pack is known to hold goes to the sink at once. One that is known waits: whether its foreign frame is
worth reading from is decided for the whole layer later (`build.places`), and what is not is read from its source again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from layerkit.build.pieces import Piece
from layerkit.core.fastcdc import ZERO_RUN_SIZE, FileCutter, cut_file_bytes, is_zero
from layerkit.core.hashing import chunk_id
from layerkit.errors import LimitError, SourceChangedError
from layerkit.layer.contents import canonical_chunks
from layerkit.layer.tree import INLINE_MAX, ZERO_CHUNK_ID, Chunk, Content

WHOLE_MAX = 1 << 20
"""Files up to this many bytes are cut in one go; larger ones through a window, so that memory stays bounded."""

MAX_FILE_SIZE = 1 << 50
"""Larger ones only occur as holes; the zero chunks of this one take 50 MB."""


class ChunkSink(Protocol):
    """Where chunks go: `store.packer.Packer`."""

    def add(self, chunk_id: bytes, data: bytes) -> bool:
        """Take a chunk; False for one that it has already."""
        ...


class Ingester:
    """Turns files into contents.

    Args:
        sink: takes the chunks that are wanted.
        is_wanted: whether the sink shall have a chunk, by its id.
    """

    def __init__(self, sink: ChunkSink, is_wanted: Callable[[bytes], bool]) -> None:
        self._sink = sink
        self._is_wanted = is_wanted
        self._cutter = FileCutter()
        self.plain_bytes = 0

    def read(self, pieces: Iterable[Piece], size: int, path: bytes) -> Content | bytes:
        """The content of one file: its bytes up to INLINE_MAX, else chunks.

        Args:
            pieces: its bytes in order, holes as numbers.
            size: how many bytes there must be.
            path: for errors.

        Raises:
            SourceChangedError: it became longer or shorter while it was read.
            LimitError: it is larger than any file can be.
        """
        if size > MAX_FILE_SIZE:
            raise LimitError(f"a file of {size} bytes, {MAX_FILE_SIZE} are the limit", where=_shown(path))
        try:
            body, total = self._read(pieces, size)
        except BaseException:
            self._cutter = FileCutter()  # the old one holds a part of this file
            raise
        if total != size:
            raise SourceChangedError(f"{total} bytes were read of a file of {size}", where=_shown(path))
        self.plain_bytes += size
        return body

    def _read(self, pieces: Iterable[Piece], size: int) -> tuple[Content | bytes, int]:
        if size <= WHOLE_MAX:
            data = b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in pieces)
            total = len(data)
            return data if total <= INLINE_MAX else Content(total, tuple(self._cut_whole(data))), total
        chunks = canonical_chunks(tuple(self._cut_stream(pieces)))
        total = sum(chunk.length for chunk in chunks)
        return Content(total, chunks), total

    def _cut_whole(self, data: bytes) -> Iterator[Chunk]:
        # The first byte nearly always says that a small file is not all zeros.
        cuts = [(len(data), not data[0] and is_zero(data))] if len(data) < ZERO_RUN_SIZE else cut_file_bytes(data)
        if len(cuts) == 1 and not cuts[0][1]:
            yield self._chunk(data)
            return
        at = 0
        for length, all_zeros in cuts:
            yield Chunk(length, ZERO_CHUNK_ID) if all_zeros else self._chunk(data[at : at + length])
            at += length

    def _cut_stream(self, pieces: Iterable[Piece]) -> Iterator[Chunk]:
        cutter = self._cutter
        for piece in pieces:
            for part in cutter.feed(piece) if isinstance(piece, bytes) else cutter.feed_hole(piece):
                yield Chunk(part.length, ZERO_CHUNK_ID) if part.is_zero else self._chunk(part.data)
        for part in cutter.finish():
            yield Chunk(part.length, ZERO_CHUNK_ID) if part.is_zero else self._chunk(part.data)

    def _chunk(self, data: bytes | memoryview) -> Chunk:
        digest = chunk_id(data)
        if self._is_wanted(digest):
            self._sink.add(digest, bytes(data))
        return Chunk(len(data), digest)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
