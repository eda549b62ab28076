"""Mutations of binary images: seeded, aware of field sizes, and of the checksum that would hide all else."""

from __future__ import annotations

import random

from tests.core.erofs_by_hand import sealed

SUPERBLOCK = 1024
INTERESTING = (0, 1, 2, 3, 7, 11, 12, 31, 32, 127, 128, 255, 256, 4095, 4096, 4097, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF,
               0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


def used_ranges(image: bytes) -> list[int]:
    """Starts of 32-byte slots that hold anything: mutations of padding find nothing."""
    return [at for at in range(0, len(image), 32) if any(image[at : at + 32])] or [0]


def mutate(source: random.Random, image: bytes, slots: list[int]) -> bytes:
    """The image with one to eight changes."""
    out = bytearray(image)
    for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
        at = min(source.choice(slots) + source.randrange(32), len(out) - 1)
        if source.random() < 0.15:
            at = SUPERBLOCK + source.randrange(128 + 128)
        change(source, out, at, slots)
        if not out:
            break
    if len(out) >= 4096 and source.random() < 0.9:
        return sealed(out)
    return bytes(out)


def change(source: random.Random, out: bytearray, at: int, slots: list[int]) -> None:
    kind = source.randrange(8)
    width = source.choice((1, 2, 4, 8))
    at = min(at - at % width, max(0, len(out) - width))
    if kind == 0:
        out[at] ^= 1 << source.randrange(8)
    elif kind == 1:
        out[at : at + width] = (source.choice(INTERESTING) & (1 << 8 * width) - 1).to_bytes(width, "little")
    elif kind == 2:
        value = int.from_bytes(out[at : at + width], "little") + source.choice((-33, -12, -1, 1, 2, 12, 32, 64))
        out[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    elif kind == 3:
        out[at : at + width] = source.randbytes(width)
    elif kind == 4:
        start, size = source.choice(slots), source.choice((4, 12, 32, 64, 256))
        part = out[start : start + size]
        out[at : at + len(part)] = part[: max(0, len(out) - at)]
    elif kind == 5:
        # A number of something that is there: another inode, the start of another part.
        value = source.choice(slots) // source.choice((1, 4, 32, 4096))
        out[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    elif kind == 6 and source.random() < 0.2:
        del out[max(1, source.randrange(len(out))) :]
    else:
        out[at : at + width] = bytes(width)
