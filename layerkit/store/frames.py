"""Frames: the unit in which chunks are compressed and fetched; imported by everything that reads or writes packs.

Pure but for `read_frame`; safe in any thread. Whoever takes a chunk out of a frame checks its id
(`core.hashing.chunk_id`): a frame proves only its length.
"""

from __future__ import annotations

from typing import NamedTuple

from layerkit.core.zstd import decompress
from layerkit.errors import CorruptError
from layerkit.store.keys import pack_key
from layerkit.store.objectstore import ObjectStore

CODEC_RAW = 0
CODEC_ZSTD = 1
CODECS = (CODEC_RAW, CODEC_ZSTD)

MAX_FRAME_BYTES = 16 << 20
"""No frame is larger, plain or stored; what claims to be is refused before memory is set aside for it."""


class Frame(NamedTuple):
    """Where a frame lies in its pack and what it becomes: `plain_length` bytes, by `codec`."""

    offset: int
    stored_length: int
    plain_length: int
    codec: int


class ChunkPlace(NamedTuple):
    """Where a chunk lies: a frame of a pack (by its 32-byte digest) and the chunk's offset in the plain frame."""

    pack: bytes
    frame_offset: int
    stored_length: int
    plain_length: int
    codec: int
    offset: int

    @property
    def frame(self) -> Frame:
        """The frame alone."""
        return Frame(self.frame_offset, self.stored_length, self.plain_length, self.codec)


def frame_problem(frame: Frame) -> str:
    """What is impossible about a frame that an untrusted table describes; '' when nothing is."""
    if frame.codec not in CODECS:
        return f"unknown codec {frame.codec}"
    if not 0 < frame.plain_length <= MAX_FRAME_BYTES or not 0 < frame.stored_length <= MAX_FRAME_BYTES:
        return f"impossible lengths {frame.stored_length} and {frame.plain_length}"
    if frame.codec == CODEC_RAW and frame.stored_length != frame.plain_length:
        return "raw, but its two lengths differ"
    return ""


def decode_frame(frame: Frame, stored: bytes | memoryview, *, where: str = "") -> bytes:
    """The plain bytes of a frame.

    Args:
        stored: what was fetched; it must have exactly the stored length.

    Raises:
        CorruptError: other length than said, or not what the codec makes.
    """
    what = f"frame at {frame.offset}"
    problem = frame_problem(frame)
    if problem:
        raise CorruptError(f"{what}: {problem}", where=where)
    if len(stored) != frame.stored_length:
        raise CorruptError(f"{what}: {len(stored)} of {frame.stored_length} bytes", where=where)
    if frame.codec == CODEC_RAW:
        return bytes(stored)
    plain = decompress(stored, max_bytes=frame.plain_length, what=what, where=where)
    if len(plain) != frame.plain_length:
        raise CorruptError(f"{what}: {len(plain)} plain bytes instead of {frame.plain_length}", where=where)
    return plain


def read_frame(objects: ObjectStore, pack: bytes, frame: Frame) -> bytes:
    """Fetch one frame of a pack by its digest; raises what the store answers, CorruptError for wrong bytes."""
    key = pack_key(pack)
    problem = frame_problem(frame)
    if problem:
        raise CorruptError(f"frame at {frame.offset}: {problem}", where=key)
    return decode_frame(frame, objects.get_range(key, frame.offset, frame.stored_length), where=key)
