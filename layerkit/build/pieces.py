"""A file's bytes as a stream of pieces: bytes, or a number of zero bytes where there is a hole. `build` only."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

PIECE_SIZE = 1 << 20

Piece = bytes | int


def file_pieces(fd: int, size: int, *, sparse: bool) -> Iterator[Piece]:
    """The pieces of an open regular file.

    Args:
        fd: open for reading; its offset is moved.
        size: what fstat said.
        sparse: whether to ask the file system for holes (lseek(2) SEEK_DATA), so that a hole of a TiB costs nothing.

    They end early when the file has become shorter meanwhile; whoever takes them counts.
    """
    at = 0
    while at < size:
        start, end = _data_range(fd, at, size) if sparse else (at, size)
        if start > at:
            yield start - at
            at = start
        while at < end:
            data = os.pread(fd, min(PIECE_SIZE, end - at), at)
            if not data:
                return
            yield data
            at += len(data)


def _data_range(fd: int, at: int, size: int) -> tuple[int, int]:
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        end = os.lseek(fd, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return size, size
        raise
    return min(start, size), min(end, size)
