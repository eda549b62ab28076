"""BLAKE3 for chunks and CRC-32C for images: the one home of the hash libraries. Pure functions, any thread."""

from __future__ import annotations

import blake3

from layerkit.core._core import ffi, lib

CHUNK_ID_SIZE = 32


def chunk_id(data: bytes | bytearray | memoryview) -> bytes:
    """The 32 bytes of BLAKE3-256 over a chunk's plain bytes."""
    return blake3.blake3(data).digest()


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0xFFFFFFFF) -> int:
    """CRC-32C without final inversion, as erofs_superblock_csum uses it (Linux fs/erofs/super.c)."""
    return int(lib.lk_crc32c(crc, ffi.from_buffer(data), len(data)))
