"""Locators: where the chunks of one layer lie (docs/formats/locator.md); imported by publishers and readers.

A locator is parallel to the stored chunks of its layer's chunk index (those with an id, in order, duplicates
included) and holds no ids: what it leads to is checked against the chunk index. Read-only values, any thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from operator import ge

from layerkit.core.hashing import crc32c
from layerkit.core.zstd import compress, decompress
from layerkit.errors import CorruptError
from layerkit.store.columns import COLUMN, read_columns, table_to_bytes, to_bytes
from layerkit.store.frames import ChunkPlace, Frame, frame_problem

HEADER = struct.Struct("<4sHHIIIIII")
MAGIC = b"LKLO"
VERSION = 1
BODY_ZSTD = 1
PACK_SIZE = 32
FRAME_COLUMNS = 5
CHUNK_COLUMNS = 2
MAX_LOCATOR_BYTES = 256 << 20
MAX_PLAIN_BYTES = 1 << 30


class Locator:
    """Packs, frames in packs, and for each stored chunk its frame and its offset in the plain frame.

    Attributes:
        packs: 32-byte digests.
        frames: (number of the pack, frame).
        chunk_frame, chunk_offset: for each stored chunk.
    """

    def __init__(
        self, packs: list[bytes], frames: list[tuple[int, Frame]], chunk_frame: array[int], chunk_offset: array[int]
    ) -> None:
        self.packs = packs
        self.frames = frames
        self.chunk_frame = chunk_frame
        self.chunk_offset = chunk_offset

    def __len__(self) -> int:
        """The number of stored chunks, duplicates included."""
        return len(self.chunk_frame)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Locator) and vars(self) == vars(other)

    def place(self, number: int) -> ChunkPlace:
        """Where a stored chunk lies; IndexError beyond the end."""
        pack, frame = self.frames[self.chunk_frame[number]]
        return ChunkPlace(self.packs[pack], *frame, self.chunk_offset[number])

    @classmethod
    def build(cls, places: Iterable[ChunkPlace]) -> Locator:
        """The locator of a layer whose stored chunks, in order, lie at `places`."""
        packs: dict[bytes, int] = {}
        frames: dict[tuple[bytes, int], int] = {}
        frame_rows: list[tuple[int, Frame]] = []
        chunk_frame, chunk_offset = array(COLUMN), array(COLUMN)
        for place in places:
            known = (place.pack, place.frame_offset)
            number = frames.get(known)
            if number is None:
                number = frames[known] = len(frame_rows)
                frame_rows.append((packs.setdefault(place.pack, len(packs)), place.frame))
            elif frame_rows[number][1] != place.frame:
                raise CorruptError(f"two different frames at {place.frame_offset} of pack {place.pack.hex()}")
            chunk_frame.append(number)
            chunk_offset.append(place.offset)
        return cls(list(packs), frame_rows, chunk_frame, chunk_offset)

    def to_bytes(self) -> bytes:
        """The locator as it is stored."""
        body = b"".join(self.packs)
        body += table_to_bytes([(pack, *frame) for pack, frame in self.frames], FRAME_COLUMNS)
        body += to_bytes(self.chunk_frame) + to_bytes(self.chunk_offset)
        stored = compress(body)
        counts = (len(self.packs), len(self.frames), len(self.chunk_frame))
        return HEADER.pack(MAGIC, VERSION, BODY_ZSTD, *counts, len(body), crc32c(body), 0) + stored

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "locator") -> Locator:
        """Read a locator from an untrusted source.

        Raises:
            CorruptError: damage, or places outside packs or frames.
        """
        packs, frames, chunks, body = _read_body(data, where)
        frames_at = packs * PACK_SIZE
        chunks_at = frames_at + frames * FRAME_COLUMNS * 4
        names = [body[start : start + PACK_SIZE] for start in range(0, frames_at, PACK_SIZE)]
        pack_of, *columns = read_columns(body[frames_at:chunks_at], FRAME_COLUMNS)
        chunk_frame, chunk_offset = read_columns(body[chunks_at:], CHUNK_COLUMNS)
        rows = list(zip(pack_of, map(Frame, *columns), strict=True))
        for pack, frame in rows:
            problem = frame_problem(frame) or ("" if pack < packs else f"in pack {pack} of {packs}")
            if problem:
                raise CorruptError(f"frame at {frame.offset}: {problem}", where=where)
        if chunks and max(chunk_frame) >= frames:
            raise CorruptError(f"a chunk in frame {max(chunk_frame)} of {frames}", where=where)
        plain_length = columns[2]
        if chunks and any(map(ge, chunk_offset, map(plain_length.__getitem__, chunk_frame))):
            raise CorruptError("a chunk begins behind the end of its frame", where=where)
        return cls(names, rows, chunk_frame, chunk_offset)


def _read_body(data: bytes, where: str) -> tuple[int, int, int, bytes]:
    if len(data) < HEADER.size:
        raise CorruptError(f"a locator of {len(data)} bytes is too short", where=where)
    magic, version, codec, packs, frames, chunks, length, crc, reserved = HEADER.unpack(data[: HEADER.size])
    if (magic, version, codec, reserved) != (MAGIC, VERSION, BODY_ZSTD, 0):
        raise CorruptError("does not begin as a locator of a version that we know does", where=where)
    if length != packs * PACK_SIZE + frames * FRAME_COLUMNS * 4 + chunks * CHUNK_COLUMNS * 4:
        raise CorruptError("the locator's length does not fit its counts", where=where)
    if length > MAX_PLAIN_BYTES:
        raise CorruptError(f"a locator of {length} bytes", where=where)
    body = decompress(memoryview(data)[HEADER.size :], max_bytes=length, what="locator", where=where)
    if len(body) != length or crc32c(body) != crc:
        raise CorruptError("the locator's checksum or length is wrong", where=where)
    return packs, frames, chunks, body
