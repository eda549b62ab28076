"""The other two faces of a metadata image: flat (one file, device table kept) and old (no device table).

Pure functions, any thread. Linux since 6.4 takes a flat view without `device=` (fs/erofs/super.c: `flatdev`); older
kernels, and tools that know no devices, take the old view, an ordinary single-device EROFS. See
docs/formats/meta-image.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from layerkit.core.erofs_writer import (
    BLOCK_SIZE,
    CHECKSUM_OFFSET,
    SUPERBLOCK_OFFSET,
    check_superblock,
    superblock_checksum,
)
from layerkit.errors import CorruptError, LimitError, UnsupportedError

Bytes = bytes | bytearray | memoryview

CHECKSUM_FEATURE = 0x1
DEVICE_TABLE_FEATURE = 0x8
DEVICE_SLOT_SIZE = 128
_COMPAT_OFFSET = SUPERBLOCK_OFFSET + 8
_BLOCKS_OFFSET = SUPERBLOCK_OFFSET + 36
_INCOMPAT_OFFSET = SUPERBLOCK_OFFSET + 80
_DEVICES_OFFSET = SUPERBLOCK_OFFSET + 86
_SLOT_BLOCKS_OFFSET = 64


class _Device(NamedTuple):
    slot: int
    blocks: int
    mapped_block: int


def _find_device(meta: Bytes) -> _Device | None:
    check_superblock(meta)
    (incompat,) = struct.unpack_from("<I", meta, _INCOMPAT_OFFSET)
    count, slot = struct.unpack_from("<HH", meta, _DEVICES_OFFSET)
    if not incompat & DEVICE_TABLE_FEATURE or not count:
        return None
    if count > 1:
        raise UnsupportedError(f"{count} external devices; the views know one", where="metadata image")
    slot *= DEVICE_SLOT_SIZE
    if slot < SUPERBLOCK_OFFSET + 128 or slot + DEVICE_SLOT_SIZE > BLOCK_SIZE:
        raise CorruptError("the device slot lies outside the first block", where="metadata image")
    blocks, mapped_block = struct.unpack_from("<II", meta, slot + _SLOT_BLOCKS_OFFSET)
    if mapped_block * BLOCK_SIZE < len(meta):
        raise CorruptError("the device begins within the metadata", where="metadata image")
    return _Device(slot, blocks, mapped_block)


def flat_view(meta: Bytes) -> bytes:
    """The metadata padded to where the data begins: followed by the data, it mounts without `device=`.

    Raises:
        CorruptError: no metadata image, or one whose device begins within the metadata.
        UnsupportedError: more than one external device.
    """
    device = _find_device(meta)
    padding = device.mapped_block * BLOCK_SIZE - len(meta) if device else 0
    return bytes(meta) + bytes(padding)


def old_view(meta: Bytes) -> bytes:
    """The flat view without its device table: followed by the data, an EROFS for any kernel since 5.15.

    Raises:
        CorruptError, UnsupportedError: as `flat_view`.
        LimitError: metadata and data take more blocks than a superblock can count.
    """
    device = _find_device(meta)
    if device is None:
        return bytes(meta)
    total = device.mapped_block + device.blocks
    if total > 0xFFFFFFFF:
        raise LimitError("metadata and data take more than 2^32 blocks of 4 KiB")
    image = bytearray(flat_view(meta))
    (compat,) = struct.unpack_from("<I", image, _COMPAT_OFFSET)
    (incompat,) = struct.unpack_from("<I", image, _INCOMPAT_OFFSET)
    struct.pack_into("<I", image, _INCOMPAT_OFFSET, incompat & ~DEVICE_TABLE_FEATURE)
    struct.pack_into("<I", image, _BLOCKS_OFFSET, total)
    struct.pack_into("<HH", image, _DEVICES_OFFSET, 0, 0)
    image[device.slot : device.slot + DEVICE_SLOT_SIZE] = bytes(DEVICE_SLOT_SIZE)
    if compat & CHECKSUM_FEATURE:
        struct.pack_into("<I", image, CHECKSUM_OFFSET, superblock_checksum(image))
    return bytes(image)
