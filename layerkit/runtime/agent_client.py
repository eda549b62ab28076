"""The host's end of the agent: one connection, many commands; imported by backends and their tests.

Threads: a connection may be used from any. One reader thread of its own takes frames off the socket and hands them to
the exec they belong to; it never waits for anybody, because windows bound what can be under way. Each exec's input and
output is pumped in the thread that waits for it. Locks: `_lock` (tables, end of the connection) and `_send_lock` (the
socket's sending side); neither is held while the other is taken.
"""

from __future__ import annotations

import errno
import itertools
import os
import queue
import shlex
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from layerkit.errors import (
    AgentProtocolError,
    InputError,
    LayerkitError,
    LimitError,
    NotRunnableError,
    SandboxError,
    SandboxLostError,
    UnsupportedError,
)
from layerkit.runtime import agent_protocol as protocol
from layerkit.runtime.agent_exec import OUTPUT_WINDOW, ExecResult, RunningExec
from layerkit.runtime.agent_protocol import ErrorCode, ExecRequest, Frame, FrameDecoder, FrameType
from layerkit.runtime.agent_streams import Input, Output, Source, make_sink

HANDSHAKE_S = 10.0
IO_TIMEOUT_S = 60.0
KILL_ALL_S = 15.0
COLLECT_LIMIT = 256 << 20
MAX_TIMEOUT_S = (2**32 - 1) / 1000


def agent_program() -> Path:
    """The static agent that belongs to this installation.

    Raises:
        UnsupportedError: it has not been built.
    """
    path = Path(__file__).parent / "_bin" / "layerkit-agent"
    if not os.access(path, os.X_OK):
        hint = "install layerkit on a machine with a C compiler"
        raise UnsupportedError("layerkit-agent has not been built", where=str(path), hint=hint)
    return path


class AgentConnection:
    """A connection to one agent; safe from any thread; a context manager that closes it.

    Closing it ends everything in the sandbox unless `keep`: the agent then stays and goes on reaping.

    Args:
        sock: connected to the agent; the connection owns it from now on.
        keep: what runs goes on when the connection is lost.
        handshake_s: how long the agent may take to answer at first.

    Raises:
        SandboxLostError: no answer in time, or the agent hung up.
        AgentProtocolError: the answer is not a welcome.
    """

    def __init__(self, sock: socket.socket, *, keep: bool = False, handshake_s: float = HANDSHAKE_S) -> None:
        self._sock = sock
        self._decoder = FrameDecoder()
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._execs: dict[int, RunningExec] = {}
        self._requests: dict[int, queue.SimpleQueue[Frame | LayerkitError]] = {}
        self._numbers = itertools.count(1)
        self._failure: LayerkitError | None = None
        try:
            self.welcome, early = self._greet(keep, time.monotonic() + handshake_s)
            if early:
                raise AgentProtocolError(f"{early[0].type.name} right after the welcome")
        except BaseException:
            sock.close()
            raise
        sock.settimeout(IO_TIMEOUT_S)
        self._reader = threading.Thread(target=self._read, name="layerkit-agent-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> AgentConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- commands -----------------------------------------------------------------------------------------------------

    def exec(
        self,
        argv: Sequence[bytes | str],
        *,
        env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
        cwd: bytes | str = "/",
        user: bytes | str = "",
        stdin: Input = None,
        stdout: Output = None,
        stderr: Output = None,
        timeout_s: float | None = None,
        output_cap: int | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        Args:
            argv: searched in `env`'s PATH, inside the sandbox, when the name has no slash.
            env: the whole environment; HOME is added from the user's entry where it is missing.
            cwd: where it starts.
            user: `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; looked up in the sandbox; '' stays what the agent is.
            stdin: bytes, a file descriptor, or None for an input that is at its end.
            stdout: None collects, a function is called with each piece, an int is a file descriptor; likewise stderr.
            timeout_s: after so many seconds everything that the command started is killed (`timed_out`).
            output_cap: bytes kept of each stream; the rest is read and dropped (`truncated`). Collected streams have
                a cap of 256 MiB where none is given.

        Raises:
            InputError: empty argv, NUL bytes, a time limit that is no time.
            NotRunnableError, SandboxError, SandboxLostError, AgentProtocolError: see `RunningExec.wait`.
        """
        return self.start(
            argv, env=env, cwd=cwd, user=user, stdin=stdin, stdout=stdout, stderr=stderr, timeout_s=timeout_s,
            output_cap=output_cap,
        ).wait()  # fmt: skip

    def start(
        self,
        argv: Sequence[bytes | str],
        *,
        env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
        cwd: bytes | str = "/",
        user: bytes | str = "",
        stdin: Input = None,
        stdout: Output = None,
        stderr: Output = None,
        timeout_s: float | None = None,
        output_cap: int | None = None,
    ) -> RunningExec:
        """Start a command; arguments and errors as for `exec`, what the agent says comes from `wait`."""
        if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InputError(f"a time limit of {timeout_s} s")
        command = _display(argv)
        request = ExecRequest(
            argv=[_to_bytes(part) for part in argv],
            env=[_to_bytes(name) + b"=" + _to_bytes(value) for name, value in (env or {}).items()],
            cwd=_to_bytes(cwd),
            user=_to_bytes(user),
            has_stdin=stdin is not None,
            timeout_ms=0 if timeout_s is None else max(1, round(timeout_s * 1000)),
            stdout_credit=OUTPUT_WINDOW,
            stderr_credit=OUTPUT_WINDOW,
            stdout_cap=_cap(stdout, output_cap),
            stderr_cap=_cap(stderr, output_cap),
        )
        number = self._next_number()
        try:
            frame = protocol.encode_exec(number, request)
        except LimitError as error:
            text = f"cannot execute: {os.strerror(errno.E2BIG)}"
            raise NotRunnableError(text, exit_code=126, where=command) from error
        sinks = (make_sink(stdout), make_sink(stderr))
        source = Source(stdin, self.welcome.stdin_window)
        running = RunningExec(self, number, sinks, source, command=command, timeout_s=timeout_s)
        try:
            self._add(running)
            self.send(frame)
        except LayerkitError:
            running.forget()
            raise
        return running

    def signal(self, exec_id: int, signum: int) -> None:
        """Send a signal to the process group of a running exec; nothing happens when it has ended."""
        self.send(protocol.encode_signal(exec_id, signum, protocol.Scope.GROUP))

    def kill(self, exec_id: int) -> None:
        """Kill everything that an exec started."""
        self.send(protocol.encode_kill(exec_id, discard=False))

    def kill_all(self) -> None:
        """Kill every process in the sandbox but the agent; returns when they are gone.

        Raises:
            SandboxError: some would not die.
        """
        self._acknowledged(FrameType.KILL_ALL)

    def ping(self, timeout_s: float = HANDSHAKE_S) -> float:
        """The seconds until the agent's answer.

        Raises:
            SandboxLostError: no answer in time; the connection stays as it is.
        """
        start = time.monotonic()
        self._ask(FrameType.PING, FrameType.PONG, timeout_s)
        return time.monotonic() - start

    def shutdown(self) -> None:
        """Kill everything, let the agent end, close the connection; harmless when it is lost already."""
        with suppress(SandboxLostError):
            self._acknowledged(FrameType.SHUTDOWN)
        self.close()

    def close(self) -> None:
        """Hang up; execs under way raise SandboxLostError. Idempotent."""
        self._fail(SandboxLostError("the connection was closed"))
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout=HANDSHAKE_S)
        self._sock.close()

    # --- frames out ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send whole frames; waits while the agent does not read, within a bound.

        Raises:
            SandboxLostError, AgentProtocolError: the connection has ended, by now or because of this.
        """
        if self._failure is not None:
            raise self._failure
        try:
            with self._send_lock:
                self._sock.sendall(data)
        except OSError as error:
            self._fail(SandboxLostError(f"the agent does not take what it is sent: {error.strerror or error}"))
        if self._failure is not None:
            raise self._failure

    def _acknowledged(self, kind: FrameType) -> None:
        status = protocol.decode_u32(self._ask(kind, FrameType.ACK, KILL_ALL_S))
        if status:
            raise SandboxError(f"not everything in the sandbox would end: {os.strerror(status)}")

    def _ask(self, kind: FrameType, answer: FrameType, timeout_s: float) -> Frame:
        number, inbox = self._next_number(), queue.SimpleQueue[Frame | LayerkitError]()
        with self._lock:
            self._requests[number] = inbox
        try:
            self.send(protocol.encode(kind, number))
            reply = inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise SandboxLostError(f"no answer to {kind.name} within {timeout_s:.0f} s") from None
        finally:
            with self._lock:
                self._requests.pop(number, None)
        if isinstance(reply, LayerkitError):
            raise reply
        if reply.type == FrameType.ERROR:
            raise SandboxError(f"the agent refused {kind.name}: {protocol.decode_error(reply).text}")
        if reply.type != answer:
            raise AgentProtocolError(f"{reply.type.name} as the answer to {kind.name}")
        return reply

    def _next_number(self) -> int:
        with self._lock:
            return next(self._numbers) % 0xFFFFFFFF + 1

    def _add(self, running: RunningExec) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._execs[running.id] = running

    # --- frames in ----------------------------------------------------------------------------------------------------

    def _greet(self, keep: bool, deadline: float) -> tuple[protocol.Welcome, list[Frame]]:
        try:
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            self._sock.sendall(protocol.encode_hello(keep=keep))
            frames: list[Frame] = []
            while not frames:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                size = self._sock.recv_into(self._decoder.space())
                if size == 0:
                    raise SandboxLostError("the agent hung up before it answered")
                frames = self._decoder.received(size)
        except OSError as error:
            raise SandboxLostError(f"no answer from the agent: {error.strerror or error}") from error
        first, *rest = frames
        if first.type == FrameType.ERROR:
            raise AgentProtocolError(f"the agent refused the handshake: {protocol.decode_error(first).text}")
        if first.type != FrameType.WELCOME:
            raise AgentProtocolError(f"{first.type.name} instead of a welcome")
        return protocol.decode_welcome(first), rest

    def _read(self) -> None:
        try:
            while True:
                try:
                    size = self._sock.recv_into(self._decoder.space())
                except TimeoutError:
                    continue
                if size == 0:
                    raise SandboxLostError("the agent is gone")
                for frame in self._decoder.received(size):
                    self._dispatch(frame)
        except LayerkitError as error:
            self._fail(error)
        except OSError as error:
            self._fail(SandboxLostError(f"the connection to the agent broke: {error.strerror or error}"))
        finally:  # whatever ended this thread, nobody may wait for it
            self._fail(SandboxLostError("the connection's reader has ended"))

    def _dispatch(self, frame: Frame) -> None:
        with self._lock:
            inbox = self._requests.pop(frame.id, None)
            running = self._execs.get(frame.id)
            if running is not None and _is_last(frame):
                del self._execs[frame.id]
        if inbox is not None:
            inbox.put(frame)
        elif running is not None:
            if frame.type in (FrameType.STDOUT, FrameType.STDERR):
                running.charge(frame.type - FrameType.STDOUT, len(frame.payload))
            running.push(frame)
        elif frame.type == FrameType.ERROR:
            self._take_error(frame)
        elif frame.type not in (FrameType.ACK, FrameType.PONG):  # those answer a question that was given up
            raise AgentProtocolError(f"{frame.type.name} for {frame.id}, which is not under way")

    def _take_error(self, frame: Frame) -> None:
        report = protocol.decode_error(frame)
        if report.code != ErrorCode.NO_SUCH_EXEC:
            raise AgentProtocolError(f"the agent did not understand this host: {report.text}")

    def _fail(self, failure: LayerkitError) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            execs, self._execs = list(self._execs.values()), {}
            requests, self._requests = list(self._requests.values()), {}
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for running in execs:
            running.push(failure)
        for inbox in requests:
            inbox.put(failure)


def _is_last(frame: Frame) -> bool:
    """Whether the agent will say nothing more about this exec: it ended, or its EXEC was refused."""
    if frame.type == FrameType.ERROR:
        return protocol.decode_error(frame).frame_type == FrameType.EXEC
    return frame.type == FrameType.EXIT


def _to_bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else os.fsencode(text)


def _display(argv: Sequence[bytes | str]) -> str:
    text = shlex.join(os.fsdecode(part) for part in argv[:20])
    return text if len(text) <= 200 else text[:200] + "…"


def _cap(output: Output, cap: int | None) -> int:
    if cap is not None:
        if cap < 0:
            raise InputError(f"an output cap of {cap} bytes")
        return cap
    return COLLECT_LIMIT if output is None else protocol.UNLIMITED
