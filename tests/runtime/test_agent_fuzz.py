"""Seeded garbage at the real agent: it answers, refuses or hangs up; it never crashes, hangs or grows."""

from __future__ import annotations

import random
import select
import socket
import struct
import time

import pytest
from agent_harness import AgentProcess, agent_process

from layerkit.runtime import agent_protocol as protocol
from layerkit.runtime.agent_protocol import ExecRequest, FrameType, Scope, encode

HELLO = protocol.encode_hello(keep=False)
EXEC_HEAD = struct.Struct("<IIIIIIQQ")


def request(dice: random.Random) -> ExecRequest:
    program = dice.choice([b"/bin/true", b"/bin/cat", b"/no/such", b"true", b""])
    return ExecRequest(
        argv=[program, *[dice.randbytes(dice.randrange(20)).replace(b"\0", b"") for _ in range(dice.randrange(4))]],
        env=[b"PATH=/bin"] * dice.randrange(3), cwd=dice.choice([b"/", b"", b"/no"]),
        user=dice.choice([b"", b"none", b"7"]), has_stdin=dice.random() < 0.5, timeout_ms=dice.choice([0, 1, 500]),
        stdout_credit=dice.choice([0, 1, 2**32 - 1]), stderr_credit=dice.choice([0, 100]),
        stdout_cap=dice.choice([0, 5, protocol.UNLIMITED]), stderr_cap=0,
    )  # fmt: skip


def good_frame(dice: random.Random) -> bytes:
    number = dice.randrange(1, 6)
    return dice.choice([
        lambda: protocol.encode_exec(number, request(dice)),
        lambda: encode(FrameType.STDIN, number, dice.randbytes(dice.choice([0, 1, 5000, 65536]))),
        lambda: encode(FrameType.STDIN_EOF, number),
        lambda: protocol.encode_credit(number, dice.randrange(4), dice.choice([0, 1, 2**32 - 1])),
        lambda: protocol.encode_signal(number, dice.choice([0, 15, 64, 65]), dice.choice(list(Scope))),
        lambda: protocol.encode_kill(number, discard=dice.random() < 0.5),
        lambda: encode(FrameType.KILL_ALL, number),
        lambda: encode(FrameType.PING, number, dice.randbytes(dice.randrange(65))),
        lambda: encode(dice.choice([0x10, 0x20, 0x33, 0x7F, 0x8A, 0xFF]), number, b"?" * dice.randrange(30)),  # type: ignore[arg-type]
    ])()  # fmt: skip


def spoil_payload(dice: random.Random, frame: bytes) -> bytes:
    """Other bytes and other lengths behind an intact header (never of an EXEC's program: it would be executed)."""
    head, body = frame[:12], bytearray(frame[12:])
    fixed = 40 if frame[2] == FrameType.EXEC else len(body)
    for _ in range(dice.randrange(1, 4)):
        if body and fixed:
            body[dice.randrange(min(fixed, len(body)))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.4:
        del body[dice.randrange(len(body) + 1) :]
    return head[:8] + struct.pack("<I", len(body)) + bytes(body)


def spoil_stream(dice: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(dice.randrange(1, 6)):
        at = dice.randrange(len(spoilt))
        action = dice.randrange(4)
        if action == 0:
            spoilt[at] ^= 1 << dice.randrange(8)
        elif action == 1:
            del spoilt[at : at + dice.randrange(1, 30)]
        elif action == 2:
            spoilt[at:at] = dice.randbytes(dice.randrange(1, 30))
        else:
            spoilt[at : at + 4] = struct.pack("<I", dice.choice([0, 2**32 - 1, 2**31, 65537, 4 << 20]))
        if not spoilt:
            break
    return bytes(spoilt)


def exchange(sock: socket.socket, data: bytes, until: bytes = b"", within_s: float = 10.0) -> bytes | None:
    """Send everything while reading everything; what came up to `until`, or None when the agent hung up."""
    view, received, deadline = memoryview(data), b"", time.monotonic() + within_s
    sock.setblocking(False)
    while view or (until and until not in received):
        assert time.monotonic() < deadline, f"no {until!r} in {len(received)} bytes"
        readable, writable, _ = select.select([sock], [sock] if view else [], [], 0.2)
        try:
            if readable:
                piece = sock.recv(1 << 16)
                if not piece:
                    return None
                received = received[-100:] + piece
            if writable:
                view = view[sock.send(view[: 1 << 16]) :]
        except (BrokenPipeError, ConnectionResetError):
            return None
    return received


def is_alive(agent: AgentProcess) -> bool:
    mark = struct.pack("<Q", random.getrandbits(64))
    return exchange(agent.socket, encode(FrameType.PING, 77, mark), encode(FrameType.PONG, 77, mark)) is not None


@pytest.mark.parametrize("seed", range(8))
def test_spoilt_payloads_cost_only_their_frame(seed: int) -> None:
    dice = random.Random(seed)
    with agent_process() as agent:
        exchange(agent.socket, HELLO)
        for _ in range(25):
            frames = [good_frame(dice) for _ in range(12)]
            spoilt = [spoil_payload(dice, frame) if dice.random() < 0.6 else frame for frame in frames]
            # A PING longer than allowed is a lost stream, which the other test is about.
            exchange(agent.socket, b"".join(frame for frame in spoilt if frame[2] != FrameType.SHUTDOWN))
            assert is_alive(agent)
        assert agent.rss_bytes() < 24 << 20
        assert agent.end() == 0


@pytest.mark.parametrize("seed", range(60))
def test_spoilt_streams_end_in_an_orderly_way(seed: int) -> None:
    dice = random.Random(1000 + seed)
    with agent_process() as agent:
        clean = b"" if dice.random() < 0.2 else HELLO
        frames = [frame for frame in (good_frame(dice) for _ in range(20)) if frame[2] != FrameType.EXEC]
        exchange(agent.socket, clean + spoil_stream(dice, b"".join(frames)))
        assert agent.end() == 0


@pytest.mark.parametrize("data", [
    b"", b"\0" * 100, b"\xff" * 100_000, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", HELLO * 3,
    encode(FrameType.PING), protocol.encode_hello(keep=True, version=9), HELLO + b"LK\x02\0" + b"\xff" * 8,
    HELLO + b"LK\x02\0" + struct.pack("<II", 1, 4 << 20) + b"x" * 1000,
    HELLO + encode(FrameType.EXEC, 1, EXEC_HEAD.pack(0, 2**32 - 1, 2**32 - 1, 0, 0, 0, 0, 0) + b"/\0\0a\0"),
    HELLO + encode(FrameType.EXEC, 1, EXEC_HEAD.pack(0, 1, 0, 0, 0, 0, 0, 0) + b"/\0\0" + b"a" * (4 << 20)),
], ids=range(11))  # fmt: skip
def test_openings(data: bytes) -> None:
    with agent_process() as agent:
        exchange(agent.socket, data)
        time.sleep(0.02)
        assert agent.end() == 0


def test_agent_that_is_not_read_stops_reading_and_recovers() -> None:
    """Ten MiB of pings without reading: bounded memory inside, and every answer comes once we read."""
    with agent_process() as agent:
        exchange(agent.socket, HELLO)
        agent.socket.setblocking(False)
        flood, sent, deadline = encode(FrameType.PING, 1, b"x" * 64) * 1000, 0, time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                sent += agent.socket.send(flood[sent % len(flood) :])
            except BlockingIOError:
                time.sleep(0.01)
        assert agent.rss_bytes() < 8 << 20
        assert sent < 3 << 20
        assert exchange(agent.socket, flood[sent % len(flood) :]) is not None
        assert is_alive(agent)


def test_thousand_execs_and_one_more() -> None:
    """The limit on execs is an answer; the agent's memory stays small with that many."""
    held = ExecRequest([b"/bin/sleep", b"50"], [], b"/", b"", False, 0, 1, 1, 1, 1)
    with agent_process() as agent:
        exchange(agent.socket, HELLO)
        for number in range(1, 1025):
            exchange(agent.socket, protocol.encode_exec(number, held))
        answer = exchange(agent.socket, protocol.encode_exec(2000, held), b"too many execs")
        assert answer is not None
        assert agent.rss_bytes() < 8 << 20
        assert exchange(agent.socket, encode(FrameType.KILL_ALL, 5), encode(FrameType.ACK, 5, bytes(4))) is not None
