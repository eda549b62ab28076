"""What files held when they were last read, by what the file system says of them. `build` only; one thread.

The key holds ctime, which no user can set back: a file whose bytes changed under the same size and mtime is read anew.
A file that changed in the last moments is not remembered, because a second change within one clock tick would not show.
Nor is anything on a read-only file system: images of that kind have ctimes that were made up when they were built, and
another one may be mounted under the same device number tomorrow.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from layerkit._util.canonical import canonical_json
from layerkit.build.host_tree import stat_key
from layerkit.core.hashing import CHUNK_ID_SIZE
from layerkit.errors import CorruptError
from layerkit.layer.facts import FileFacts, from_json, to_json
from layerkit.layer.json_fields import Fields
from layerkit.layer.tree import INLINE_MAX, Chunk, Content

_NUMBER_SIZE = 12  # times in nanoseconds go beyond 64 bits on file systems that reach the year 2446
_NUMBERS = struct.Struct("<QIQIQIQIQI")  # five of them, as nearly all are: below 2^64
HEAD = struct.Struct("<BBHI")  # version, 1: inline bytes follow, bytes of inline data, number of chunks
LENGTH = struct.Struct("<QB")  # length, 1: all zeros
VERSION = 1
SETTLED_NS = 2_000_000_000


Find = Callable[[bytes], bytes | None]
"""A record by its key, None when it is not known."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What a file held, and what was learnt from it."""

    body: Content | bytes
    fact: FileFacts | None


class FileCache:
    """Known files during one scan.

    Attributes:
        new: records of files that were read, for the table to keep.

    Args:
        find: looks a record up.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._file_systems: dict[int, bytes | None] = {}
        self.new: list[tuple[bytes, bytes]] = []

    def find(self, fd: int, status: os.stat_result) -> KnownFile | None:
        """What the file held, or None when it is not known in this state.

        Args:
            fd: the open file.
            status: what fstat said of it before it was read.
        """
        file_system = self._file_system(fd, status.st_dev)
        value = self._find(_key(file_system, status)) if file_system is not None else None
        if value is None:
            return None
        try:
            known = _decode(value)
        except (CorruptError, struct.error, ValueError):
            return None  # knowledge may be damaged at any time; the file itself is there
        size = len(known.body) if isinstance(known.body, bytes) else known.body.size
        return known if size == status.st_size else None

    def add(self, fd: int, status: os.stat_result, known: KnownFile) -> None:
        """Remember a file; arguments as of `find`."""
        file_system = self._file_system(fd, status.st_dev)
        if file_system is not None and time.time_ns() - status.st_ctime_ns >= SETTLED_NS:
            self.new.append((_key(file_system, status), _encode(known)))

    def _file_system(self, fd: int, device: int) -> bytes | None:
        """What tells a file system from the next one with its device number; None for a read-only one."""
        if device not in self._file_systems:
            found = os.fstatvfs(fd)
            is_fixed = found.f_flag & os.ST_RDONLY
            self._file_systems[device] = None if is_fixed else found.f_fsid.to_bytes(8, "little")
        return self._file_systems[device]


def _key(file_system: bytes, status: os.stat_result) -> bytes:
    device, inode, size, mtime_ns, ctime_ns = stat_key(status)
    try:
        return file_system + _NUMBERS.pack(device, 0, inode, 0, size, 0, mtime_ns, 0, ctime_ns, 0)
    except struct.error:  # a number that is negative or beyond 64 bits
        return _long_key(file_system, status)


def _long_key(file_system: bytes, status: os.stat_result) -> bytes:
    return file_system + b"".join(number.to_bytes(_NUMBER_SIZE, "little", signed=True) for number in stat_key(status))


def _encode(known: KnownFile) -> bytes:
    inline = known.body if isinstance(known.body, bytes) else b""
    chunks: Sequence[Chunk] = () if isinstance(known.body, bytes) else known.body.chunks
    parts = [HEAD.pack(VERSION, isinstance(known.body, bytes), len(inline), len(chunks)), inline]
    for length, digest in chunks:
        parts += [LENGTH.pack(length, not digest), digest]
    if known.fact is not None:
        parts.append(canonical_json(to_json(known.fact)))
    return b"".join(parts)


def _decode(value: bytes) -> KnownFile:
    version, is_inline, inline_size, count = HEAD.unpack_from(value)
    at = HEAD.size + inline_size
    if version != VERSION or inline_size > INLINE_MAX or at > len(value):
        raise CorruptError("a known file of another form")
    chunks, total = [], 0
    for _ in range(count):
        length, all_zeros = LENGTH.unpack_from(value, at)
        at += LENGTH.size
        digest = b"" if all_zeros else value[at : at + CHUNK_ID_SIZE]
        at += len(digest)
        total += length
        chunks.append(Chunk(length, digest))
    body = value[HEAD.size : HEAD.size + inline_size] if is_inline else Content(total, tuple(chunks))
    fact = from_json(Fields(_object(value[at:]), "fact")) if at < len(value) else None
    return KnownFile(body, fact)


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise CorruptError("a fact that is no object")
    return value
