"""Presence maps: which stored chunks of a layer its data file holds. The format is docs/formats/presence.md.

Imported by the rest of `fuse`. One process writes (hostd, which holds the home's lock), any process reads. VolatileMap
is safe for many threads; the durable functions write whole files.

Invariants:
- A volatile bit is set after the chunk's verified bytes have been written, never before, and is trusted by readers.
- A volatile map counts for one boot and one data file; with any other it is made anew, empty.
- A durable bit is written after fdatasync of the data. It is a claim, *present but unverified*: whoever uses it after
  a start hashes the chunk first.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from layerkit._util.files import make_dirs, temp_name, write_durable
from layerkit._util.processes import boot_id
from layerkit.errors import CorruptError
from layerkit.fuse import bitmaps
from layerkit.fuse.data_file import IDENTITY_SIZE, DataIdentity
from layerkit.ids import digest_hex

VERSION = 1
_VOLATILE_MAGIC, _DURABLE_MAGIC = b"LKPV", b"LKPD"
_HEAD = struct.Struct(f"<4sHHQ16s{IDENTITY_SIZE}s32s")  # magic, version, header size, bits, boot id, data file, layer
_COUNT_AT = 104
HEADER_SIZE = 128
_SUM_SIZE = 32


def _header(magic: bytes, layer: str, identity: DataIdentity, bits: int, boot: bytes) -> bytes:
    head = _HEAD.pack(magic, VERSION, HEADER_SIZE, bits, boot, identity.pack(), bytes.fromhex(digest_hex(layer)))
    return head.ljust(HEADER_SIZE, b"\0")


class VolatileMap:
    """A mapped bitmap that serving processes read while hostd sets bits.

    Attributes:
        bits: number of stored chunks.
        identity: the data file that it speaks of.
    """

    def __init__(self, mapped: mmap.mmap, bits: int, identity: DataIdentity) -> None:
        self._map = mapped
        self._lock = threading.Lock()
        self.bits = bits
        self.identity = identity

    @classmethod
    def create_or_open(cls, path: Path, layer: str, identity: DataIdentity, bits: int) -> Self:
        """The map for writing. One of another boot, layer or data file is replaced by an empty one."""
        header = _header(_VOLATILE_MAGIC, layer, identity, bits, uuid.UUID(boot_id()).bytes)
        size = HEADER_SIZE + bitmaps.byte_count(bits)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = -1
        if fd >= 0 and not (os.fstat(fd).st_size == size and os.pread(fd, _COUNT_AT, 0) == header[:_COUNT_AT]):
            os.close(fd)
            fd = -1
        if fd < 0:
            fd = _create(path, header, size)
        try:
            mapped = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        result = cls(mapped, bits, identity)
        result._write_count(bitmaps.count_set(mapped, HEADER_SIZE, bits))
        return result

    @classmethod
    def open_for_reading(cls, path: Path, layer: str) -> Self:
        """The map as a serving process sees it.

        Raises:
            FileNotFoundError: there is none.
            CorruptError: it is not this layer's map, or not of this boot.
        """
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_SIZE:
                raise CorruptError("presence map is too short", where=str(path))
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        magic, version, header_size, bits, boot, identity, digest = _HEAD.unpack_from(mapped)
        if (magic, version, header_size) != (_VOLATILE_MAGIC, VERSION, HEADER_SIZE):
            raise CorruptError("not a presence map of this version", where=str(path))
        if size != HEADER_SIZE + bitmaps.byte_count(bits) or digest.hex() != digest_hex(layer):
            raise CorruptError("presence map of another layer or length", where=str(path))
        if boot != uuid.UUID(boot_id()).bytes:
            raise CorruptError("presence map of another boot", where=str(path))
        return cls(mapped, bits, DataIdentity.unpack(identity))

    def _write_count(self, count: int) -> None:
        self._map[_COUNT_AT : _COUNT_AT + 8] = count.to_bytes(8, "little")

    @property
    def count(self) -> int:
        """How many chunks are present."""
        return int.from_bytes(self._map[_COUNT_AT : _COUNT_AT + 8], "little")

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is present."""
        return self.count == self.bits

    def has(self, number: int) -> bool:
        """Whether one chunk is present."""
        return bitmaps.is_set(self._map, HEADER_SIZE, number)

    def has_all(self, first: int, last: int) -> bool:
        """Whether every chunk from `first` to `last` (inclusive) is present."""
        return bitmaps.all_set(self._map, HEADER_SIZE, first, last)

    def absent(self, first: int, last: int) -> list[int]:
        """The absent ones among the chunks from `first` to `last` (inclusive), ascending."""
        return bitmaps.clear_numbers(self._map, HEADER_SIZE, first, last)

    def mark(self, numbers: Iterable[int]) -> None:
        """Mark chunks whose verified bytes have been written."""
        with self._lock:
            count = self.count
            for number in numbers:
                at, bit = HEADER_SIZE + (number >> 3), 1 << (number & 7)
                if not self._map[at] & bit:
                    self._map[at] |= bit
                    count += 1
            self._write_count(count)

    def forget(self, numbers: Iterable[int]) -> None:
        """Take marks back: the chunks were found damaged."""
        with self._lock:
            count = self.count
            for number in numbers:
                at, bit = HEADER_SIZE + (number >> 3), 1 << (number & 7)
                if self._map[at] & bit:
                    self._map[at] &= ~bit & 0xFF
                    count -= 1
            self._write_count(count)

    def snapshot(self) -> bytes:
        """The bits as they are now."""
        with self._lock:
            return self._map[HEADER_SIZE:]

    def close(self) -> None:
        """Unmap."""
        self._map.close()


def _create(path: Path, header: bytes, size: int) -> int:
    make_dirs(path.parent, 0o700)
    temp = temp_name(path)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, header, 0)
        # Allocated now: a full disk answers here with ENOSPC, later it would be SIGBUS.
        os.posix_fallocate(fd, 0, size)
        os.rename(temp, path)
    except BaseException:
        os.close(fd)
        temp.unlink(missing_ok=True)
        raise
    return fd


def write_durable_map(path: Path, layer: str, identity: DataIdentity, bits: int, bitmap: bytes) -> None:
    """Replace the durable map; the caller has synced the data that its bits speak of."""
    body = _header(_DURABLE_MAGIC, layer, identity, bits, bytes(16)) + bitmap
    write_durable(path, body + hashlib.sha256(body).digest(), mode=0o600)


def read_durable_map(path: Path, layer: str, identity: DataIdentity, bits: int) -> bytes:
    """The bits of the durable map.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: damaged, or of another layer or data file. The device number may differ: it can change in a boot.
    """
    with path.open("rb") as file:
        data = file.read(HEADER_SIZE + bitmaps.byte_count(bits) + _SUM_SIZE + 1)
    body, checksum = data[:-_SUM_SIZE], data[-_SUM_SIZE:]
    if len(body) != HEADER_SIZE + bitmaps.byte_count(bits) or hashlib.sha256(body).digest() != checksum:
        raise CorruptError("durable presence map is damaged", where=str(path))
    found = DataIdentity.unpack(_HEAD.unpack_from(body)[5])
    expected = _header(_DURABLE_MAGIC, layer, identity._replace(device=found.device), bits, bytes(16))
    if body[:HEADER_SIZE] != expected:
        raise CorruptError("durable presence map speaks of another data file", where=str(path))
    return body[HEADER_SIZE:]
