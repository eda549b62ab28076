"""The sparse maps of tar archives: GNU's old headers, and PAX 0.0, 0.1 and 1.0. `build` only; one thread.

GNU tar's manual, "Storing Sparse Files". Maps are checked: extents in order, inside the file, and not too many.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from layerkit.build.tar_numbers import read_decimal, read_number
from layerkit.errors import ArchiveError

MAX_EXTENTS = 1 << 20
_MAX_SIZE = 1 << 62
_BLOCK = 512
_PAIR = 24
_LINE_MAX = 21

Read = Callable[[int], bytes]
"""Exactly so many bytes of the archive; raises ArchiveError."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Where a sparse file has data: (offset, length), in order, none empty."""

    _numbers: array[int]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = self._numbers
        return zip(numbers[::2], numbers[1::2], strict=True)


Found = tuple[int, Extents, int]
"""Size of the file, its extents, and how many bytes of the member's data the map itself took."""


class SparseReader:
    """Reads maps from headers, records and the archive itself."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def old_gnu(self, header: bytes) -> Found:
        """Type S: four pairs in the header, then blocks of 21."""
        numbers: list[int] = []
        _add_pairs(numbers, header[386:482])
        more = header[482]
        while more:
            block = self._read(_BLOCK)
            _add_pairs(numbers, block[:504])
            more = block[504]
            _check_count(len(numbers) // 2)
        size = read_number(header[483:495], "size")
        return size, _checked(numbers, size), 0

    def pax(self, records: dict[bytes, bytes], ordered: Sequence[tuple[bytes, bytes]], available: int) -> Found | None:
        """The map that PAX records announce; None when they announce none.

        Args:
            records: those that hold for the member.
            ordered: all of its own records in order: version 0.0 repeats their names.
            available: bytes of the member's data.
        """
        version = records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")
        size = records.get(b"GNU.sparse.realsize") or records.get(b"GNU.sparse.size")
        if size is None:
            return None
        total = read_decimal(size, "the size of a sparse file")
        if version == (b"1", b"0"):
            numbers, used = self._map_in_data(available)
            return total, _checked(numbers, total), used
        if version not in ((None, None), (b"0", b"0"), (b"0", b"1")):
            raise ArchiveError(f"a sparse file of the unknown version {version}")
        if b"GNU.sparse.map" in records:
            texts = records[b"GNU.sparse.map"].split(b",")
        else:
            texts = [value for key, value in ordered if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes")]
        _check_count(len(texts) // 2)
        return total, _checked([read_decimal(text, "a sparse map") for text in texts], total), 0

    def _map_in_data(self, available: int) -> tuple[list[int], int]:
        """Version 1.0: lines of decimal numbers before the data, the first their count, padded to a block."""
        used = 0
        rest = b""
        numbers: list[int] = []
        wanted = 1
        while len(numbers) < wanted:
            line, newline, tail = rest.partition(b"\n")
            if not newline:
                if len(rest) > _LINE_MAX or used + _BLOCK > available + -available % _BLOCK:
                    raise ArchiveError("the map of a sparse file has no end")
                rest += self._read(_BLOCK)
                used += _BLOCK
                continue
            rest = tail
            numbers.append(read_decimal(line, "a sparse map"))
            if len(numbers) == 1:
                _check_count(numbers[0])
                wanted += numbers[0] * 2
        return numbers[1:], used


def _add_pairs(numbers: list[int], data: bytes) -> None:
    for at in range(0, len(data), _PAIR):
        if not data[at + 12]:
            return  # unused from here on
        numbers += (read_number(data[at : at + 12], "offset"), read_number(data[at + 12 : at + _PAIR], "length"))


def _check_count(count: int) -> None:
    if not 0 <= count <= MAX_EXTENTS:
        raise ArchiveError(f"a sparse file of {count} pieces, {MAX_EXTENTS} are allowed")


def _checked(numbers: Sequence[int], size: int) -> Extents:
    if not 0 <= size <= _MAX_SIZE:
        raise ArchiveError(f"a sparse file of the impossible size {size}")
    if len(numbers) % 2:
        raise ArchiveError("the map of a sparse file has an offset without a length")
    edges = [0]
    kept = array("q")
    for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length < 0 or offset < 0 or offset + length > size:
            raise ArchiveError("the map of a sparse file leads out of it")
        if length:
            edges += (offset, offset + length)
            kept.extend((offset, length))
    if any(one > other for one, other in pairwise(edges)):
        raise ArchiveError("the map of a sparse file is not in order")
    return Extents(kept)
