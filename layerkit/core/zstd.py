"""Zstandard with bounds: nothing inflates beyond what the caller expects. Pure functions, any thread."""

from __future__ import annotations

import zstandard

from layerkit.errors import CorruptError

DEFAULT_LEVEL = 3


def compress(data: bytes | bytearray | memoryview, level: int = DEFAULT_LEVEL) -> bytes:
    """One zstd frame that states its content size."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def decompress(data: bytes | bytearray | memoryview, *, max_bytes: int, what: str = "zstd frame") -> bytes:
    """The plain bytes of one frame from an untrusted source.

    Raises:
        CorruptError: not a zstd frame, no or too large a content size, or other length than stated.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= max_bytes:
            raise CorruptError(f"{what} claims {size} bytes, {max_bytes} are allowed")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise CorruptError(f"{what} cannot be decompressed: {error}") from error
