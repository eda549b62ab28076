"""Where an exec's output goes and its input comes from; imported by the agent's client; each object is one thread's.

A sink takes what it is given at once or keeps the rest as pending; the pump gives it the next piece only when nothing
is pending, and returns credit to the agent for what has been taken. So memory stays flat however slow the reader is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from layerkit.runtime.agent_protocol import MAX_DATA

Output = Callable[[bytes], None] | int | None
Input = bytes | bytearray | memoryview | int | None


class Sink(Protocol):
    """What takes one output stream."""

    @property
    def pending_fd(self) -> int | None:
        """The descriptor that must become writable before the pending piece goes on; None: nothing is pending."""

    def take(self, data: bytes) -> int:
        """Take the next piece; returns how many bytes are done with (0: pending, see `flush`)."""

    def flush(self) -> int:
        """Go on with the pending piece after `pending_fd` became writable; returns how many bytes are done with."""

    def close(self) -> None:
        """Let go of what the sink itself opened."""


class CollectSink:
    """Keeps everything; the agent's output cap bounds it."""

    pending_fd: int | None = None

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def take(self, data: bytes) -> int:
        """Keep it."""
        self._pieces.append(data)
        return len(data)

    def flush(self) -> int:
        """Nothing is ever pending."""
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def collected(self) -> bytes:
        """All that came."""
        return b"".join(self._pieces)


class CallbackSink:
    """Calls a function with each piece; what the function raises ends the exec and reaches the caller."""

    pending_fd: int | None = None

    def __init__(self, function: Callable[[bytes], None]) -> None:
        self._function = function

    def take(self, data: bytes) -> int:
        """Call the function."""
        self._function(data)
        return len(data)

    def flush(self) -> int:
        """Nothing is ever pending."""
        return 0

    def close(self) -> None:
        """Nothing is open."""


class FdSink:
    """Writes to a file descriptor of the caller's, who keeps it.

    Pipes and terminals are opened once more, because O_NONBLOCK belongs to the open file and the caller's is not ours
    to change. Where that fails, and for sockets, write(2) may wait: for this exec only, and past its time limit.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own: int | None = None
        self._pending = memoryview(b"")
        self._size = 0
        self.pending_fd: int | None = None
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with suppress(OSError):
                self._own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)

    def take(self, data: bytes) -> int:
        """Write what fits now."""
        self._pending, self._size = memoryview(data), len(data)
        return self.flush()

    def flush(self) -> int:
        """Write on; the whole piece counts once its last byte is out."""
        fd = self._fd if self._own is None else self._own
        while self._pending:
            try:
                self._pending = self._pending[os.write(fd, self._pending) :]
            except BlockingIOError:
                self.pending_fd = fd
                return 0
        self.pending_fd = None
        return self._size

    def close(self) -> None:
        """Close the second descriptor."""
        if self._own is not None:
            os.close(self._own)
            self._own = None


def make_sink(output: Output) -> Sink:
    """None collects, an int is a file descriptor, anything else is called."""
    if output is None:
        return CollectSink()
    if isinstance(output, int):
        return FdSink(output)
    return CallbackSink(output)


class Source:
    """Input for an exec, from bytes or a file descriptor of the caller's, cut into frames within credit."""

    def __init__(self, data: Input, credit: int) -> None:
        self.credit = credit
        self._fd = data if isinstance(data, int) else None
        self._rest = memoryview(b"" if data is None or isinstance(data, int) else data).cast("B")
        self.ended = data is None

    @property
    def waiting_fd(self) -> int | None:
        """The descriptor to poll before `next_piece`, if any."""
        return self._fd if not self.ended and self.credit > 0 else None

    @property
    def is_ready(self) -> bool:
        """Whether `next_piece` has something without polling."""
        return not self.ended and self._fd is None and (self.credit > 0 or not self._rest)

    def next_piece(self) -> bytes | None:
        """At most one frame's bytes, taken from the credit; b'' is the end, None: somebody else read the fd first."""
        size = min(MAX_DATA, self.credit)
        if self._fd is not None:
            try:
                piece = os.read(self._fd, size)
            except BlockingIOError:
                return None
        else:
            piece = bytes(self._rest[:size])
            self._rest = self._rest[size:]
        self.credit -= len(piece)
        self.ended = not piece
        return piece

    def stop(self) -> None:
        """The command reads no more."""
        self.ended = True
        self._rest = memoryview(b"")
