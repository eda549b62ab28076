"""One exec from the host's side: its state, and the pump that its caller's thread runs in `wait`.

Imported by the agent's client only. Threads: the connection's reader calls `push` and `charge`; exactly one thread, the
caller's, calls `wait`. `_lock` guards what both touch: the wake-up descriptor and the windows.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from layerkit.errors import (
    AgentProtocolError,
    LayerkitError,
    NotRunnableError,
    SandboxError,
    SandboxLostError,
    SandboxTimeoutError,
)
from layerkit.runtime import agent_protocol as protocol
from layerkit.runtime.agent_protocol import ExitKind, ExitReport, Frame, FrameType, Stage
from layerkit.runtime.agent_streams import CollectSink, Sink, Source

OUTPUT_WINDOW = 1 << 20
ANSWER_GRACE_S = 10.0


@dataclass(frozen=True)
class ExecResult:
    """What came of a command that could be started.

    `exit_code` is 128 + n for a command that signal n ended, as shells have it; `signal` is None otherwise.
    `timed_out`: the limit passed and everything that the command had started was killed. `left_open`: something it
    started still holds its output; that goes on, read and dropped. Memory in bytes, of the leader and what it waited
    for.
    """

    exit_code: int
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration_s: float
    left_open: bool = False
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0


class FrameSender(Protocol):
    """The part of a connection that an exec needs."""

    def send(self, data: bytes) -> None:
        """Send whole frames."""


class RunningExec:
    """A command under way; `wait` in one thread, `signal` and `kill` in any.

    Its output stands still after the first MiB of each stream until somebody waits for it.
    """

    def __init__(
        self, connection: FrameSender, number: int, sinks: tuple[Sink, Sink], source: Source, *, command: str,
        timeout_s: float | None,
    ) -> None:  # fmt: skip
        self.id = number
        self.pid: int | None = None
        self._connection = connection
        self._sinks = sinks
        self._source = source
        self._command = command
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s + ANSWER_GRACE_S
        self._events: deque[Frame | LayerkitError] = deque()
        self._lock = threading.Lock()
        self._wake: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._window = [OUTPUT_WINDOW, OUTPUT_WINDOW]
        self._owed_credit = [0, 0]
        self._queued: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._report: ExitReport | None = None
        self._is_over = False

    # --- the reader's side ---

    def push(self, event: Frame | LayerkitError) -> None:
        """Hand over a frame, or the reason why no more will come; dropped once nobody waits."""
        with self._lock:
            if self._wake is not None:
                self._events.append(event)
                os.eventfd_write(self._wake, 1)

    def charge(self, stream: int, size: int) -> None:
        """Count output against its window.

        Raises:
            AgentProtocolError: the agent sent more than it had credit for.
        """
        with self._lock:
            self._window[stream] -= size
            if self._window[stream] < 0:
                raise AgentProtocolError(f"exec {self.id}: more output than its credit allows")

    # --- the caller's side ---

    def signal(self, signum: int, *, group: bool = True) -> None:
        """Send a signal to the command's process group, or to its leader only; nothing happens when it has ended."""
        scope = protocol.Scope.GROUP if group else protocol.Scope.LEADER
        self._connection.send(protocol.encode_signal(self.id, signum, scope))

    def kill(self) -> None:
        """Kill everything that the command started; `wait` then returns."""
        self._connection.send(protocol.encode_kill(self.id, discard=False))

    def wait(self) -> ExecResult:
        """Pump input and output until the command has ended; called again, the same result.

        Raises:
            NotRunnableError: it was not found (127) or could not be executed (126).
            SandboxLostError: the connection is lost, or there was no answer 10 s after the time limit.
            AgentProtocolError: the agent does not follow the protocol.
            Exception: what an output function or descriptor raised; the command has then been killed.
        """
        try:
            while self._report is None or any(self._queued) or self._pending():
                self._poll()
                self._take_events()
                self._drain()
                self._feed()
            return self._result(self._report)
        except BaseException:
            self._abandon()
            raise
        finally:
            self.forget()

    def _pending(self) -> bool:
        return any(sink.pending_fd is not None for sink in self._sinks)

    def _abandon(self) -> None:
        if not self._is_over:
            with suppress(LayerkitError):
                self._connection.send(protocol.encode_kill(self.id, discard=True))

    def forget(self) -> None:
        """Let go of what `wait` would have used; for a command that was never sent."""
        with self._lock:
            if self._wake is not None:
                os.close(self._wake)
                self._wake = None
        for sink in self._sinks:
            sink.close()

    def _poll(self) -> None:
        poll = select.poll()
        if self._wake is None:
            raise SandboxError(f"exec {self.id} was given up, its end is not known")
        poll.register(self._wake, select.POLLIN)
        for sink in self._sinks:
            if sink.pending_fd is not None:
                poll.register(sink.pending_fd, select.POLLOUT)
        reading = None if self._report else self._source.waiting_fd
        if reading is not None:
            poll.register(reading, select.POLLIN)
        ready = dict(poll.poll(self._patience_ms()))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if reading in ready:
            self._send_input()

    def _patience_ms(self) -> float | None:
        if self._report is None and self._source.is_ready:
            return 0
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return left * 1000

    def _late(self) -> SandboxError:
        if self._pending():
            return SandboxTimeoutError("the time limit passed, and nobody takes the output", where=self._command)
        return SandboxLostError(f"no answer {ANSWER_GRACE_S:.0f} s after the time limit", where=self._command)

    def _take_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            if isinstance(event, LayerkitError):
                raise event
            self._take_frame(event)

    def _take_frame(self, frame: Frame) -> None:
        if frame.type in (FrameType.STDOUT, FrameType.STDERR):
            self._queued[frame.type - FrameType.STDOUT].append(frame.payload)
        elif frame.type == FrameType.STARTED:
            self.pid = protocol.decode_u32(frame)
        elif frame.type == FrameType.STDIN_CREDIT:
            self._source.credit += protocol.decode_u32(frame)
        elif frame.type == FrameType.STDIN_CLOSED:
            self._source.stop()
        elif frame.type == FrameType.EXIT:
            self._report, self._is_over = protocol.decode_exit(frame), True
            self._source.stop()
        else:
            self._take_error(frame)

    def _take_error(self, frame: Frame) -> None:
        report = protocol.decode_error(frame)
        if report.code == protocol.ErrorCode.NO_SUCH_EXEC:
            return  # a signal came too late
        self._is_over = report.frame_type == FrameType.EXEC
        raise SandboxError(f"the agent refused: {report.text}", where=self._command)

    # --- output ---

    def _drain(self) -> None:
        for stream, sink in enumerate(self._sinks):
            if sink.pending_fd is not None:
                self._return_credit(stream, sink.flush())
            while self._queued[stream] and sink.pending_fd is None:
                self._return_credit(stream, sink.take(self._queued[stream].popleft()))

    def _return_credit(self, stream: int, size: int) -> None:
        self._owed_credit[stream] += size
        if self._owed_credit[stream] < OUTPUT_WINDOW // 4 or self._report is not None:
            return
        credit, self._owed_credit[stream] = self._owed_credit[stream], 0
        with self._lock:
            self._window[stream] += credit
        self._connection.send(protocol.encode_credit(self.id, stream + 1, credit))

    # --- input ---

    def _feed(self) -> None:
        if self._report is None and self._source.is_ready:
            self._send_input()

    def _send_input(self) -> None:
        piece = self._source.next_piece()
        if piece is not None:
            kind = FrameType.STDIN if piece else FrameType.STDIN_EOF
            self._connection.send(protocol.encode(kind, self.id, piece))

    # --- the end ---

    def _result(self, report: ExitReport) -> ExecResult:
        if report.kind == ExitKind.NOT_STARTED:
            raise not_started(report, self._command)
        signal = report.code if report.kind == ExitKind.SIGNAL else None
        return ExecResult(
            exit_code=report.code if signal is None else 128 + signal,
            signal=signal,
            stdout=_collected(self._sinks[0]),
            stderr=_collected(self._sinks[1]),
            timed_out=report.timed_out,
            truncated=report.stdout_cut or report.stderr_cut,
            duration_s=report.duration_ns / 1e9,
            left_open=report.left_open,
            user_s=report.user_us / 1e6,
            system_s=report.system_us / 1e6,
            max_rss_bytes=report.max_rss_bytes,
        )


def _collected(sink: Sink) -> bytes:
    return sink.collected() if isinstance(sink, CollectSink) else b""


def not_started(report: ExitReport, command: str) -> SandboxError:
    """The error for an exec that never ran: 127 not found, 126 not executable, 125 the sandbox's own trouble."""
    path = report.path.decode("utf-8", "backslashreplace")
    why = os.strerror(report.code)
    if report.stage == Stage.FORK:
        hint = "its process or file limit is reached" if report.code in (errno.EAGAIN, errno.EMFILE) else ""
        return SandboxError(f"the sandbox could not start a process: {why}", where=command, hint=hint)
    if report.stage in (Stage.USER, Stage.GROUP):
        text = f"cannot become {path}: {why}"
        if report.code == errno.ENOENT:
            text = f"no such {report.stage.name.lower()} in the sandbox: {path}"
        return NotRunnableError(text, exit_code=126, where=command)
    if report.stage == Stage.CWD:
        return NotRunnableError(f"cannot change to {path or '/'}: {why}", exit_code=126, where=command)
    if report.code == errno.ENOENT and report.path_exists:
        return NotRunnableError(f"the interpreter or loader of {path} is missing", exit_code=127, where=command)
    if report.code in (errno.ENOENT, errno.ENOTDIR):
        return NotRunnableError(f"not found: {path}", exit_code=127, where=command)
    return NotRunnableError(f"cannot execute {path}: {why}", exit_code=126, where=command)
