"""Control groups v1, v2 and hybrid: found by a probe, read, frozen, killed and removed; the OCI runtime makes them.

Used by the container backend. `CgroupLayout` is a value; a `Cgroup` keeps no open files and may be used by any thread.

Every sandbox has one group of its own directly below the root of each hierarchy: a common parent could be removed by
one process while another makes a child in it. Sources: kernel Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from layerkit.errors import HostError

Mode = Literal["v1", "v2", "hybrid"]
# Options of a v1 mount that stand among the names of its controllers.
_NOT_CONTROLLERS = {"rw", "ro", "xattr", "none", "clone_children", "noprefix"}
KILL_DEADLINE_S = 10.0
FREEZE_DEADLINE_S = 2.0
FREEZE_ROUND_S = 0.05


@dataclass(frozen=True, slots=True)
class CgroupLayout:
    """Where this host's hierarchies are mounted.

    Args:
        mode: v2 when everything is in one hierarchy, hybrid when a v2 hierarchy is mounted beside v1.
        controllers: v1 controller (or named hierarchy) → mount point; empty for v2.
        unified: mount point of the v2 hierarchy.
    """

    mode: Mode
    controllers: Mapping[str, Path] = field(default_factory=dict)
    unified: Path | None = None

    @property
    def roots(self) -> list[Path]:
        """Every hierarchy's root that sandboxes have a group in, each once."""
        if self.mode == "v2" and self.unified is not None:
            return [self.unified]
        return list(dict.fromkeys(self.controllers.values()))

    @property
    def hidden_from_runtime(self) -> list[Path]:
        """Mount points that crun must not see: it refuses a v2 hierarchy with controllers beside v1."""
        return [self.unified] if self.mode == "hybrid" and self.unified is not None else []

    def accounts_swap(self) -> bool:
        """Whether a limit of memory and swap together can be written."""
        if self.mode == "v2":
            with suppress(OSError):
                return len(Path("/proc/swaps").read_text().splitlines()) > 1
            return False
        root = self.controllers.get("memory")
        return root is not None and (root / "memory.memsw.limit_in_bytes").exists()

    def group(self, name: str) -> Cgroup:
        """The group of that name in every hierarchy."""
        return Cgroup(self, name)


def parse_layout(mountinfo: str) -> CgroupLayout:
    """Read the layout from the text of /proc/self/mountinfo.

    Raises:
        HostError: no control groups are mounted.
    """
    controllers: dict[str, Path] = {}
    unified: Path | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            unified = Path(fields[4])
        elif kind[0] == "cgroup":
            for name in kind[2].split(","):
                if name not in _NOT_CONTROLLERS and not name.startswith("release_agent"):
                    controllers.setdefault(name, Path(fields[4]))
    if unified is None and not controllers:
        raise HostError("no control groups are mounted", hint="mount cgroup2 at /sys/fs/cgroup")
    mode: Mode = "v2" if not controllers else "v1" if unified is None else "hybrid"
    return CgroupLayout(mode, controllers, unified)


def probe_layout() -> CgroupLayout:
    """This host's layout."""
    return parse_layout(Path("/proc/self/mountinfo").read_text())


class Cgroup:
    """One sandbox's group in every hierarchy; its folders may or may not exist yet."""

    def __init__(self, layout: CgroupLayout, name: str) -> None:
        if not name or name.startswith(".") or "/" in name:
            raise ValueError(f"not a group's name: {name!r}")
        self.layout = layout
        self.name = name

    @property
    def oci_path(self) -> str:
        """`linux.cgroupsPath`."""
        return f"/{self.name}"

    @property
    def folders(self) -> list[Path]:
        """Its folders that exist."""
        return [root / self.name for root in self.layout.roots if (root / self.name).is_dir()]

    def folder(self, controller: str) -> Path | None:
        """The folder that has a controller's files; None when the group or the controller is missing."""
        root = self.layout.unified if self.layout.mode == "v2" else self.layout.controllers.get(controller)
        return root / self.name if root is not None and (root / self.name).is_dir() else None

    def oom_kills(self) -> int:
        """How many processes the kernel killed because the group was out of memory; 0 when there is no group."""
        folder = self.folder("memory")
        if folder is None:
            return 0
        name = "memory.events" if self.layout.mode == "v2" else "memory.oom_control"
        with suppress(FileNotFoundError):
            for line in (folder / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def freeze(self) -> None:
        """Stop every process of the group. Raises HostError when that takes longer than FREEZE_DEADLINE_S."""
        self._set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let the processes go on; nothing happens where there is no group."""
        self._set_frozen(frozen=False)

    def _set_frozen(self, *, frozen: bool) -> None:
        folder = self.folder("freezer")
        if folder is None:
            if frozen:
                raise HostError("the sandbox's control group is gone or has no freezer", where=self.name)
            return
        if self.layout.mode == "v2":
            states = folder / "cgroup.freeze", ("0", "1"), folder / "cgroup.events", ("frozen 0", "frozen 1")
        else:
            state = folder / "freezer.state"
            states = state, ("THAWED", "FROZEN"), state, ("THAWED", "FROZEN")
        switch, values, report, reports = states
        deadline = time.monotonic() + FREEZE_DEADLINE_S
        while True:
            switch.write_text(values[frozen])
            if _appears(reports[frozen], report, FREEZE_ROUND_S):
                return
            if time.monotonic() > deadline:
                raise HostError(f"no change to {values[frozen]} within {FREEZE_DEADLINE_S} s", where=str(folder))
            if frozen and self.layout.mode != "v2":
                # v1 stays in FREEZING when a task forks at the wrong moment; let go and try again, as runc does.
                switch.write_text(values[False])

    def pids(self) -> list[int]:
        """The processes in the group and in groups below it."""
        found: set[int] = set()
        for folder in self.folders:
            for part in _tree(folder):
                with suppress(OSError):
                    found.update(map(int, (part / "cgroup.procs").read_text().split()))
        return sorted(found)

    def kill(self, *, deadline_s: float = KILL_DEADLINE_S) -> None:
        """End every process in the group, frozen ones too, and wait until none is left.

        Raises:
            HostError: processes are left after the deadline (they hang in the kernel).
        """
        deadline = time.monotonic() + deadline_s
        pause = 0.0005
        while pids := self.pids():
            if time.monotonic() > deadline:
                raise HostError(f"processes do not end: {pids[:8]}", where=self.name)
            self._kill_once(pids)
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def _kill_once(self, pids: list[int]) -> None:
        folder = self.layout.mode == "v2" and self.folder("")
        if folder and (folder / "cgroup.kill").exists():
            (folder / "cgroup.kill").write_text("1")
        else:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # A process frozen by v1 dies only after it has been let go.
        with suppress(OSError, HostError):
            self.thaw()

    def remove(self, *, deadline_s: float = KILL_DEADLINE_S) -> None:
        """Remove the group with everything in it; the kernel answers EBUSY for a moment after the last exit.

        Raises:
            HostError: it is still busy, or processes do not end, after the deadline.
        """
        deadline = time.monotonic() + deadline_s
        for root in self.layout.roots:
            folder = root / self.name
            pause = 0.0005
            while (busy := _remove_tree(folder)) is not None:
                self.kill(deadline_s=deadline_s)
                if time.monotonic() > deadline:
                    raise HostError(f"control group stays busy: {busy.strerror}", where=str(folder))
                time.sleep(pause)
                pause = min(pause * 2, 0.05)


def _appears(line: str, file: Path, wait_s: float) -> bool:
    """Whether a file gets a line in time."""
    deadline = time.monotonic() + wait_s
    while line not in file.read_text().splitlines():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _tree(folder: Path) -> Iterator[Path]:
    """The folder's subfolders, deepest first, and the folder."""
    try:
        with os.scandir(folder) as entries:
            children = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for child in children:
        yield from _tree(child)
    yield folder


def _remove_tree(folder: Path) -> OSError | None:
    """Remove a group and those below it; the error when one was busy."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
    else:
        return None
    try:
        for part in _tree(folder):
            with suppress(FileNotFoundError):
                part.rmdir()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return error
    return None
