"""Cgroups of their own for hostd and the FUSE server, so that they do not die with whoever started them.

Standard library only. Best effort: without the rights, or without cgroups, a process stays where it is. The
hierarchies are those by which services and containers are killed: cgroup2, and under v1 systemd's own, freezer,
pids and memory.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("layerkit.host")
_EMPTY_WITHIN_S = 1.0
_V1 = {"name=systemd", "freezer", "pids", "memory"}


def _hierarchies() -> Iterator[Path]:
    """The mount points of the hierarchies concerned."""
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fstype, _, options = after.split(" ", 2)
        point = Path(before.split(" ", 5)[4])
        if fstype == "cgroup2" or (fstype == "cgroup" and _V1 & set(options.split(","))):
            yield point


def _group_name(run: Path, name: str) -> str:
    return f"layerkit-{hashlib.sha256(os.fsencode(run)).hexdigest()[:8]}-{name}"


def enter_own_cgroups(run: Path, name: str) -> None:
    """Move this process to a group of its own in every hierarchy that allows it."""
    for point in _hierarchies():
        group = point / _group_name(run, name)
        try:
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            log.debug("no cgroup of its own: %s", error)


def leave_own_cgroups(run: Path, name: str) -> None:
    """Move this process to the root of each hierarchy and remove its groups; the reverse of `enter_own_cgroups`."""
    for point in _hierarchies():
        if (point / _group_name(run, name)).is_dir():
            try:
                (point / "cgroup.procs").write_text(str(os.getpid()))
            except OSError as error:
                log.debug("cannot leave %s: %s", point, error)
    remove_cgroups(run, name)


def remove_cgroups(run: Path, name: str) -> None:
    """Remove the groups of a process that has ended; its last threads may take a moment to go."""
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    for point in _hierarchies():
        group = point / _group_name(run, name)
        while True:
            try:
                group.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                if error.errno != errno.ENOENT:
                    log.info("%s stays: %s", group, error)
            break
