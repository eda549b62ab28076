"""Tar archives byte by byte, for what no tar program writes: damage, lies and rare dialects."""

from __future__ import annotations

import struct

BLOCK = 512
END = bytes(2 * BLOCK)


def octal(value: int, width: int) -> bytes:
    """A number as ustar writes it."""
    return b"%0*o\0" % (width - 1, value)


def base256(value: int, width: int) -> bytes:
    """A number as GNU tar writes what octal digits cannot hold."""
    if value < 0:
        return (value % (1 << (8 * width))).to_bytes(width, "big")
    return ((1 << (8 * width - 1)) | value).to_bytes(width, "big")


def header(
    name: bytes = b"file", *, kind: bytes = b"0", size: int | bytes = 0, mode: int | bytes = 0o644,
    uid: int | bytes = 0, gid: int | bytes = 0, mtime: int | bytes = 1_700_000_000, linkname: bytes = b"",
    magic: bytes = b"ustar\00000", major: int = 0, minor: int = 0, prefix: bytes = b"", tail: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:  # fmt: skip
    """One header block; numbers may be given as the bytes of their field."""

    def number(value: int | bytes, width: int) -> bytes:
        return value if isinstance(value, bytes) else octal(value, width)

    rest = (prefix.ljust(155, b"\0") + tail.ljust(12, b"\0"))[:167]
    block = struct.pack(
        "100s8s8s8s12s12s8sc100s8s32s32s8s8s167s", name, number(mode, 8), number(uid, 8), number(gid, 8),
        number(size, 12), number(mtime, 12), b" " * 8, kind, linkname, magic, b"root", b"root", octal(major, 8),
        octal(minor, 8), rest,
    )  # fmt: skip
    return reseal(block) if checksum is None else block[:148] + checksum.ljust(8, b"\0") + block[156:]


def reseal(block: bytes) -> bytes:
    """The header with the checksum that fits its bytes."""
    plain = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(plain) + block[156:]


def padded(data: bytes) -> bytes:
    """Data filled up to a block."""
    return data + bytes(-len(data) % BLOCK)


def member(name: bytes, data: bytes = b"", **fields: object) -> bytes:
    """A header with its data."""
    return header(name, size=fields.pop("size", len(data)), **fields) + padded(data)  # type: ignore[arg-type]


def record(key: bytes, value: bytes) -> bytes:
    """A PAX record: its length counts its own digits."""
    size = len(key) + len(value) + 3
    length = size + len(str(size))
    length = size + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """An extension header of these records."""
    return member(b"PaxHeader", b"".join(record(*pair) for pair in records), kind=kind)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """GNU tar's header for a name that does not fit."""
    return member(b"././@LongLink", name + b"\0", kind=kind, magic=b"ustar  \0")
