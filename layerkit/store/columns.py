"""Columns of 32-bit numbers in little endian, as packs and locators hold their tables; imported by those two. Pure."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

COLUMN = "I"


def to_bytes(values: Iterable[int]) -> bytes:
    """The numbers, 4 bytes each; OverflowError for one that has more than 32 bits."""
    column = values if isinstance(values, array) else array(COLUMN, values)
    if sys.byteorder == "big":
        column = array(COLUMN, column)
        column.byteswap()
    return column.tobytes()


def table_to_bytes(rows: Sequence[tuple[int, ...]], width: int) -> bytes:
    """The rows of `width` numbers, column after column."""
    return b"".join(to_bytes([row[number] for row in rows]) for number in range(width))


def read_columns(data: bytes | memoryview, count: int) -> list[array[int]]:
    """`count` columns of equal length that fill `data` exactly; ValueError when they do not."""
    size, rest = divmod(len(data), 4 * count)
    if rest:
        raise ValueError(f"{len(data)} bytes are not {count} columns")
    columns = []
    for start in range(0, len(data), size * 4 or 1):
        column = array(COLUMN)
        column.frombytes(data[start : start + size * 4])
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
    return columns or [array(COLUMN) for _ in range(count)]
