"""A root file system made of this machine's own programs, and sandboxes that must leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from layerkit.runtime.container import Container
from layerkit.runtime.spec import ContainerSpec
from tests.support.small_root import make_small_root

RETRY_S = 5.0


def compile_static(source: str, target: Path) -> None:
    """A static C program."""
    subprocess.run(["gcc", "-static", "-O1", "-x", "c", "-o", target, "-"], input=source.encode(), check=True)


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be used as a layer; never written to."""
    return make_small_root(tmp_path_factory.mktemp("root"))


def mount_lines(below: Path) -> int:
    """How many mounts of this mount namespace have to do with a folder; others mount elsewhere at the same time."""
    return Path("/proc/self/mountinfo").read_text().count(str(below))


def traces(name: str) -> list[str]:
    """Whatever outside of the instance still names a sandbox."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/layerkit-{name}")]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    return found


Start = Callable[..., Container]


@pytest.fixture
def start(instance: Path, small_root: Path) -> Iterator[Start]:
    """Starts sandboxes on `small_root` (or other lowers); afterwards all are stopped and no trace is left."""
    fds = len(os.listdir("/proc/self/fd"))
    null = os.stat("/dev/null")
    made: list[Container] = []

    def begin(**fields: object) -> Container:
        fields.setdefault("lowers", [small_root])
        sandbox = Container.start(ContainerSpec(**fields))  # type: ignore[arg-type]
        made.append(sandbox)
        return sandbox

    yield begin
    for sandbox in made:
        sandbox.stop()
    for sandbox in made:
        assert traces(sandbox.id) == []
        assert not Path(f"/proc/{sandbox.pid}/root/dev/.layerkit-agent").exists()
    assert list((instance / "home" / "sandboxes").glob("*")) == []
    assert list((instance / "run" / "sandboxes").glob("*")) == []
    assert mount_lines(instance) == 0
    # One user namespace fd may have been made, and is kept.
    assert len(os.listdir("/proc/self/fd")) <= fds + 1
    status = os.stat("/dev/null")
    assert (status.st_uid, status.st_gid, status.st_mode) == (null.st_uid, null.st_gid, null.st_mode)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within RETRY_S."""
    deadline = time.monotonic() + RETRY_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
