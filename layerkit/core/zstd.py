"""Zstandard with bounds: nothing inflates beyond what the caller expects. Pure functions, any thread."""

from __future__ import annotations

from typing import IO, cast

import zstandard

from layerkit.core.zstd_frames import FrameWatch
from layerkit.errors import CorruptError

DEFAULT_LEVEL = 3
# RFC 8878, 3.1.1.2: a block holds at most 128 KiB and takes at least 4 bytes, its header and one that is repeated.
_BLOCK_PLAIN_MAX, _BLOCK_STORED_MIN = 128 << 10, 4


def compress(data: bytes | bytearray | memoryview, level: int = DEFAULT_LEVEL) -> bytes:
    """One zstd frame that states its content size."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def decompress(
    data: bytes | bytearray | memoryview, *, max_bytes: int, what: str = "zstd frame", where: str = ""
) -> bytes:
    """The plain bytes of one frame from an untrusted source; `what` and `where` are for the error.

    Raises:
        CorruptError: not a zstd frame, no or too large a content size, or other length than stated.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= max_bytes:
            raise CorruptError(f"{what} claims {size} bytes, {max_bytes} are allowed", where=where)
        # Before memory is set aside for a claim that cannot be true.
        if size > (len(data) // _BLOCK_STORED_MIN + 1) * _BLOCK_PLAIN_MAX:
            raise CorruptError(f"{what} claims {size} bytes in {len(data)} stored ones", where=where)
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise CorruptError(f"{what} cannot be decompressed: {error}", where=where) from error


class FrameReader:
    """The plain bytes of a file of zstd frames, skippable ones included, for archives of any size; one thread.

    zstandard's own reader takes a frame that breaks off for the end of the file, and its other interface inflates
    whatever it is given at once; so its reader works here, and a watch over the stored bytes knows where frames end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._watch = FrameWatch(file)
        source = cast("IO[bytes]", self._watch)  # only its `read` is used
        self._plain = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)

    def read(self, size: int) -> bytes:
        """At most `size` bytes, b'' at the end.

        Raises:
            CorruptError: damaged, ends within a frame, or needs more memory than zstd allows unasked.
        """
        try:
            data: bytes = self._plain.read(size)
        except zstandard.ZstdError as error:
            raise CorruptError(str(error)) from error
        if not data:
            self._watch.check_end()
        return data
