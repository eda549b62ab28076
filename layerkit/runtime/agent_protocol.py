"""Frames between host and agent: encoded and decoded here, without any input or output; pure, safe from any thread.

The page is docs/formats/agent-protocol.md; the other side is runtime/agent/*.c. Imported by the runtime only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from layerkit.errors import AgentProtocolError, InputError, LimitError

VERSION = 1
MAGIC = b"LK"
HEADER = struct.Struct("<2sBBII")
MAX_PAYLOAD = 4 << 20
MAX_DATA = 64 << 10
MAX_PING = 64
MAX_STRINGS = 1 << 18
MAX_SMALL = 2048
UNLIMITED = 2**64 - 1

_HELLO = struct.Struct("<HH")
_WELCOME = struct.Struct("<HHIIIII")
_EXEC = struct.Struct("<IIIIIIQQ")
_EXIT = struct.Struct("<BBHIQQQQ")
_ERROR = struct.Struct("<HBB")
_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<II")


class FrameType(IntEnum):
    """What a frame is; the host's below 0x80, the agent's above."""

    HELLO = 0x01
    EXEC = 0x02
    STDIN = 0x03
    STDIN_EOF = 0x04
    CREDIT = 0x05
    SIGNAL = 0x06
    KILL = 0x07
    KILL_ALL = 0x08
    PING = 0x09
    SHUTDOWN = 0x0A
    WELCOME = 0x81
    STARTED = 0x82
    STDOUT = 0x83
    STDERR = 0x84
    STDIN_CREDIT = 0x85
    STDIN_CLOSED = 0x86
    EXIT = 0x87
    ACK = 0x88
    PONG = 0x89
    ERROR = 0x8A


class ErrorCode(IntEnum):
    """Why the agent refused a frame."""

    UNKNOWN_FRAME = 1
    RESERVED_FRAME = 2
    MALFORMED = 3
    TOO_LARGE = 4
    NO_SUCH_EXEC = 5
    EXEC_EXISTS = 6
    LIMIT = 7
    VERSION = 8
    HELLO_EXPECTED = 9
    FLOW = 10
    STOPPING = 11


class Stage(IntEnum):
    """How far an exec came that could not be started."""

    NONE = 0
    FORK = 1
    USER = 2
    GROUP = 3
    CWD = 4
    EXEC = 5


class ExitKind(IntEnum):
    """How an exec ended."""

    CODE = 0
    SIGNAL = 1
    NOT_STARTED = 2


class Scope(IntEnum):
    """Whom a signal reaches."""

    LEADER = 0
    GROUP = 1


_LARGEST = {
    FrameType.STDOUT: MAX_DATA,
    FrameType.STDERR: MAX_DATA,
    FrameType.PONG: MAX_PING,
}
_FROM_AGENT = frozenset(kind for kind in FrameType if kind >= 0x80)


class Frame(NamedTuple):
    """One frame from the agent: its type, the exec or request it belongs to, its payload."""

    type: FrameType
    id: int
    payload: bytes


@dataclass(frozen=True)
class Welcome:
    """What the agent says about itself."""

    version: int
    is_init: bool
    has_proc: bool
    max_payload: int
    max_data: int
    stdin_window: int
    max_execs: int
    pid: int


@dataclass(frozen=True)
class ExitReport:
    """How an exec ended: `code` is an exit code, a signal or an errno, by `kind`; memory in bytes."""

    kind: ExitKind
    code: int
    stage: Stage
    timed_out: bool
    stdout_cut: bool
    stderr_cut: bool
    left_open: bool
    path_exists: bool
    duration_ns: int
    user_us: int
    system_us: int
    max_rss_bytes: int
    path: bytes


@dataclass(frozen=True)
class ErrorReport:
    """Why a frame was refused; after a fatal one the agent closes the connection."""

    code: int
    frame_type: int
    fatal: bool
    text: str


@dataclass(frozen=True)
class ExecRequest:
    """An exec as it goes over the wire; all strings are bytes without NUL, caps and credits in bytes."""

    argv: Sequence[bytes]
    env: Sequence[bytes]
    cwd: bytes
    user: bytes
    has_stdin: bool
    timeout_ms: int
    stdout_credit: int
    stderr_credit: int
    stdout_cap: int
    stderr_cap: int


# --- to the agent -----------------------------------------------------------------------------------------------------


def encode(kind: FrameType, number: int = 0, payload: bytes | memoryview = b"") -> bytes:
    """A whole frame."""
    return HEADER.pack(MAGIC, kind, 0, number, len(payload)) + payload


def encode_hello(*, keep: bool, version: int = VERSION) -> bytes:
    """HELLO; `keep`: processes go on when the connection is lost."""
    return encode(FrameType.HELLO, 0, _HELLO.pack(version, int(keep)))


def encode_exec(number: int, request: ExecRequest) -> bytes:
    """EXEC.

    Raises:
        InputError: no argv, or a NUL within a string.
        LimitError: argv and environment exceed what a frame holds, which is more than execve(2) takes (E2BIG).
    """
    if not request.argv:
        raise InputError("a command needs at least its name")
    strings = [request.cwd, request.user, *request.argv, *request.env]
    body = b"\0".join(strings) + b"\0"
    if body.count(0) != len(strings):
        raise InputError("a NUL byte in an argument, variable, user or folder")
    if len(strings) > MAX_STRINGS or _EXEC.size + len(body) > MAX_PAYLOAD:
        raise LimitError("argument list too long")
    head = _EXEC.pack(
        int(request.has_stdin), len(request.argv), len(request.env), request.stdout_credit, request.stderr_credit,
        request.timeout_ms, request.stdout_cap, request.stderr_cap,
    )  # fmt: skip
    return encode(FrameType.EXEC, number, head + body)


def encode_credit(number: int, stream: int, size: int) -> bytes:
    """CREDIT: `size` more bytes of stream 1 (stdout) or 2 (stderr) may come."""
    return encode(FrameType.CREDIT, number, _PAIR.pack(stream, size))


def encode_signal(number: int, signum: int, scope: Scope) -> bytes:
    """SIGNAL to an exec's leader or to the leader's process group."""
    return encode(FrameType.SIGNAL, number, _PAIR.pack(signum, scope))


def encode_kill(number: int, *, discard: bool) -> bytes:
    """KILL everything that the exec started; `discard`: what it still prints is dropped."""
    return encode(FrameType.KILL, number, _U32.pack(int(discard)))


# --- from the agent ---------------------------------------------------------------------------------------------------


class FrameDecoder:
    """Cuts a byte stream into frames with a fixed buffer; one thread.

    `space()` is where the next bytes go (recv_into), `received(n)` takes n of them and returns the whole frames.
    """

    def __init__(self, capacity: int = 512 << 10) -> None:
        self._buffer = bytearray(max(capacity, HEADER.size + MAX_DATA))
        self._view = memoryview(self._buffer)
        self._end = 0

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return self._end

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._end :]

    def received(self, size: int) -> list[Frame]:
        """The frames that are complete now.

        Raises:
            AgentProtocolError: what came is no frame, one of a type that an agent does not send, or too large.
        """
        self._end += size
        frames, at = [], 0
        while self._end - at >= HEADER.size:
            kind, number, length = self._header(at)
            body = at + HEADER.size
            if self._end - body < length:
                break
            frames.append(Frame(kind, number, bytes(self._view[body : body + length])))
            at = body + length
        rest = self._end - at
        if at:
            self._view[:rest] = bytes(self._view[at : self._end])
        self._end = rest
        return frames

    def _header(self, at: int) -> tuple[FrameType, int, int]:
        magic, kind, flags, number, length = HEADER.unpack_from(self._buffer, at)
        if magic != MAGIC or flags != 0:
            raise AgentProtocolError("what the agent sent is not the header of a frame")
        if kind not in _FROM_AGENT:
            raise AgentProtocolError(f"an agent sends no frames of type {kind:#04x}")
        if length > _LARGEST.get(kind, MAX_SMALL):
            raise AgentProtocolError(f"a frame of type {kind:#04x} with {length} bytes")
        return FrameType(kind), number, length


def _unpack(form: struct.Struct, frame: Frame, *, exact: bool = True) -> tuple[int, ...]:
    if len(frame.payload) < form.size or (exact and len(frame.payload) != form.size):
        raise AgentProtocolError(f"{frame.type.name} with {len(frame.payload)} bytes instead of {form.size}")
    return form.unpack_from(frame.payload)


def decode_u32(frame: Frame) -> int:
    """STARTED's pid, STDIN_CREDIT's size, ACK's errno."""
    return _unpack(_U32, frame)[0]


def decode_welcome(frame: Frame) -> Welcome:
    """WELCOME.

    Raises:
        AgentProtocolError: malformed, another version, or limits that make no sense.
    """
    version, flags, max_payload, max_data, window, execs, pid = _unpack(_WELCOME, frame)
    if version != VERSION:
        raise AgentProtocolError(f"the agent speaks version {version} of the protocol, this host {VERSION}")
    if not (0 < max_data <= MAX_DATA and 0 < window <= 1 << 30 and max_payload >= MAX_DATA and execs > 0):
        raise AgentProtocolError("WELCOME with impossible limits")
    return Welcome(version, bool(flags & 1), bool(flags & 2), max_payload, max_data, window, execs, pid)


def decode_exit(frame: Frame) -> ExitReport:
    """EXIT.

    Raises:
        AgentProtocolError: malformed.
    """
    kind, flags, stage, code, duration, user, system, rss = _unpack(_EXIT, frame, exact=False)
    try:
        return ExitReport(
            ExitKind(kind), code, Stage(stage), bool(flags & 1), bool(flags & 2), bool(flags & 4), bool(flags & 8),
            bool(flags & 16), duration, user, system, rss, frame.payload[_EXIT.size :],
        )  # fmt: skip
    except ValueError as error:
        raise AgentProtocolError(f"EXIT: {error}") from error


def decode_error(frame: Frame) -> ErrorReport:
    """ERROR.

    Raises:
        AgentProtocolError: malformed.
    """
    code, kind, fatal = _unpack(_ERROR, frame, exact=False)
    return ErrorReport(code, kind, bool(fatal), frame.payload[_ERROR.size :].decode("utf-8", "replace"))
