"""Bits in a buffer, least significant first within a byte: the arithmetic of presence maps. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, overload


class Bits(Protocol):
    """A bytes-like object: bytes, bytearray, memoryview, mmap."""

    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> bytes | bytearray | memoryview: ...


_WORD = 4096
"""Bits looked at in one big integer; larger ones make the bit loop quadratic."""


def byte_count(bits: int) -> int:
    """Bytes that hold so many bits."""
    return (bits + 7) // 8


def _window(buffer: Bits, base: int, first: int, last: int) -> int:
    start = base + (first >> 3)
    raw = int.from_bytes(buffer[start : base + (last >> 3) + 1], "little") >> (first & 7)
    return raw & ((1 << (last - first + 1)) - 1)


def all_set(buffer: Bits, base: int, first: int, last: int) -> bool:
    """Whether every bit from `first` to `last` (inclusive) is set; the bits begin at byte `base`."""
    return _window(buffer, base, first, last) == (1 << (last - first + 1)) - 1


def clear_numbers(buffer: Bits, base: int, first: int, last: int) -> list[int]:
    """The numbers of the clear bits from `first` to `last` (inclusive), ascending."""
    numbers = []
    for start in range(first, last + 1, _WORD):
        end = min(start + _WORD - 1, last)
        rest = _window(buffer, base, start, end) ^ ((1 << (end - start + 1)) - 1)
        while rest:
            low = rest & -rest
            numbers.append(start + low.bit_length() - 1)
            rest ^= low
    return numbers


def count_set(buffer: Bits, base: int, bits: int) -> int:
    """How many of the first `bits` bits are set."""
    return _window(buffer, base, 0, bits - 1).bit_count() if bits else 0


def is_set(buffer: Bits, base: int, number: int) -> bool:
    """Whether one bit is set."""
    return bool(buffer[base + (number >> 3)] >> (number & 7) & 1)


def set_bits(buffer: bytearray, numbers: Iterable[int]) -> None:
    """Set bits of a bytearray."""
    for number in numbers:
        buffer[number >> 3] |= 1 << (number & 7)


def clear_bits(buffer: bytearray, numbers: Iterable[int]) -> None:
    """Clear bits of a bytearray."""
    for number in numbers:
        buffer[number >> 3] &= ~(1 << (number & 7)) & 0xFF


def merge(target: bytearray, source: bytes) -> None:
    """target |= source, of equal length."""
    value = int.from_bytes(target, "little") | int.from_bytes(source, "little")
    target[:] = value.to_bytes(len(target), "little")
