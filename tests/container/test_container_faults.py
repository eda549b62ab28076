"""Faults that others have seen (docs: fault rows R…): leaks, lost exits, kills in odd states."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layerkit import settings
from layerkit.errors import HostError, SandboxError, SandboxLostError
from layerkit.runtime import network
from layerkit.runtime.cgroups import probe_layout
from layerkit.runtime.limits import Limits
from layerkit.runtime.records import cleanup_leftovers
from tests.container.conftest import Start, eventually, mount_lines, traces
from tests.container.crash_driver import STEPS

pytestmark = pytest.mark.privileged


def links() -> set[str]:
    return {name for name in os.listdir("/sys/class/net") if name.startswith(network.LINK_PREFIX)}


def loops(below: Path) -> int:
    return sum(path.read_text().startswith(str(below)) for path in Path("/sys/block").glob("loop*/loop/backing_file"))


def test_r01_same_id_a_hundred_times_while_others_hold_the_mounts(start: Start) -> None:
    holders = []
    try:
        for number in range(100):
            sandbox = start(id="again")
            if number % 10 == 0:
                holders.append(subprocess.Popen(["unshare", "-m", "sleep", "60"]))
            sandbox.stop()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


@pytest.mark.parametrize("step", STEPS)
def test_r02_r32_killed_at_each_step(step: str, instance: Path, small_root: Path, tmp_path: Path) -> None:
    before = links()
    upper = tmp_path / "upper"
    upper.mkdir()
    name = f"crash-{step}-{os.getpid()}"
    driver = [sys.executable, "-m", "tests.container.crash_driver", step, str(small_root), name]
    done = subprocess.run([*driver, str(upper) if step == "running" else ""], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done
    cleanup_leftovers(settings.run_dir(), settings.home_dir())
    assert traces(name) == []
    assert list((instance / "home/sandboxes").glob("*")) == []
    assert list((instance / "run/sandboxes").glob("*")) == []
    assert [path.name for path in tmp_path.iterdir() if "work" in path.name] == []
    assert mount_lines(instance) == 0
    assert eventually(lambda: links() == before)
    assert eventually(lambda: loops(instance) == 0)
    assert cleanup_leftovers(settings.run_dir(), settings.home_dir()) == []


def test_r35_sandbox_of_a_dead_client_ends_by_itself(instance: Path, small_root: Path) -> None:
    name = f"orphan-{os.getpid()}"
    driver = [sys.executable, "-m", "tests.container.crash_driver", "running", str(small_root), name, ""]
    subprocess.run(driver, check=False, capture_output=True)
    assert list((instance / "home/sandboxes").glob("*")) != []
    assert eventually(lambda: probe_layout().group(f"layerkit-{name}").pids() == [])
    assert cleanup_leftovers(settings.run_dir(), settings.home_dir()) == [name]


def test_l37_parallel_loops(start: Start) -> None:
    def loop(number: int) -> int:
        for _ in range(4):
            sandbox = start(id=f"loop-{number}")
            assert sandbox.exec(["sh", "-c", f"echo {number} > /mine; cat /mine"]).stdout == b"%d\n" % number
            sandbox.stop()
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(loop, range(8))) == list(range(8))


def test_r13_parallel_execs(start: Start) -> None:
    sandbox = start()
    with ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(lambda number: sandbox.exec(["sh", "-c", f"exit {number}"]).exit_code, range(100)))
    assert codes == list(range(100))


def test_cleanup_leaves_the_living_alone(start: Start) -> None:
    sandbox = start()
    assert cleanup_leftovers(settings.run_dir(), settings.home_dir()) == []
    assert sandbox.exec(["true"]).exit_code == 0


def test_files_from_before_a_reboot_are_removed(instance: Path) -> None:
    old = instance / "home/sandboxes/old/data/upper"
    old.mkdir(parents=True)
    assert cleanup_leftovers(settings.run_dir(), settings.home_dir()) == ["old"]


def test_r05_nothing_grows(start: Start, instance: Path) -> None:
    def count() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), mount_lines(instance), threading.active_count()

    start().stop()
    first = count()
    for _ in range(40):
        sandbox = start()
        if _ % 2:
            os.kill(sandbox.pid, signal.SIGKILL)
        sandbox.stop()
    assert count() == first


def test_r06_disk_limit(start: Start) -> None:
    free = os.statvfs(settings.home_dir().parent).f_bfree
    sandbox = start(limits=Limits(disk_mb=24))
    done = sandbox.exec(["dd", "if=/dev/zero", "of=/big", "bs=1M", "count=100"])
    assert done.exit_code != 0
    assert b"No space left" in done.stderr
    assert sandbox.exec(["sh", "-c", "rm /big; echo ok > /small; chown 9 /small"]).exit_code == 0
    assert (sandbox.upper / "small").stat().st_uid == 9
    sandbox.stop()
    assert eventually(lambda: os.statvfs(settings.home_dir().parent).f_bfree > free - (200 << 20) // 4096)


def test_r08_r09_orphans_are_reaped(start: Start) -> None:
    sandbox = start()
    sandbox.exec(
        ["bash", "-c", "for i in {1..200}; do (setsid true &) ; done; for i in {1..50}; do (sleep 0.1 &); done"]
    )

    def zombies() -> bool:
        return b"Z" not in sandbox.exec(["ps", "-eo", "stat"]).stdout

    assert eventually(zombies)


def test_r10_background_child_holds_stdout(start: Start) -> None:
    begin = time.monotonic()
    done = start().exec(["sh", "-c", "sleep 300 & echo ok"])
    assert done.stdout == b"ok\n"
    assert time.monotonic() - begin < 2.5


def test_r11_output_beyond_pipes(start: Start) -> None:
    sizes = [0, 0]

    def out(piece: bytes) -> None:
        sizes[0] += len(piece)

    def err(piece: bytes) -> None:
        sizes[1] += len(piece)

    script = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2; done"
    assert start().exec(["sh", "-c", script], stdout=out, stderr=err).exit_code == 0
    assert sizes == [32_000_000, 32_000_000]


@pytest.mark.parametrize("size", [0, 1, 10 << 20])
def test_r12_stdin_has_an_end(start: Start, size: int) -> None:
    done = start().exec(["sh", "-c", "cat | wc -c"], stdin=b"x" * size, timeout_s=20)
    assert done.stdout.strip() == str(size).encode()


def test_r17_r41_timeout_kills_all(start: Start) -> None:
    sandbox = start()
    begin = time.monotonic()
    done = sandbox.exec(["sh", "-c", "setsid sleep 999 & sleep 998"], timeout_s=0.5)
    assert done.timed_out
    assert time.monotonic() - begin < 3
    assert eventually(lambda: b"sleep" not in sandbox.exec(["ps", "-eo", "args"]).stdout)


BOMB = 'x=x; while :; do x="$x$x$x$x"; done'


def test_r21_oom_is_seen(start: Start) -> None:
    sandbox = start(limits=Limits(memory_mb=48))
    done = sandbox.exec(["bash", "-c", BOMB], timeout_s=30)
    assert done.oom_killed
    assert done.exit_code != 0
    assert not sandbox.exec(["true"]).oom_killed


def test_limits_are_in_force(start: Start) -> None:
    sandbox = start(limits=Limits(pids=16, memory_mb=64, cpus=0.5, shm_mb=2))
    done = sandbox.exec(["bash", "-c", "for i in {1..40}; do sleep 5 & done; wait"], timeout_s=1)
    assert b"fork" in done.stderr
    shm = sandbox.exec(["dd", "if=/dev/zero", "of=/dev/shm/x", "bs=1M", "count=4"])
    assert b"No space left" in shm.stderr
    sandbox.exec(["bash", "-c", "for n in 1 2 3; do (while :; do :; done) & done; sleep 0.5"], timeout_s=1)
    folder = sandbox._group.folder("cpu")
    assert folder is not None
    throttled = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())["nr_throttled"]
    assert int(throttled) > 0


def test_r22_nested_groups_are_removed(start: Start) -> None:
    sandbox = start()
    sandbox.agent.start(["sleep", "100"])
    for folder in sandbox._group.folders:
        (folder / "a/b").mkdir(parents=True)
    child = subprocess.Popen(["sleep", "100"])
    for folder in sandbox._group.folders:
        if "cpuset" not in str(folder):
            (folder / "a/b/cgroup.procs").write_text(str(child.pid))
    sandbox.stop()
    assert child.wait(10) == -signal.SIGKILL


def test_r23_kill_of_a_paused_sandbox(start: Start) -> None:
    sandbox = start()
    running = sandbox.agent.start(["sleep", "100"])
    sandbox.pause()
    begin = time.monotonic()
    sandbox.stop()
    assert time.monotonic() - begin < 2
    with pytest.raises(SandboxLostError):
        running.wait()


def test_pause_and_resume(start: Start) -> None:
    sandbox = start()
    running = sandbox.agent.start(["sh", "-c", "sleep 0.3; echo done"])
    sandbox.pause()
    time.sleep(0.5)
    sandbox.resume()
    assert running.wait().stdout == b"done\n"


def test_r18_death_from_outside_is_typed(start: Start) -> None:
    sandbox = start()
    running = sandbox.agent.start(["sleep", "100"])
    os.kill(sandbox.pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError):
        running.wait()
    assert eventually(lambda: not sandbox.is_alive)


def test_a_strangers_process_is_not_killed(start: Start) -> None:
    """The first process died unseen, and its number went to somebody else."""
    sandbox = start()
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        sandbox.agent.shutdown()
        assert sandbox._launch is not None
        sandbox._launch.finish()
        (sandbox.assembly.bundle / "pid").write_text(str(stranger.pid))
        assert not sandbox.is_alive
        sandbox.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("step", ["choose_link", "_make_link", "_switch_on"])
def test_r32_network_that_fails_between_steps(start: Start, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: object) -> None:
        raise HostError("made to fail")

    before = links()
    monkeypatch.setattr(network, step, fail)
    with pytest.raises(HostError, match="made to fail"):
        start(network="nat")
    assert links() == before
    if not before:
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        assert network.TABLE not in tables


def test_runtime_errors_are_shown(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerkit.runtime.assembly.default_filter", lambda *_: b"not a program")
    with pytest.raises(SandboxError, match=r"the agent did not start: seccomp"):
        start()
