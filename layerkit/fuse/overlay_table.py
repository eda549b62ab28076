"""Overlays that hostd mounted for `layerkit mount`; one small file each, so that the next hostd can undo them.

Imported by hostd; blocking; one call at a time (hostd runs them under one lock).
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerkit._util import syscalls
from layerkit._util.canonical import read_json_object
from layerkit._util.files import make_dirs
from layerkit._util.overlay import is_mounted, mount_overlay, unmount
from layerkit.errors import ConflictError, HostError, InputError, LayerkitError, MissingError
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.served import write_volatile

log = logging.getLogger("layerkit.host")


@dataclass(frozen=True, slots=True)
class OverlayRecord:
    """A mounted overlay. `scratch` is the folder made for its upper and work folders, '' when the caller gave them."""

    id: str
    target: str
    lease: str
    lowers: list[str]
    upper: str = ""
    work: str = ""
    scratch: str = ""

    def to_json(self) -> dict[str, Any]:
        """As kept and as shown in `status`."""
        return asdict(self)


class OverlayTable:
    """The overlays of this instance by their targets."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._records: dict[str, OverlayRecord] = {}

    def load(self) -> list[OverlayRecord]:
        """Read what an earlier hostd left; the records of overlays that are gone, whose leases end."""
        gone = []
        for path in sorted(self._paths.overlays.glob("*")) if self._paths.overlays.is_dir() else []:
            try:
                record = OverlayRecord(**read_json_object(path.read_bytes(), "overlay record", max_bytes=1 << 20))
            except (LayerkitError, OSError, TypeError) as error:
                log.warning("%s is no overlay record: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            if is_mounted(Path(record.target)):
                self._records[record.target] = record
            else:
                self._forget(record)
                gone.append(record)
        return gone

    def add(
        self, lowers: Sequence[str], target: Path, lease: str, *, rw: bool, upper: str, work: str, suid: bool
    ) -> OverlayRecord:
        """Mount an overlay.

        Args:
            lowers: topmost first.
            target: an existing folder, absolute.
            rw: writable: into `upper` and `work`, or where these are '' into folders that go with the mount.
            suid: with setuid programs and devices in force.

        Raises:
            InputError: the target is no folder, or only one of upper and work is given.
            ConflictError: layerkit has mounted there already.
            HostError: the kernel refuses.
        """
        if not target.is_absolute() or not target.is_dir():
            raise InputError("not a folder", where=str(target), hint="create it first")
        if bool(upper) != bool(work) or (upper and not rw):
            raise InputError("upper and work folders come together, for a writable mount")
        target = target.resolve()
        if str(target) in self._records and is_mounted(target):
            raise ConflictError("layerkit has mounted a stack there already", where=str(target))
        scratch = ""
        if rw and not upper:
            scratch = str(self._paths.writables / secrets.token_hex(8))
            upper, work = f"{scratch}/upper", f"{scratch}/work"
        record = OverlayRecord(secrets.token_hex(8), str(target), lease, list(lowers), upper, work, scratch)
        try:
            for folder in filter(None, (upper, work)):
                make_dirs(Path(folder))
            write_volatile(self._paths.overlays / record.id, record.to_json())
            attributes = 0 if suid else syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
            if not rw:
                attributes |= syscalls.MOUNT_ATTR_RDONLY
            mount_overlay(lowers, target, upper=upper or None, work=work or None, attributes=attributes)
        except OSError as error:
            self._forget(record)
            raise HostError(f"overlay mount failed: {error}", where=str(target)) from error
        self._records[record.target] = record
        return record

    def remove(self, target: Path) -> OverlayRecord:
        """Unmount an overlay.

        Raises:
            MissingError: layerkit has mounted nothing there.
        """
        record = self._records.get(str(target.resolve()))
        if record is None:
            raise MissingError("layerkit has mounted nothing there", where=str(target))
        self._end(record)
        return record

    def _end(self, record: OverlayRecord) -> None:
        if is_mounted(Path(record.target)) and not unmount(record.target):
            log.warning("%s is still in use; it was detached", record.target)
        self._records.pop(record.target, None)
        self._forget(record)

    def _forget(self, record: OverlayRecord) -> None:
        (self._paths.overlays / record.id).unlink(missing_ok=True)
        if record.scratch:
            shutil.rmtree(record.scratch, ignore_errors=True)

    def remove_all(self) -> list[OverlayRecord]:
        """Unmount every overlay, the last one first."""
        records = list(reversed(self._records.values()))
        for record in records:
            self._end(record)
        return records

    def remove_gone(self) -> list[OverlayRecord]:
        """Forget overlays that somebody unmounted behind our back."""
        gone = [record for record in self._records.values() if not is_mounted(Path(record.target))]
        for record in gone:
            del self._records[record.target]
            self._forget(record)
        return gone

    def all(self) -> list[OverlayRecord]:
        """Every overlay."""
        return list(self._records.values())
