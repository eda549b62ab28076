"""Starts the real agent for tests: as a plain process, or as PID 1 of a namespace of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from layerkit.runtime.agent_client import AgentConnection, agent_program

ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
# As a sandbox is made: a PID namespace with its own /proc, and Docker's default capabilities for root inside.
CAPABILITIES = (
    "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,"
    "+sys_chroot,+kill,+audit_write"
)
INIT_WRAPPER = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
    "setpriv", f"--bounding-set={CAPABILITIES}", "--inh-caps=-all",
)  # fmt: skip


class AgentProcess:
    """The agent's process and our end of its connection."""

    def __init__(self, wrapper: tuple[str, ...] = (), program: str = "") -> None:
        ours, theirs = socket.socketpair()
        command = [*wrapper, program or str(agent_program()), "--fd", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket = ours
        self.is_wrapped = bool(wrapper)

    @property
    def pid(self) -> int:
        """The agent's own pid as we see it."""
        return children_of(self.process.pid)[0] if self.is_wrapped else self.process.pid

    def rss_bytes(self) -> int:
        return status_kib(self.pid, "VmRSS") * 1024

    def end(self) -> int:
        """Hang up and return the exit code."""
        self.socket.close()
        try:
            return self.process.wait(timeout=15)
        finally:
            self.process.kill()
            self.process.wait()


@contextmanager
def agent_process(wrapper: tuple[str, ...] = ()) -> Iterator[AgentProcess]:
    agent = AgentProcess(wrapper)
    try:
        yield agent
    finally:
        agent.end()


@contextmanager
def running_agent(wrapper: tuple[str, ...] = (), *, keep: bool = False, program: str = "") -> Iterator[AgentConnection]:
    """A connection to an agent that has to end well, too."""
    agent = AgentProcess(wrapper, program)
    try:
        with AgentConnection(agent.socket, keep=keep) as connection:
            yield connection
        if not keep:
            assert agent.process.wait(timeout=15) == 0
    finally:
        if agent.process.poll() is None:
            agent.process.terminate()
        agent.end()


def status_kib(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field))


def children_of(pid: int) -> list[int]:
    return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def find_processes(marker: str) -> list[int]:
    """The pids of living processes that have the marker in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
