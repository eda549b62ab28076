"""Cuts files into chunks: zero runs and FastCDC (docs/formats/chunking.md), over the C core.

The functions are pure and may run in any thread; a FileCutter belongs to one thread at a time. Imported by what reads
file contents: the ingest of builds, scans and imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerkit.core._core import ffi, lib

Buffer = bytes | bytearray | memoryview

BLOCK_SIZE: int = lib.LK_CUT_BLOCK
ZERO_RUN_SIZE: int = lib.LK_CUT_ZERO_RUN
MIN_CHUNK_SIZE: int = lib.LK_CUT_MIN
NORMAL_CHUNK_SIZE: int = lib.LK_CUT_NORMAL
MAX_CHUNK_SIZE: int = lib.LK_CUT_MAX

WINDOW_SIZE = 4 << 20
"""Bytes that a FileCutter keeps; at most MAX_CHUNK_SIZE and a zero run of them are carried from one window on."""

_PIECES_AT_ONCE = 256
_ZERO_FLAG = 1 << 63
# Enough zeros to be inside a kept run with a block boundary behind it, wherever they begin.
_HOLE_HEAD = bytes(ZERO_RUN_SIZE + 2 * BLOCK_SIZE)


class Piece(NamedTuple):
    """A piece of a file: where it starts, its length, whether it is all zeros, and its bytes (empty for zeros)."""

    offset: int
    length: int
    is_zero: bool
    data: memoryview


def is_zero(buffer: Buffer) -> bool:
    """Whether every byte is zero (of none, every one is); at memory speed."""
    return bool(lib.lk_is_zero(ffi.from_buffer("uint8_t[]", buffer), len(buffer)))


def zero_runs(buffer: Buffer, *, final: bool = True) -> list[tuple[int, int]]:
    """The kept zero runs (start, end) of a file that starts with this buffer, `end` exclusive.

    With `final=False` the file goes on, and a run that reaches the end of the buffer is left out: it could still grow.
    The rule that a shorter file of nothing but zeros is one run is the cutter's, not applied here.
    """
    data, size = ffi.from_buffer("uint8_t[]", buffer), len(buffer)
    start, end = ffi.new("size_t *"), ffi.new("size_t *")
    runs = []
    at = 0
    while lib.lk_zero_run(data, size, at, 0, final, start, end):
        at = end[0]
        if not final and is_zero(memoryview(buffer)[at : at + BLOCK_SIZE]):
            break
        runs.append((start[0], at))
    return runs


def cut(buffer: Buffer, *, final: bool, continued: bool = False) -> list[int]:
    """Chunk lengths of one segment (what lies between zero runs), as far as they are certain.

    Args:
        buffer: the segment's bytes from its start, or, with `continued`, from a cut that an earlier call reported.
        final: the segment ends with the buffer; otherwise the tail that could still grow is not reported.
        continued: a piece of this segment is cut already, so that the rule for short segments is out.
    """
    data, size = ffi.from_buffer("uint8_t[]", buffer), len(buffer)
    if size <= NORMAL_CHUNK_SIZE and not continued:
        return [size] if final and size else []
    lengths: list[int] = []
    at = 0
    while length := lib.lk_fastcdc_cut(data + at, size - at, final):
        lengths.append(length)
        at += length
    return lengths


def cut_file_bytes(buffer: Buffer) -> list[tuple[int, bool]]:
    """The pieces (length, is_zero) of a whole file that is in memory; the same that a FileCutter finds."""
    size = len(buffer)
    state, consumed = ffi.new("struct lk_cut_state *"), ffi.new("size_t *")
    # Two pieces to a zero run of 64 KiB and its neighbour is the most there can be.
    room = size // (ZERO_RUN_SIZE // 2) + 4
    out = ffi.new("uint64_t[]", room)
    count = lib.lk_cut_file(state, ffi.from_buffer("uint8_t[]", buffer), size, True, out, room, consumed)
    return [(piece & ~_ZERO_FLAG, bool(piece & _ZERO_FLAG)) for piece in out[0:count]]


class FileCutter:
    """Cuts files of any size as their bytes come, in one window of WINDOW_SIZE; one thread at a time.

    Every `feed`, `feed_hole` and `finish` is a generator that must be run to its end. A piece's `data` is a view into
    the window: it is valid until the next piece is asked for. After `finish` the cutter is ready for another file.
    """

    def __init__(self) -> None:
        # Exported by the bytearray, not by the view: CPython 3.11 crashes when a cycle of garbage holds a memoryview
        # that somebody else still has a buffer of (memoryview's tp_clear fails, its dealloc follows a null pointer).
        window = bytearray(WINDOW_SIZE)
        self._window = memoryview(window)
        self._address = ffi.from_buffer("uint8_t[]", window)
        self._state = ffi.new("struct lk_cut_state *")
        self._out = ffi.new("uint64_t[]", _PIECES_AT_ONCE)
        self._consumed = ffi.new("size_t *")
        self._start_file()

    def _start_file(self) -> None:
        self._filled = 0
        self._base = 0  # file offset of the window's first byte
        self._reported = 0  # file offset behind the last piece
        ffi.memmove(self._state, bytes(ffi.sizeof("struct lk_cut_state")), ffi.sizeof("struct lk_cut_state"))

    def feed(self, data: Buffer) -> Iterator[Piece]:
        """Takes the next bytes of the file, any number of them, and gives the pieces that are certain."""
        view = memoryview(data)
        while view:
            taken = min(len(view), WINDOW_SIZE - self._filled)
            self._window[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            view = view[taken:]
            if self._filled == WINDOW_SIZE:
                yield from self._cut(final=False)

    def feed_hole(self, length: int) -> Iterator[Piece]:
        """Takes `length` zero bytes without looking at each: a hole of 1 TiB costs microseconds a piece."""
        head = min(length, len(_HOLE_HEAD))
        yield from self.feed(_HOLE_HEAD[:head])
        length -= head
        jump = length - length % BLOCK_SIZE
        if jump:
            yield from self._cut(final=False)
            # Now a zero run is open and the window holds less than a block, of zeros: blocks may come in before it.
            self._state.zeros += jump
            self._state.offset += jump
            self._base += jump
            yield from self._cut(final=False)
        yield from self.feed(_HOLE_HEAD[: length - jump])

    def finish(self) -> Iterator[Piece]:
        """Ends the file and gives its last pieces."""
        yield from self._cut(final=True)
        self._start_file()

    def _cut(self, *, final: bool) -> Iterator[Piece]:
        at, count = 0, _PIECES_AT_ONCE
        while count == _PIECES_AT_ONCE:
            count = lib.lk_cut_file(
                self._state,
                self._address + at,
                self._filled - at,
                final,
                self._out,
                _PIECES_AT_ONCE,
                self._consumed,
            )
            at += self._consumed[0]
            for piece in self._out[0:count]:
                yield self._piece(piece)
        self._window[: self._filled - at] = self._window[at : self._filled]
        self._filled -= at
        self._base += at

    def _piece(self, encoded: int) -> Piece:
        offset, length = self._reported, encoded & ~_ZERO_FLAG
        self._reported += length
        if encoded & _ZERO_FLAG:
            return Piece(offset, length, True, self._window[:0])
        start = offset - self._base
        return Piece(offset, length, False, self._window[start : start + length])
