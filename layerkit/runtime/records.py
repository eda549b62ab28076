"""What exists of a sandbox outside of its own process, written down before it is made, so that nobody's crash leaks it.

One file a sandbox, `<run>/sandboxes/<id>.json`, locked by whoever keeps the sandbox (and, while it starts, by the OCI
runtime, which inherits the lock): a record that can be locked belongs to nobody, and what it names is removed. Used by
the container backend; a `Claim` belongs to one sandbox, the functions may be called from any thread and process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from layerkit._util.files import make_dirs
from layerkit._util.processes import Owner
from layerkit.errors import ConflictError, HostError, InputError
from layerkit.runtime.cgroups import CgroupLayout, probe_layout

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_LOWEST_FD = 10  # below it are numbers that programs expect to be given something else
_DYING_WAIT_S = 5.0
CGROUP_PREFIX = "layerkit-"


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that `remove` needs to know.

    Args:
        id: the sandbox's.
        folder: its files on disk, removed whole.
        network: none, nat or host.
        work: a work directory outside of `folder`, '' when there is none.
        owner_pid, owner_start: the process that made it.
    """

    id: str
    folder: str
    network: str
    work: str
    owner_pid: int
    owner_start: int

    @property
    def owner(self) -> Owner:
        """The process that made it."""
        return Owner(self.owner_pid, self.owner_start)


class Claim:
    """A locked record."""

    def __init__(self, path: Path, fd: int, record: Record) -> None:
        self.path = path
        self.fd = fd
        self.record = record

    def drop(self) -> None:
        """Forget the record: nothing of it is left."""
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let go of the lock and leave the record to `cleanup_leftovers`."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def check_id(text: str) -> str:
    """Return a sandbox's id; raises InputError where it cannot be part of a path, host name and group name."""
    if not _ID.fullmatch(text):
        raise InputError(f"not a sandbox id: {text[:100]!r}", hint="lower-case letters, digits and _ . -, at most 63")
    return text


def _folder(run: Path) -> Path:
    return run / "sandboxes"


def claim(run: Path, record: Record) -> Claim:
    """Write a sandbox's record before anything of it is made.

    Raises:
        ConflictError: the id is in use by a living process.
    """
    folder = _folder(run)
    make_dirs(folder, 0o700)
    path = folder / f"{check_id(record.id)}.json"
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            left = _find_dying(path)
            if left is not None:
                remove(left)
            elif path.exists():
                raise ConflictError(f"the sandbox {record.id} exists already") from None
            continue
        fd = _locked(opened, path)
        if fd is not None:
            os.write(fd, json.dumps(asdict(record)).encode())
            return Claim(path, fd, record)


def _locked(fd: int, path: Path) -> int | None:
    """Lock an open record under a higher number; None when somebody else has it, or it was unlinked meanwhile."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    finally:
        os.close(fd)
    try:
        fcntl.flock(high, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(high).st_ino == path.stat().st_ino:
            return high
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(high)
    return None


def find_leftover(path: Path) -> Claim | None:
    """Claim a record whose owner is gone; None when it is alive or the record has just vanished."""
    with suppress(FileNotFoundError):
        fd = _locked(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)
        if fd is None:
            return None
        return Claim(path, fd, _read(os.pread(fd, 1 << 16, 0), path))
    return None


def _read(content: bytes, path: Path) -> Record:
    """A record cut short was written by somebody who died before making anything."""
    try:
        return Record(**json.loads(content))
    except (ValueError, TypeError):
        return Record(path.stem, "", "none", "", 0, 0)


def remove(claimed: Claim, layout: CgroupLayout | None = None) -> None:
    """Remove all that a record names, then the record. Safe to repeat, whatever is missing.

    Raises:
        HostError: something could not be removed; the record stays for the next attempt.
    """
    record = claimed.record
    errors = [error for step in _steps(record, layout or probe_layout()) if (error := _attempt(step)) is not None]
    if errors:
        claimed.release()
        raise HostError(f"sandbox {record.id} not removed whole: {errors[0]}", where=record.folder) from errors[0]
    claimed.drop()


def halt(record: Record, layout: CgroupLayout) -> None:
    """End all processes and take away control group and network, but keep the files. Raises HostError."""
    errors = [error for step in _halt_steps(record, layout) if (error := _attempt(step)) is not None]
    if errors:
        raise HostError(f"sandbox {record.id} not ended: {errors[0]}") from errors[0]


def _attempt(step: Callable[[], Any]) -> Exception | None:
    try:
        step()
    except (OSError, HostError) as error:
        return error
    return None


def _halt_steps(record: Record, layout: CgroupLayout) -> list[Callable[[], Any]]:
    steps: list[Callable[[], Any]] = [layout.group(CGROUP_PREFIX + record.id).remove]
    if record.network == "nat":
        from layerkit.runtime.network import disconnect

        steps.append(partial(disconnect, record.id))
    return steps


def _steps(record: Record, layout: CgroupLayout) -> list[Callable[[], Any]]:
    steps = _halt_steps(record, layout)
    return [*steps, *(partial(_remove_tree, Path(name)) for name in (record.work, record.folder) if name)]


def _remove_tree(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def records(run: Path) -> Iterator[Path]:
    """The record files of an instance."""
    with suppress(FileNotFoundError):
        yield from sorted(_folder(run).glob("*.json"))


def cleanup_leftovers(run: Path, home: Path, *, wait: bool = True) -> list[str]:
    """Remove what sandboxes of dead processes left behind, also files of before a reboot.

    Args:
        wait: for those that are just dying; else they are left to the next call.

    Returns:
        the ids of what was removed.

    Raises:
        HostError: something could not be removed; the rest was.
    """
    removed: list[str] = []
    errors: list[HostError] = []
    for path in records(run):
        left = _find_dying(path) if wait else find_leftover(path)
        if left is None:
            continue
        try:
            remove(left)
        except HostError as error:
            errors.append(error)
        else:
            removed.append(left.record.id)
    removed += _remove_orphans(run, home)
    if errors:
        raise errors[0]
    return removed


def _find_dying(path: Path) -> Claim | None:
    """A leftover; waits for a runtime that outlives its dead owner by a moment."""
    deadline = time.monotonic() + _DYING_WAIT_S
    while True:
        left = find_leftover(path)
        if left is not None or not path.exists() or time.monotonic() > deadline or _owner_lives(path):
            return left
        time.sleep(0.01)


def _owner_lives(path: Path) -> bool:
    try:
        return _read(path.read_bytes(), path).owner.is_alive
    except FileNotFoundError:
        return False


def _remove_orphans(run: Path, home: Path) -> list[str]:
    """Folders without a record: a record is always written first, and removed last."""
    removed = []
    with suppress(FileNotFoundError):
        for folder in sorted((home / "sandboxes").iterdir()):
            if not (_folder(run) / f"{folder.name}.json").exists():
                _remove_tree(folder)
                removed.append(folder.name)
    return removed
