"""Streams of zstd frames: bounded memory, and an end in the middle of a frame is never taken for the end."""

from __future__ import annotations

import io
import random
import tracemalloc

import pytest
import zstandard

from layerkit.core.zstd import FrameReader
from layerkit.errors import CorruptError

SKIPPABLE = b"\x5f\x2a\x4d\x18\x05\0\0\0hello"
PLAIN = random.Random(1).randbytes(200_000) + b"text " * 50_000 + bytes(300_000)


def frame(data: bytes, level: int = 3, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=level, **options).compress(data)


def streamed(data: bytes, **options: bool) -> bytes:
    """A frame without its size in the header."""
    compressor = zstandard.ZstdCompressor(**options).compressobj()
    return b"".join((compressor.compress(data), compressor.flush()))


FRAMES = {
    "sized": frame(PLAIN), "unsized": streamed(PLAIN), "checked": streamed(PLAIN, write_checksum=True),
    "small": frame(b"abc"), "empty": frame(b""), "raw": frame(PLAIN[:5000]), "zeros": frame(bytes(1 << 20)),
    "best": frame(PLAIN, 19, write_checksum=True),
}  # fmt: skip


def read(data: bytes, size: int = 1 << 16) -> bytes:
    reader = FrameReader(io.BytesIO(data))
    return b"".join(iter(lambda: reader.read(size), b""))


@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_every_kind(name: str) -> None:
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(FRAMES[name])
    assert read(FRAMES[name]) == plain
    assert read(SKIPPABLE + FRAMES[name] + SKIPPABLE * 2 + FRAMES[name] + SKIPPABLE) == plain * 2
    assert read(FRAMES[name] * 3, size=1000) == plain * 3


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_that_breaks_off_is_damage(name: str) -> None:
    data = FRAMES["small"] + FRAMES[name]
    first = len(FRAMES["small"])
    cuts = {*range(first + 1, min(first + 40, len(data))), *range(first + 40, len(data), 9973), len(data) - 1}
    for cut in cuts:
        with pytest.raises(CorruptError):
            read(data[:cut])


def test_bytes_between_frames_and_damage_inside_are_found() -> None:
    for data in (FRAMES["small"] + b"junk", b"junk" + FRAMES["small"], FRAMES["small"] + bytes(8)):
        with pytest.raises(CorruptError):
            read(data)
    damaged = bytearray(FRAMES["checked"])
    damaged[100_000] ^= 1
    with pytest.raises(CorruptError):
        read(bytes(damaged))


def test_a_bomb_is_read_in_bounded_memory() -> None:
    bomb = frame(bytes(256 << 20))
    assert len(bomb) < 16 << 10
    tracemalloc.start()
    reader = FrameReader(io.BytesIO(bomb))
    total = 0
    while part := reader.read(1 << 18):
        total += len(part)
    assert total == 256 << 20
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
