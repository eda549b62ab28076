"""The chunk index: the ordered chunks of a layer's data space (docs/formats/chunk-index.md); imported by rank 2 up.

The one reader and writer of that format. A ChunkIndex never changes once made: any number of threads may read it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from layerkit.core.hashing import CHUNK_ID_SIZE
from layerkit.errors import CorruptError
from layerkit.layer.contents import CHUNK_MAX

BLOCK_SIZE = 4096
LAST = 1 << 31
ZERO = 1 << 30
ENTRY_MAX = ZERO - 1
"""Longest entry, in bytes: lengths have 30 bits."""

_MAGIC = b"LKCX"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQQ8s")
_BLOCKS_MAX = 1 << 32


def round_up_to_block(size: int) -> int:
    """The size in whole 4 KiB blocks, in bytes."""
    return (size + BLOCK_SIZE - 1) & -BLOCK_SIZE


class ChunkIndex:
    """The entries of a layer's data space, in its order.

    Attributes:
        lengths: bytes of each entry, without flags.
        offsets: where each entry begins in the data space, in bytes.
        last: a byte an entry, 1 where a file's piece ends; what follows up to the next block belongs to no entry.
        ids: BLAKE3 of the entries that are not zeros, 32 bytes each, end to end: the *stored chunks*.
        data_blocks: length of the data space in 4 KiB blocks.
    """

    __slots__ = ("_stored", "_words", "data_blocks", "ids", "last", "lengths", "offsets")

    def __init__(self, words: array[int], ids: bytes) -> None:
        """Use `from_bytes` or `build`; `words` are lengths with flags as in the format, checked by the caller."""
        self._words = words
        self.ids = ids
        self.lengths = array("I", [word & ENTRY_MAX for word in words])
        self.last = bytes([word >> 31 for word in words])
        ends = array("Q", accumulate(words, _after, initial=0))
        self.data_blocks = ends.pop() // BLOCK_SIZE
        self.offsets = ends
        zeros = bytes([word >> 30 & 1 for word in words])
        self._stored: array[int] | None = None
        if any(zeros):
            self._stored = array("I", accumulate((1 - zero for zero in zeros), initial=0))

    @classmethod
    def build(cls, entries: Iterable[tuple[int, bytes]], lasts: Iterable[bool]) -> ChunkIndex:
        """From (length, id) pairs, the id b'' for zeros, and for each whether its file's piece ends."""
        words = array("I")
        ids = []
        for (length, chunk_id), last in zip(entries, lasts, strict=True):
            words.append(length | (LAST if last else 0) | (0 if chunk_id else ZERO))
            ids.append(chunk_id)
        return cls(words, b"".join(ids))

    @property
    def entry_count(self) -> int:
        """Number of entries, zeros among them."""
        return len(self._words)

    @property
    def stored_count(self) -> int:
        """Number of entries that are not zeros: stored chunks, duplicates counted."""
        return len(self.ids) // CHUNK_ID_SIZE

    @property
    def data_size(self) -> int:
        """Length of the data space in bytes."""
        return self.data_blocks * BLOCK_SIZE

    def is_zero(self, entry: int) -> bool:
        """Whether the entry is a run of zeros, which is never stored and always present."""
        return bool(self._words[entry] & ZERO)

    def stored_number(self, entry: int) -> int:
        """The number among the stored chunks of an entry that is not zeros; of zeros, that of the next stored one."""
        return self._stored[entry] if self._stored is not None else entry

    def entry_of_stored(self, number: int) -> int:
        """The entry of a stored chunk: the inverse of `stored_number`."""
        return bisect_left(self._stored, number + 1) - 1 if self._stored is not None else number

    def stored_id(self, number: int) -> bytes:
        """The id of a stored chunk."""
        return self.ids[number * CHUNK_ID_SIZE : (number + 1) * CHUNK_ID_SIZE]

    def id(self, entry: int) -> bytes:
        """The id of an entry, b'' for zeros."""
        return b"" if self._words[entry] & ZERO else self.stored_id(self.stored_number(entry))

    def find(self, offset: int) -> int:
        """The last entry that begins at or before a byte of the data space; padding belongs to the entry before it.

        Raises:
            IndexError: the offset lies outside the data space.
        """
        if not 0 <= offset < self.data_size:
            raise IndexError(f"offset {offset} of {self.data_size} bytes of data")
        return bisect_right(self.offsets, offset) - 1

    def range(self, offset: int, length: int) -> tuple[int, int]:
        """The first and the last entry that hold a byte of the range, both inclusive; last < first when none does."""
        end = min(offset + length, self.data_size)
        if offset >= end:
            return 0, -1
        first = self.find(offset)
        if offset >= self.offsets[first] + self.lengths[first]:
            first += 1
        return first, bisect_left(self.offsets, end) - 1

    def to_bytes(self) -> bytes:
        """The bytes whose sha256 is the index's identity."""
        header = _HEADER.pack(_MAGIC, _VERSION, 0, len(self._words), self.data_blocks, bytes(8))
        return header + _little(self._words).tobytes() + self.ids

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> ChunkIndex:
        """Read an index from untrusted bytes.

        Raises:
            CorruptError: not an index of this version, or one whose parts contradict each other.
        """
        count, blocks = _read_header(data)
        words = array("I")
        words.frombytes(bytes(data[_HEADER.size : _HEADER.size + 4 * count]))
        words = _little(words)
        if words and (min(word & ENTRY_MAX for word in words) == 0 or not words[-1] & LAST):
            raise CorruptError("chunk index with an empty entry or an open end")
        stored = [word & ENTRY_MAX for word in words if not word & ZERO]
        if stored and max(stored) > CHUNK_MAX:
            raise CorruptError(f"chunk index with a chunk of more than {CHUNK_MAX} bytes")
        ids = bytes(data[_HEADER.size + 4 * count :])
        if len(ids) != CHUNK_ID_SIZE * len(stored):
            raise CorruptError(f"chunk index with {len(ids)} bytes of ids for {len(stored)} chunks")
        index = cls(words, ids)
        if index.data_blocks != blocks:
            raise CorruptError(f"chunk index says {blocks} blocks, its entries take {index.data_blocks}")
        return index


def _after(offset: int, word: int) -> int:
    end = offset + (word & ENTRY_MAX)
    return round_up_to_block(end) if word & LAST else end


def _little(words: array[int]) -> array[int]:
    """The array in little-endian order; the same one where this machine is little-endian."""
    if sys.byteorder == "big":
        words = array("I", words)
        words.byteswap()
    return words


def _read_header(data: bytes | memoryview) -> tuple[int, int]:
    """Entry count and blocks, checked as far as the header goes."""
    if len(data) < _HEADER.size:
        raise CorruptError(f"chunk index of {len(data)} bytes")
    magic, version, reserved, count, blocks, rest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptError("not a chunk index")
    if version != _VERSION:
        raise CorruptError(f"chunk index of version {version}", hint="update layerkit")
    if reserved or any(rest):
        raise CorruptError("chunk index with reserved bytes in use")
    if count > (len(data) - _HEADER.size) // 4 or blocks >= _BLOCKS_MAX:
        raise CorruptError(f"chunk index of {len(data)} bytes claims {count} entries and {blocks} blocks")
    return count, blocks
