"""The numbers and records of tar headers, strictly: what cannot be read is an error, never zero. Pure; `build` only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from layerkit.errors import ArchiveError

# Python's tarfile writes floats, small ones with an exponent.
_TIME = re.compile(rb"(-?)(\d{1,18})(?:\.(\d{0,64}))?(?:[eE]([+-]?\d{1,2}))?")


def read_number(field: bytes, what: str) -> int:
    """A header's number: octal text, or base-256 where the first bit is set (GNU, for what octal cannot hold)."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big")
        bits = len(field) * 8
        # The bit after the marker is the sign: 0xff… is negative.
        return value - (1 << bits) if field[0] & 0x40 else value - (1 << (bits - 1))
    text = field.partition(b"\0")[0].strip(b" ")
    if not text:
        return 0
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise ArchiveError(f"damaged header: {what} {field!r} is no number")
    return int(text, 8)


def read_decimal(text: bytes, what: str) -> int:
    """A whole number of a PAX record; at most 20 digits."""
    if not text.removeprefix(b"-").isdigit() or len(text) > 20:
        raise ArchiveError(f"damaged PAX record: {what} {text[:40]!r} is no number")
    return int(text)


def read_time_ns(text: bytes) -> int:
    """A time of a PAX record in nanoseconds: decimal seconds, a fraction, also before 1970; rounded down."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ArchiveError(f"damaged PAX record: {text[:40]!r} is no time")
    fraction = match[3] or b""
    digits = int(match[2] + fraction) * (-1 if match[1] else 1)
    power = int(match[4] or 0) - len(fraction) + 9
    scale: int = 10 ** abs(power)
    return digits * scale if power >= 0 else digits // scale


def read_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records of a PAX header, `LENGTH KEY=VALUE\\n` each, in order (POSIX.1-2017, pax, Extended Header)."""
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 12].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = data[at + len(digits) + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length <= len(digits) + 1 or at + length > len(data) or record[-1:] != b"\n" or not equals or not key:
            raise ArchiveError("damaged PAX header: a record without length, name or end")
        yield key, value[:-1]
        at += length
