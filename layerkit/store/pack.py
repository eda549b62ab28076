"""Packs: frames one after the other with a footer that says which chunks they hold (docs/formats/pack.md).

Imported by the packer, by verification and by whoever learns chunk places. A builder belongs to one thread; a footer
is a read-only value.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from layerkit.core.hashing import CHUNK_ID_SIZE, crc32c
from layerkit.errors import CorruptError, MissingError
from layerkit.store.columns import read_columns, table_to_bytes
from layerkit.store.frames import ChunkPlace, Frame, frame_problem
from layerkit.store.keys import pack_key
from layerkit.store.objectstore import ObjectStore

HEADER = struct.Struct("<4sHHQ")
TRAILER = struct.Struct("<IIII4s4x")
HEADER_MAGIC = b"LKPK"
TRAILER_MAGIC = b"LKPF"
VERSION = 1
FRAME_ENTRY_SIZE = 16
CHUNK_ENTRY_SIZE = CHUNK_ID_SIZE + 12
MAX_PACK_BYTES = 1 << 30
# One request usually brings the whole footer: 64 KiB hold the entries of about 1,400 chunks.
_TAIL_GUESS = 64 << 10


class StoredChunk(NamedTuple):
    """A chunk that a pack holds."""

    id: bytes
    length: int
    place: ChunkPlace


class PackBuilder:
    """A pack that grows in memory, its digest with it.

    Args:
        limit: bytes of the whole pack; only one that holds a single frame may be larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray(HEADER.pack(HEADER_MAGIC, VERSION, 0, 0))
        self._digest = hashlib.sha256(self._data)
        self._frames: list[Frame] = []
        self._ids: list[bytes] = []
        self._chunks: list[tuple[int, int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no frame has been added."""
        return not self._frames

    def has_room(self, stored_length: int, chunks: int) -> bool:
        """Whether a frame of so many stored bytes and chunks keeps the pack within its limit."""
        footer = (len(self._frames) + 1) * FRAME_ENTRY_SIZE + (len(self._ids) + chunks) * CHUNK_ENTRY_SIZE
        return self.is_empty or len(self._data) + stored_length + footer + TRAILER.size <= self._limit

    def add_frame(self, stored: bytes, codec: int, chunks: Sequence[tuple[bytes, int]]) -> Frame:
        """Append a frame that holds the chunks (id, length) one after the other."""
        number = len(self._frames)
        offset = 0
        for chunk_id, length in chunks:
            self._ids.append(chunk_id)
            self._chunks.append((number, offset, length))
            offset += length
        frame = Frame(len(self._data), len(stored), offset, codec)
        self._frames.append(frame)
        self._data += stored
        self._digest.update(stored)
        return frame

    def finish(self) -> tuple[bytes, bytearray]:
        """Append the footer; returns the pack's digest and its bytes. The builder is used up."""
        body = table_to_bytes(self._frames, 4) + b"".join(self._ids) + table_to_bytes(self._chunks, 3)
        trailer = TRAILER.pack(len(body), crc32c(body), len(self._frames), len(self._ids), TRAILER_MAGIC)
        for part in (body, trailer):
            self._data += part
            self._digest.update(part)
        return self._digest.digest(), self._data


class PackFooter:
    """What a pack says about itself: its frames, and for each chunk id, frame, offset in the frame and length."""

    def __init__(self, frames: list[Frame], ids: bytes, columns: Sequence[array[int]]) -> None:
        self.frames = frames
        self._ids = ids
        self.chunk_frame, self.chunk_offset, self.chunk_length = columns

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self.chunk_frame)

    def chunks(self, pack: bytes) -> Iterator[StoredChunk]:
        """Every chunk with its place; `pack` is the pack's digest."""
        rows = zip(self.chunk_frame, self.chunk_offset, self.chunk_length, strict=True)
        for number, (frame, offset, length) in enumerate(rows):
            chunk_id = self._ids[number * CHUNK_ID_SIZE : (number + 1) * CHUNK_ID_SIZE]
            yield StoredChunk(chunk_id, length, ChunkPlace(pack, *self.frames[frame], offset))

    @classmethod
    def parse(cls, tail: bytes, pack_size: int, *, where: str = "") -> PackFooter:
        """Read the footer from the end of a pack.

        Args:
            tail: the last bytes of the pack, at least `footer_size` of them.
            pack_size: bytes of the whole pack.

        Raises:
            CorruptError: damage, or places outside the pack or its frames.
        """
        size = footer_size(tail, pack_size, where=where)
        if len(tail) < size:
            raise CorruptError(f"{len(tail)} of the footer's {size} bytes", where=where)
        _, crc, frame_count, chunk_count, _ = TRAILER.unpack(tail[-TRAILER.size :])
        body = tail[-size : -TRAILER.size]
        if crc32c(body) != crc:
            raise CorruptError("the footer's checksum is wrong", where=where)
        frames_end = frame_count * FRAME_ENTRY_SIZE
        ids_end = frames_end + chunk_count * CHUNK_ID_SIZE
        frames = list(map(Frame, *read_columns(body[:frames_end], 4)))
        footer = cls(frames, body[frames_end:ids_end], read_columns(body[ids_end:], 3))
        footer._check(pack_size - size, where)
        return footer

    def _check(self, data_end: int, where: str) -> None:
        end = HEADER.size
        for frame in self.frames:
            problem = frame_problem(frame)
            if not problem and not end <= frame.offset <= data_end - frame.stored_length:
                problem = "lies outside the pack or over its neighbour"
            if problem:
                raise CorruptError(f"frame at {frame.offset}: {problem}", where=where)
            end = frame.offset + frame.stored_length
        for number, offset, length in zip(self.chunk_frame, self.chunk_offset, self.chunk_length, strict=True):
            if number >= len(self.frames):
                raise CorruptError(f"a chunk in frame {number} of {len(self.frames)}", where=where)
            if not length or offset + length > self.frames[number].plain_length:
                raise CorruptError(f"a chunk of {length} bytes at {offset} lies outside its frame", where=where)


def footer_size(tail: bytes, pack_size: int, *, where: str = "") -> int:
    """How many bytes at the end of a pack its footer takes, trailer included; CorruptError when that cannot be."""
    if len(tail) < TRAILER.size or pack_size < len(tail):
        raise CorruptError(f"a pack of {pack_size} bytes is too short", where=where)
    length, _, frames, chunks, magic = TRAILER.unpack(tail[-TRAILER.size :])
    if magic != TRAILER_MAGIC:
        raise CorruptError("does not end as a pack does", where=where)
    if length != frames * FRAME_ENTRY_SIZE + chunks * CHUNK_ENTRY_SIZE:
        raise CorruptError("the footer's length does not fit its counts", where=where)
    if length + TRAILER.size + HEADER.size > pack_size:
        raise CorruptError("the footer is longer than the pack", where=where)
    return int(length) + TRAILER.size


def read_footer(objects: ObjectStore, pack: bytes) -> PackFooter:
    """Fetch and read the footer of a pack by its digest.

    Raises:
        MissingError: the pack is not in the store.
        CorruptError: the footer is damaged.
    """
    key = pack_key(pack)
    found = objects.stat(key)
    if found is None:
        raise MissingError("the pack is not in the store", where=key)
    if found.size > MAX_PACK_BYTES:
        raise CorruptError(f"a pack of {found.size} bytes", where=key)
    tail_size = min(found.size, _TAIL_GUESS)
    tail = objects.get_range(key, found.size - tail_size, tail_size)
    size = footer_size(tail, found.size, where=key)
    if size > tail_size:
        tail = objects.get_range(key, found.size - size, size)
    return PackFooter.parse(tail, found.size, where=key)


