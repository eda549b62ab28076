"""Control groups in all three forms; v2 for real in the hybrid hierarchy where there is one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit.errors import HostError
from layerkit.runtime.cgroups import Cgroup, CgroupLayout, parse_layout, probe_layout

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd\n"
)
HYBRID = V1 + "34 30 0:30 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n"


def test_layouts() -> None:
    two = parse_layout(V2)
    assert (two.mode, two.roots, two.hidden_from_runtime) == ("v2", [Path("/sys/fs/cgroup")], [])
    one = parse_layout(V1)
    assert (one.mode, one.hidden_from_runtime) == ("v1", [])
    assert one.controllers["cpu"] == one.controllers["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert len(one.roots) == 3
    both = parse_layout(HYBRID)
    assert (both.mode, both.hidden_from_runtime) == ("hybrid", [Path("/sys/fs/cgroup/unified")])
    assert both.roots == one.roots


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3 - ext4 / rw", "1 2 0:3 / / rw - ext4 /dev/vda rw\n"])
def test_no_groups(text: str) -> None:
    with pytest.raises(HostError):
        parse_layout(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x"])
def test_names_stay_below_the_root(name: str) -> None:
    with pytest.raises(ValueError, match="not a group"):
        parse_layout(V2).group(name)


def test_r21_oom_kills_of_both_versions(tmp_path: Path) -> None:
    for layout, name, text in (
        (CgroupLayout("v2", {}, tmp_path / "v2"), "memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0\n"),
        (CgroupLayout("v1", {"memory": tmp_path / "v1"}), "memory.oom_control", "under_oom 0\noom_kill 3\n"),
    ):
        group = layout.group("g")
        assert group.oom_kills() == 0
        folder = layout.roots[0] / "g"
        folder.mkdir(parents=True)
        assert group.oom_kills() == 0
        (folder / name).write_text(text)
        assert group.oom_kills() == 3


def layouts() -> list[str]:
    try:
        host = probe_layout()
    except HostError:
        return []
    return {"hybrid": ["v1", "v2"], "v1": ["v1"], "v2": ["v2"]}[host.mode]


@pytest.fixture(params=["v1", "v2"])
def group(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    if request.param not in layouts():
        pytest.skip(f"no {request.param} hierarchy here")
    host = probe_layout()
    forced = CgroupLayout("v2", {}, host.unified) if request.param == "v2" else host
    made = forced.group(f"layerkit-test-{os.getpid()}-{time.monotonic_ns()}")
    for root in forced.roots:
        (root / made.name / "inner/most").mkdir(parents=True)
    yield made
    made.kill()
    made.remove()


def join(group: Cgroup, process: subprocess.Popen[bytes], below: str = "") -> None:
    for folder in group.folders:
        if "cpuset" not in str(folder):
            (folder / below / "cgroup.procs").write_text(str(process.pid))


@pytest.mark.privileged
def test_r22_r23_freeze_kill_remove(group: Cgroup) -> None:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    for process, below in zip(processes, ("", "inner", "inner/most"), strict=True):
        join(group, process, below)
    assert group.pids() == sorted(process.pid for process in processes)
    group.freeze()
    group.thaw()
    group.freeze()
    begin = time.monotonic()
    group.remove()
    assert time.monotonic() - begin < 2
    assert [process.wait(5) for process in processes] == [-signal.SIGKILL] * 3
    assert group.folders == []
    group.remove()
    group.thaw()
    with pytest.raises(HostError):
        group.freeze()
