"""The client against peers that misbehave, and against the real agent where the host is the slow one (row R20)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from agent_harness import ENV, agent_process, eventually, find_processes, running_agent

from layerkit.errors import AgentProtocolError, NotRunnableError, SandboxLostError, SandboxTimeoutError
from layerkit.runtime import agent_exec
from layerkit.runtime import agent_protocol as protocol
from layerkit.runtime.agent_client import AgentConnection
from layerkit.runtime.agent_protocol import FrameType, encode

WELCOME = encode(FrameType.WELCOME, 0, struct.pack("<HHIIIII", 1, 3, 4 << 20, 64 << 10, 256 << 10, 1024, 1))
EXIT_0 = bytes(40)


class BadAgent:
    """Speaks the protocol badly: answers the handshake, and each further frame as `answer` says."""

    def __init__(self, sock: socket.socket, answer: Callable[[int, int], bytes], welcome: bytes = WELCOME) -> None:
        self._sock = sock
        self._answer = answer
        self._welcome = welcome

    def run(self) -> None:
        try:
            self._read_frame()
            self._sock.sendall(self._welcome)
            while (frame := self._read_frame()) is not None:
                self._sock.sendall(self._answer(*frame))
        except OSError:
            return
        finally:
            self._sock.close()

    def _read_frame(self) -> tuple[int, int] | None:
        header = self._sock.recv(12, socket.MSG_WAITALL)
        if len(header) < 12:
            return None
        _, kind, _, number, length = protocol.HEADER.unpack(header)
        self._sock.recv(length, socket.MSG_WAITALL)
        return kind, number


@contextmanager
def bad_agent(answer: Callable[[int, int], bytes], welcome: bytes = WELCOME) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=BadAgent(theirs, answer, welcome).run)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(timeout=10)


@pytest.mark.parametrize("welcome", [
    b"SSH-2.0-OpenSSH_9.2p1\r\n",
    encode(FrameType.PONG),
    encode(FrameType.WELCOME, 0, b"short"),
    encode(FrameType.WELCOME, 0, struct.pack("<HHIIIII", 2, 0, 4 << 20, 64 << 10, 256 << 10, 1024, 1)),
    encode(FrameType.WELCOME, 0, struct.pack("<HHIIIII", 1, 0, 4 << 20, 0, 256 << 10, 1024, 1)),
    encode(FrameType.ERROR, 0, struct.pack("<HBB", 8, 1, 1) + b"other version"),
    WELCOME + encode(FrameType.PONG),
], ids=["foreign", "pong", "short", "version", "limits", "refused", "early"])  # fmt: skip
def test_bad_handshakes(welcome: bytes) -> None:
    with bad_agent(lambda kind, number: b"", welcome) as sock, pytest.raises(AgentProtocolError):
        AgentConnection(sock)


def test_handshake_has_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    start = time.monotonic()
    with pytest.raises(SandboxLostError):
        AgentConnection(ours, handshake_s=0.3)
    assert time.monotonic() - start < 2
    theirs.close()
    with pytest.raises(SandboxLostError):
        AgentConnection(socket.socketpair()[0])


def exec_twice(connection: AgentConnection) -> None:
    """What comes after the end of an exec is seen by the next one."""
    connection.exec(["true"], timeout_s=20)
    time.sleep(0.05)
    connection.exec(["true"], timeout_s=20)


@pytest.mark.parametrize("answer", [
    lambda kind, number: encode(FrameType.EXIT, number + 1, EXIT_0),
    lambda kind, number: encode(FrameType.EXIT, number, EXIT_0[:39]),
    lambda kind, number: encode(FrameType.EXIT, number, b"\x09" + EXIT_0[1:]),
    lambda kind, number: encode(FrameType.STDOUT, number, bytes(65536)) * 17,
    lambda kind, number: encode(FrameType.EXIT, number, EXIT_0) * 2 + encode(FrameType.EXIT, number, EXIT_0),
    lambda kind, number: encode(FrameType.STARTED, number, b"1"),
    lambda kind, number: encode(FrameType.STDIN_CREDIT, number, b""),
    lambda kind, number: b"x" * 100,
    lambda kind, number: protocol.HEADER.pack(b"LK", FrameType.STDOUT, 0, number, 2**31),
    lambda kind, number: protocol.HEADER.pack(b"LK", 0xEE, 0, number, 0),
    lambda kind, number: encode(FrameType.ERROR, 0, struct.pack("<HBB", 3, 2, 1) + b"what?"),
], ids=["other id", "short", "kind", "credit", "after the end", "started", "stdin credit", "garbage", "huge", "type",
        "complaint"])  # fmt: skip
def test_violations_are_typed(answer: Callable[[int, int], bytes]) -> None:
    with bad_agent(answer) as sock:
        connection = AgentConnection(sock)
        with pytest.raises(AgentProtocolError):
            exec_twice(connection)
        connection.close()


def test_r18_silent_agent_is_given_up_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_exec, "ANSWER_GRACE_S", 0.3)
    with bad_agent(lambda kind, number: b"") as sock, AgentConnection(sock) as connection:
        start = time.monotonic()
        with pytest.raises(SandboxLostError):
            connection.exec(["true"], timeout_s=0.2)
        with pytest.raises(SandboxLostError):
            connection.ping(timeout_s=0.2)
        assert time.monotonic() - start < 3


def test_lost_connection_wakes_everybody() -> None:
    with agent_process() as process:
        connection = AgentConnection(process.socket)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                connection.exec(["sleep", "98765.4"], env=ENV)
            except SandboxLostError as error:
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(10)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        process.process.kill()  # as no PID 1 it leaves its commands behind
        for pid in find_processes("sleep\x0098765.4"):
            os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join(timeout=5)
        assert len(failures) == 10
        for action in (lambda: connection.exec(["true"]), connection.ping, connection.kill_all):
            with pytest.raises(SandboxLostError):
                action()
        connection.close()


def test_r20_1_gib_streams_through_flat_memory() -> None:
    count = 0

    def take(data: bytes) -> None:
        nonlocal count
        count += len(data)

    with agent_process() as process, AgentConnection(process.socket) as agent:
        agent.exec(["head", "-c", "16M", "/dev/zero"], env=ENV, stdout=take)
        before, ours = process.rss_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count, start = 0, time.process_time()
        assert agent.exec(["head", "-c", "1G", "/dev/zero"], env=ENV, stdout=take, timeout_s=120).exit_code == 0
        rate = count / (time.process_time() - start) / (1 << 20)
        assert count == 1 << 30
        assert process.rss_bytes() - before < 1 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - ours < 16 << 10
        assert rate > 200, f"{rate:.0f} MiB a second of our processor"


def test_slow_reader_holds_its_own_command_only() -> None:
    got = 0

    def slow(data: bytes) -> None:
        nonlocal got
        got += len(data)
        time.sleep(0.02)

    with agent_process() as process, AgentConnection(process.socket) as agent:
        results = []
        thread = threading.Thread(
            target=lambda: results.append(agent.exec(["head", "-c", "6M", "/dev/zero"], env=ENV, stdout=slow))
        )
        thread.start()
        unread = agent.start(["cat", "/dev/zero"], env=ENV)  # nobody waits for this one
        for _ in range(30):
            assert agent.exec(["head", "-c", "200000", "/dev/zero"], env=ENV, timeout_s=20).stdout == bytes(200000)
        assert process.rss_bytes() < 16 << 20
        unread.kill()
        assert unread.wait().signal == 9
        thread.join()
        assert got == 6 << 20


def test_output_goes_to_descriptors(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with running_agent() as agent, (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        script = "head -c 3M /dev/zero; echo e >&2"
        result = agent.exec(["sh", "-c", script], env=ENV, stdout=out.fileno(), stderr=err.fileno())
        assert (result.stdout, result.stderr, result.exit_code) == (b"", b"", 0)
        assert (tmp_path / "out").stat().st_size == 3 << 20
        assert (tmp_path / "err").read_bytes() == b"e\n"


def test_pipe_as_output_pushes_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    read_end, write_end = os.pipe()
    with running_agent() as agent:
        results = []
        thread = threading.Thread(
            target=lambda: results.append(agent.exec(["head", "-c", "8M", "/dev/zero"], env=ENV, stdout=write_end))
        )
        thread.start()
        total, deadline = 0, time.monotonic() + 30
        while total < 8 << 20 and time.monotonic() < deadline:
            total += len(os.read(read_end, 65536))
        thread.join()
        assert results[0].exit_code == 0
        assert os.get_blocking(write_end)  # the caller's descriptor is as it was
    os.close(read_end)
    os.close(write_end)


def test_r18_pipe_that_nobody_reads_does_not_outlast_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_exec, "ANSWER_GRACE_S", 0.5)
    read_end, write_end = os.pipe()
    with running_agent() as agent:
        start = time.monotonic()
        with pytest.raises(SandboxTimeoutError):
            agent.exec(["cat", "/dev/zero"], env=ENV, stdout=write_end, timeout_s=0.5)
        assert time.monotonic() - start < 5
        assert agent.exec(["echo", "on"], env=ENV).stdout == b"on\n"
    os.close(read_end)
    os.close(write_end)


def test_closed_pipe_as_output_ends_the_command() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with running_agent() as agent:
        with pytest.raises(BrokenPipeError):
            agent.exec(["cat", "/dev/zero"], env=ENV, stdout=write_end, timeout_s=20)
        assert agent.exec(["echo", "on"], env=ENV).stdout == b"on\n"
    os.close(write_end)


def test_errors_of_an_output_function_reach_the_caller_and_end_the_command() -> None:
    def fail(data: bytes) -> None:
        raise ValueError(data[:1])

    with running_agent() as agent:
        for _ in range(5):
            with pytest.raises(ValueError, match="y"):
                agent.exec(["yes"], env=ENV, stdout=fail)
        assert agent.exec(["echo", "on"], env=ENV).stdout == b"on\n"
        agent.kill_all()


def test_waiting_again_gives_the_same_result() -> None:
    with running_agent() as agent:
        running = agent.start(["sh", "-c", "echo x; exit 3"], env=ENV)
        assert running.wait() == running.wait()
        failing = agent.start(["no-such"], env=ENV)
        for _ in range(2):
            with pytest.raises(NotRunnableError):
                failing.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may list the descriptors of the agent")
def test_descriptors_do_not_leak() -> None:
    with running_agent() as agent:
        agent.exec(["true"], env=ENV)
        before = len(os.listdir("/proc/self/fd"))
        agents = len(os.listdir(f"/proc/{agent.welcome.pid}/fd"))
        for _ in range(200):
            agent.exec(["true"], env=ENV, stdin=b"x")
        assert len(os.listdir("/proc/self/fd")) == before
        assert eventually(lambda: len(os.listdir(f"/proc/{agent.welcome.pid}/fd")) <= agents)
