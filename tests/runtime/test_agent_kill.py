"""Time limits, signals and ends: nothing stays behind (rows R17 R41)."""

from __future__ import annotations

import secrets
import signal
import threading
import time

import pytest
from agent_harness import ENV, agent_process, eventually, find_processes, running_agent

from layerkit.errors import SandboxError, SandboxLostError
from layerkit.runtime.agent_client import AgentConnection


@pytest.fixture
def marker() -> str:
    """An argument by which the processes of one test are found."""
    return f"9{secrets.randbelow(10**9):09d}"


# Ways out of a process group and a session: each leaves `sleep MARKER` behind.
ESCAPES = {
    "background": "sleep {0} & sleep 30",
    "setsid": "setsid sleep {0} & sleep 30",
    "double fork": "(setsid sh -c 'sleep {0} & sleep 0.1' &) ; sleep 30",
    "empty environment": "env -i setsid sleep {0} & sleep 30",
    "nohup": "nohup setsid nohup sleep {0} >/dev/null 2>&1 & sleep 30",
    "ignores signals": "trap '' TERM INT HUP; setsid sleep {0} & sleep 30",
    "stopped": "sleep {0} & kill -STOP $!; sleep 30",
    "spawns on": "(while :; do setsid sleep {0} & sleep 0.01; done) & sleep 30",
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES.keys())
def test_r17_time_limit_ends_the_whole_tree(script: str, marker: str) -> None:
    with running_agent() as agent:
        start = time.monotonic()
        result = agent.exec(["sh", "-c", script.format(marker)], env=ENV, timeout_s=0.7)
        assert time.monotonic() - start < 4
        assert (result.timed_out, result.signal, result.exit_code) == (True, 9, 137)
        assert find_processes(marker) == []


def test_r17_other_execs_are_not_touched(marker: str) -> None:
    with running_agent() as agent:
        other = agent.start(["sh", "-c", "setsid sleep 1 & wait; sleep 1; echo alive"], env=ENV)
        agent.exec(["sh", "-c", f"setsid sleep {marker} & sleep 30"], env=ENV, timeout_s=0.3)
        assert other.wait().stdout == b"alive\n"


def test_r41_time_limit_is_kept_to_the_moment() -> None:
    with running_agent() as agent:
        start = time.monotonic()
        result = agent.exec(["sleep", "5"], env=ENV, timeout_s=1)
        assert 1 <= time.monotonic() - start < 1.5
        assert result.timed_out


def test_command_within_its_limit_is_left_alone() -> None:
    with running_agent() as agent:
        result = agent.exec(["sh", "-c", "sleep 0.2; exit 9"], env=ENV, timeout_s=5)
    assert (result.exit_code, result.timed_out) == (9, False)


def test_output_before_the_limit_is_kept() -> None:
    with running_agent() as agent:
        result = agent.exec(["sh", "-c", "echo before; sleep 30"], env=ENV, timeout_s=0.5)
    assert (result.stdout, result.timed_out) == (b"before\n", True)


def test_signal_reaches_the_group_also_right_after_the_start() -> None:
    with running_agent() as agent:
        for _ in range(20):
            running = agent.start(["sh", "-c", "sleep 30 | sleep 30"], env=ENV)
            running.signal(signal.SIGTERM)
            assert running.wait().signal == signal.SIGTERM
        waiting = agent.start(["sh", "-c", "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done"],
                              env=ENV)  # fmt: skip
        time.sleep(0.3)
        agent.signal(waiting.id, signal.SIGUSR1)
        result = waiting.wait()
        assert (result.stdout, result.exit_code) == (b"ready\ncaught\n", 3)
        agent.signal(waiting.id, signal.SIGTERM)  # too late: no error
        agent.ping()


def test_kill_ends_one_exec_and_its_tree(marker: str) -> None:
    with running_agent() as agent:
        running = agent.start(["sh", "-c", f"setsid sleep {marker} & sleep 30"], env=ENV)
        assert eventually(lambda: bool(find_processes(f"sleep\0{marker}")))
        running.kill()
        result = running.wait()
        assert (result.signal, result.timed_out) == (9, False)
        assert find_processes(marker) == []


def test_kill_all_ends_everything_and_the_agent_goes_on(marker: str) -> None:
    with running_agent() as agent:
        agent.exec(["sh", "-c", f"setsid sleep {marker} >/dev/null 2>&1 & "], env=ENV)
        running = [agent.start(["sleep", marker], env=ENV) for _ in range(10)]
        agent.kill_all()
        assert find_processes(marker) == []
        assert {one.wait().signal for one in running} == {9}
        assert agent.exec(["echo", "on"], env=ENV).stdout == b"on\n"
        agent.kill_all()  # with nothing to kill


def test_shutdown_ends_everything(marker: str) -> None:
    with agent_process() as process:
        agent = AgentConnection(process.socket)
        running = agent.start(["sh", "-c", f"setsid sleep {marker} & sleep 30"], env=ENV)
        time.sleep(0.2)
        agent.shutdown()
        assert process.process.wait(timeout=10) == 0
        assert find_processes(marker) == []
        assert running.wait().signal == 9
        with pytest.raises(SandboxLostError):
            agent.exec(["true"], env=ENV)
        agent.shutdown()  # idempotent
        agent.close()


def test_lost_host_ends_everything(marker: str) -> None:
    with agent_process() as process:
        agent = AgentConnection(process.socket)
        agent.start(["sh", "-c", f"setsid sleep {marker} & sleep 30"], env=ENV)
        assert eventually(lambda: bool(find_processes(f"sleep\0{marker}")))
        agent.close()
        assert process.process.wait(timeout=10) == 0
        assert find_processes(marker) == []


def test_lost_host_is_survived_where_asked(marker: str) -> None:
    with agent_process() as process:
        agent = AgentConnection(process.socket, keep=True)
        agent.start(["sh", "-c", f"yes | head -c 10M; exec sleep {marker}"], env=ENV, stdin=b"x")
        agent.close()
        assert eventually(lambda: bool(find_processes(f"sleep\0{marker}")))  # its output did not block it
        assert process.process.poll() is None
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(timeout=10) == 0
        assert find_processes(marker) == []


def test_sigterm_is_forwarded_then_the_agent_ends(marker: str) -> None:
    with agent_process() as process:
        agent = AgentConnection(process.socket)
        script = f"trap 'echo bye; exit 4' TERM; setsid sleep {marker} & while :; do sleep 0.05; done"
        running = agent.start(["sh", "-c", script], env=ENV)
        assert eventually(lambda: bool(find_processes(f"sleep\0{marker}")))
        process.process.send_signal(signal.SIGTERM)
        result = running.wait()
        assert (result.stdout, result.exit_code) == (b"bye\n", 4)
        assert process.process.wait(timeout=10) == 0
        assert find_processes(marker) == []
        agent.close()


def test_no_exec_starts_while_everything_is_being_ended() -> None:
    with agent_process() as process:
        agent = AgentConnection(process.socket)
        stubborn = agent.start(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], env=ENV)
        time.sleep(0.3)
        process.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(SandboxError, match="being ended"):
            agent.exec(["true"], env=ENV)
        process.process.send_signal(signal.SIGTERM)  # the second one does not wait
        assert process.process.wait(timeout=5) == 0
        assert stubborn.wait().signal == 9
        agent.close()


def test_interrupted_wait_kills_the_command(marker: str) -> None:
    def refuse(_: bytes) -> None:
        raise KeyboardInterrupt

    with running_agent() as agent:
        with pytest.raises(KeyboardInterrupt):
            agent.exec(["sh", "-c", f"echo; setsid sleep {marker} & sleep 30"], env=ENV, stdout=refuse)
        assert eventually(lambda: not find_processes(marker))
        agent.ping()


def test_hundred_time_limits_at_once(marker: str) -> None:
    results = []
    with running_agent() as agent:

        def one() -> None:
            results.append(agent.exec(["sh", "-c", f"setsid sleep {marker} & sleep 30"], env=ENV, timeout_s=1))

        threads = [threading.Thread(target=one) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert [result.timed_out for result in results] == [True] * 50
        assert find_processes(marker) == []
