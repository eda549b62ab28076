"""The agent as PID 1 of a namespace: reaping, self-protection, an image with nothing in it (rows R08 R09 R39)."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from agent_harness import ENV, INIT_WRAPPER, AgentProcess, agent_process, running_agent

from layerkit.errors import NotRunnableError
from layerkit.runtime.agent_client import AgentConnection, agent_program

pytestmark = pytest.mark.privileged
COUNT_ZOMBIES = "grep -c '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep -c ':1$'"
# Runs inside, as root with Docker's default capabilities; prints what succeeded.
ATTACK = r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert os.getuid() == 0
def attempt(name, function):
    try:
        function()
        print("DONE", name)
    except OSError as error:
        print("refused", name, error.strerror)
def pidfd_getfd(pid, fd):
    pidfd = os.pidfd_open(pid)
    if libc.syscall(438, pidfd, fd, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attach(pid):
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
for pid in (1, os.getppid()):
    for fd in range(10):
        attempt(f"pidfd_getfd {pid} {fd}", lambda: pidfd_getfd(pid, fd))
    attempt(f"mem {pid}", lambda: open(f"/proc/{pid}/mem", "r+b"))
    attempt(f"fd {pid}", lambda: open(f"/proc/{pid}/fd/3", "rb"))
    attempt(f"exe {pid}", lambda: open(f"/proc/{pid}/exe", "r+b"))
    attempt(f"environ {pid}", lambda: open(f"/proc/{pid}/environ", "rb").read(1))
    attempt(f"maps {pid}", lambda: open(f"/proc/{pid}/maps", "rb").read(1))
    attempt(f"root {pid}", lambda: os.stat(f"/proc/{pid}/root/."))
    attempt(f"attach {pid}", lambda: attach(pid))
"""


def test_r08_500_double_forked_orphans_leave_no_zombies() -> None:
    with running_agent(INIT_WRAPPER) as agent:
        assert agent.welcome.is_init
        script = "i=0; while [ $i -lt 500 ]; do (sleep 0.2 &); i=$((i+1)); done; exit 0"
        assert agent.exec(["sh", "-c", script], env=ENV, timeout_s=60).exit_code == 0
        time.sleep(1)
        assert agent.exec(["sh", "-c", COUNT_ZOMBIES], env=ENV).stdout.strip() == b"0"


def test_r09_orphans_are_reaped_while_their_exec_runs_on() -> None:
    script = f"i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); done; sleep 0.5; {COUNT_ZOMBIES}"
    with running_agent(INIT_WRAPPER) as agent:
        assert agent.exec(["sh", "-c", script], env=ENV, timeout_s=60).stdout.strip() == b"0"


def test_r39_root_inside_cannot_reach_the_agent() -> None:
    with running_agent(INIT_WRAPPER) as agent:
        result = agent.exec(["python3", "-c", ATTACK], env=ENV, timeout_s=60)
        lines = result.stdout.decode().splitlines()
        assert result.exit_code == 0, result.stderr
        assert len(lines) == 34
        assert [line for line in lines if line.startswith("DONE")] == []
        agent.ping()


def test_r39_killing_pid_1_from_inside_does_nothing() -> None:
    script = "for s in TERM INT QUIT KILL HUP USR1 SEGV STOP; do kill -$s 1; done; sleep 0.2; echo alive"
    with running_agent(INIT_WRAPPER) as agent:
        assert agent.exec(["sh", "-c", script], env=ENV, timeout_s=20).stdout == b"alive\n"
        agent.ping()


def test_command_survives_the_murder_of_its_supervisor() -> None:
    with running_agent(INIT_WRAPPER) as agent:
        result = agent.exec(["sh", "-c", "kill -9 $PPID; sleep 0.3; echo on; exit 6"], env=ENV, timeout_s=20)
        assert (result.stdout, result.exit_code) == (b"on\n", 6)
        late = agent.exec(["sh", "-c", "kill -9 $PPID; sleep 60 & sleep 60"], env=ENV, timeout_s=0.5)
        assert (late.timed_out, late.signal) == (True, 9)
        count = agent.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep"], env=ENV).stdout
        assert count.strip() == b"0"


def test_sigterm_from_outside_ends_the_namespace() -> None:
    agent = AgentProcess(INIT_WRAPPER)
    connection = AgentConnection(agent.socket)
    connection.start(["sh", "-c", "setsid sleep 1000 & sleep 1000"], env=ENV)
    time.sleep(0.2)
    os.kill(agent.pid, 15)
    assert agent.process.wait(timeout=10) == 0
    connection.close()
    agent.end()


def test_kill_all_in_a_namespace_spares_only_the_agent() -> None:
    with running_agent(INIT_WRAPPER) as agent:
        agent.exec(["sh", "-c", "for i in 1 2 3; do setsid sleep 500 >/dev/null 2>&1 & done"], env=ENV)
        held = agent.start(["sleep", "500"], env=ENV)
        agent.kill_all()
        assert held.wait().signal == 9
        listing = agent.exec(["sh", "-c", "cat /proc/[0-9]*/comm"], env=ENV).stdout.decode().split()
        assert set(listing) <= {"cat", "layerkit-agent", "layerkit-exec", "sh"}


def test_time_limit_ends_a_fork_bomb() -> None:
    with running_agent(INIT_WRAPPER) as agent:
        bomb = "f() { sleep 0.05; setsid sleep 100 & f & f & wait; }; f"
        start = time.monotonic()
        result = agent.exec(["prlimit", "--nproc=150", "sh", "-c", bomb], env=ENV, user="54321:54321", timeout_s=1)
        assert (result.timed_out, time.monotonic() - start < 8) == (True, True)
        left = agent.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep"], env=ENV).stdout
        assert left.strip() == b"0"


def test_lost_host_ends_the_namespace() -> None:
    with agent_process(INIT_WRAPPER) as process:
        connection = AgentConnection(process.socket)
        connection.start(["sleep", "1000"], env=ENV)
        connection.close()
        assert process.process.wait(timeout=10) == 0


@pytest.fixture
def bare_root(tmp_path: Path) -> Path:
    """A root with the agent's binary, a hostile /etc, one static program, and nothing else: no /dev, /proc, no libc."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "agent").write_bytes(agent_program().read_bytes())
    (root / "agent").chmod(0o755)
    os.mkfifo(root / "etc" / "passwd")
    (root / "etc" / "group").write_text("garbage\n:::\nlone:x:77:someone,other\n" + "x" * 100_000 + "\n")
    source = root / "show.c"
    source.write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { char b[9]; long n = read(0, b, 9);'
        ' printf("%d:%d %ld\\n", getuid(), getgid(), n); return 3; }\n'
    )  # fmt: skip
    subprocess.run(["cc", "-static", "-o", root / "show", source], check=True)
    return root


def test_r39_agent_needs_nothing_of_the_image(bare_root: Path) -> None:
    wrapper = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "chroot", str(bare_root))
    with running_agent(wrapper, program="/agent") as agent:
        assert not agent.welcome.has_proc
        result = agent.exec(["/show"], user="5:lone")
        assert (result.stdout, result.exit_code) == (b"5:77 0\n", 3)
        with pytest.raises(NotRunnableError, match="no such user"):
            agent.exec(["/show"], user="someone")
        agent.kill_all()
