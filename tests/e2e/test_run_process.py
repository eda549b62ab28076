"""`layerkit run` as a process among others: its standard streams, its signals, and what a killed one leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Program

pytestmark = [pytest.mark.privileged]


def start_sleeper(layerkit: Program, base: str) -> subprocess.Popen[bytes]:
    words = ["run", base, "--", "/bin/sh", "-c", "echo up; sleep 300"]
    program = subprocess.Popen([sys.executable, "-m", "layerkit", *words], env=layerkit.env, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"up\n"
    return program


def sandboxes(layerkit: Program) -> list[Path]:
    run = Path(layerkit.env["LAYERKIT_RUN"])
    found = [*run.glob("sandboxes/*"), *layerkit.home.glob("sandboxes/*")]
    return [*found, *(group for path in found for group in Path("/sys/fs/cgroup").glob(f"**/layerkit-{path.stem}"))]


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        ("<&-", 0),
        (">&-", 0),
        ("2>&-", 0),
        ("<&- >&- 2>&-", 0),
        (">/dev/full", 125),
        ("| true", 141),
    ],
)
def test_r16_odd_standard_streams(layerkit: Program, base: str, redirection: str, code: int) -> None:
    script = "cat; n=0; while echo y && [ $((n += 1)) -lt 20000 ]; do :; done"
    command = f"{sys.executable} -m layerkit run {base} -- /bin/sh -c '{script}'"
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirection}; exit ${{PIPESTATUS[0]}}"],
        env=layerkit.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60,
        check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    assert not sandboxes(layerkit)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_r02_a_signal_ends_the_command_and_leaves_nothing(layerkit: Program, base: str, number: signal.Signals) -> None:
    with start_sleeper(layerkit, base) as program:
        program.send_signal(number)
        assert program.wait(20) == 128 + number
    assert not sandboxes(layerkit)


@pytest.mark.parametrize("words", [("run", "base/small:1", "--", "/bin/true"), ("umount", "--all")])
def test_r02_what_a_killed_run_leaves_goes_with_the_next_command(
    layerkit: Program, base: str, words: tuple[str, ...]
) -> None:
    with start_sleeper(layerkit, base) as program:
        program.kill()
    assert sandboxes(layerkit)
    layerkit(*words)
    assert not sandboxes(layerkit)


def test_nothing_is_mounted_over_the_root(layerkit: Program, base: str, tmp_path: Path) -> None:
    done = layerkit.call("run", "-v", f"{tmp_path}:/", base, "--", "/bin/true")
    assert done.returncode == 125
    assert b"over the sandbox's root" in done.stderr


@pytest.mark.parametrize("restart", [False, True])
def test_l01_the_commands_exit_code_outlives_hostd(layerkit: Program, base: str, restart: bool) -> None:
    words = ["run", base, "--", "/bin/sh", "-c", "echo up; read line; exit 3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "layerkit", *words], env=layerkit.env, stdin=pipe, stdout=pipe
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        os.kill(layerkit.status()["hostd"]["pid"], signal.SIGKILL)
        if restart:
            layerkit("run", base, "--", "/bin/true")
        program.communicate(b"\n", timeout=30)
        assert program.returncode == 3
    layerkit("run", base, "--", "/bin/true")
    deadline = time.monotonic() + 10.0
    while layerkit.status()["leases"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not layerkit.status()["leases"]
