"""Where zstd frames begin and end in a stream of stored bytes (RFC 8878, section 3.1); one thread. `core` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from layerkit.errors import CorruptError

_MAGIC = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
_CONTENT_SIZE_SIZES = (0, 2, 4, 8)
_RLE, _RESERVED = 1, 3


class FrameWatch:
    """Hands a file's bytes through and follows the frames in them, block by block without looking inside."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._next: Callable[[bytes], None] = self._begin
        self._wanted = 4
        self._held = b""
        self._skip = 0
        self._has_checksum = False

    def read(self, size: int) -> bytes:
        """As of the file."""
        data = self._file.read(size)
        self._follow(data)
        return data

    def check_end(self) -> None:
        """Raise CorruptError when the bytes so far end within a frame."""
        if self._skip or self._held or self._next != self._begin:
            raise CorruptError("it ends within a zstd frame")

    def _follow(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            part = data[at : at + self._wanted - len(self._held)]
            at += len(part)
            self._held += part
            if len(self._held) == self._wanted:
                held, self._held = self._held, b""
                self._next(held)

    def _expect(self, step: Callable[[bytes], None], size: int, *, skip: int = 0) -> None:
        self._next, self._wanted, self._skip = step, size, skip

    def _begin(self, held: bytes) -> None:
        magic = int.from_bytes(held, "little")
        if magic in _SKIPPABLE:
            self._expect(self._skippable, 4)
        elif magic == _MAGIC:
            self._expect(self._descriptor, 1)
        else:
            raise CorruptError("something else than a frame of zstd stands between frames")

    def _skippable(self, held: bytes) -> None:
        self._expect(self._begin, 4, skip=int.from_bytes(held, "little"))

    def _descriptor(self, held: bytes) -> None:
        is_single, flag = held[0] >> 5 & 1, held[0] >> 6
        self._has_checksum = bool(held[0] & 4)
        size = _DICTIONARY_ID_SIZES[held[0] & 3] + (_CONTENT_SIZE_SIZES[flag] or is_single) + (not is_single)
        self._expect(self._block, 3, skip=size)

    def _block(self, held: bytes) -> None:
        word = int.from_bytes(held, "little")
        kind = word >> 1 & 3
        if kind == _RESERVED:
            raise CorruptError("a zstd block of a reserved type")
        size = 1 if kind == _RLE else word >> 3
        if word & 1:
            self._expect(self._begin, 4, skip=size + 4 * self._has_checksum)
        else:
            self._expect(self._block, 3, skip=size)
