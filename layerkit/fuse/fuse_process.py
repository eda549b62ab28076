"""The FUSE server seen from hostd: start, adopt, tune, stop. Imported by hostd; blocking; safe from any thread."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from layerkit._util import syscalls
from layerkit._util.canonical import read_json_object
from layerkit._util.files import make_dirs
from layerkit._util.overlay import is_mounted
from layerkit._util.processes import Owner, start_time
from layerkit.errors import CorruptError, HostError
from layerkit.fuse.cgroup_home import remove_cgroups
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.served import write_volatile
from layerkit.fuse.starting import start_process

log = logging.getLogger("layerkit.host")

MAX_BACKGROUND = 1024
"""Reads in flight; the kernel's default of 12 lets twelve reads from a store that hangs stop every other layer."""

READ_AHEAD_KIB = 1024
_END_S = 5.0


class FuseProcess:
    """The FUSE server of this instance, whether this hostd started it or an earlier one."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()

    @property
    def owner(self) -> Owner | None:
        """The server's process, None when none is known; it may be dead."""
        try:
            record = read_json_object(self._paths.fuse_state.read_bytes(), "FUSE server record", max_bytes=4096)
            return Owner(int(record["pid"]), int(record["start_time"]))
        except FileNotFoundError:
            return None
        except (CorruptError, KeyError, ValueError) as error:
            log.warning("%s: %s", self._paths.fuse_state, error)
            return None

    @property
    def is_running(self) -> bool:
        """Whether the server lives and its mount is in place."""
        owner = self.owner
        return owner is not None and owner.is_alive and is_mounted(self._paths.fuse_mount)

    def start(self) -> None:
        """Start the server unless it runs.

        Raises:
            HostError: it does not start.
        """
        with self._lock:
            if self.is_running:
                return
            self._clear()
            make_dirs(self._paths.fuse_mount, 0o700)
            make_dirs(self._paths.served, 0o700)
            pid = int(start_process("layerkit.fuse.fuse_server", self._paths)["pid"])
            write_volatile(self._paths.fuse_state, {"pid": pid, "start_time": start_time(pid) or 0})
            self._wait_for_answer()
            self._tune()

    def _wait_for_answer(self) -> None:
        """The first answer shows that the server serves; the kernel holds the question until then."""
        os.statvfs(self._paths.fuse_mount)

    def _tune(self) -> None:
        device = os.stat(self._paths.fuse_mount).st_dev
        minor = os.minor(device)
        bdi = Path(f"/sys/class/bdi/{os.major(device)}:{minor}/read_ahead_kb")
        try:
            bdi.write_text(str(READ_AHEAD_KIB))
        except OSError as error:
            log.info("read-ahead of the FUSE mount stays at its default: %s", error)
        try:
            with _FuseControl(self._paths.run / "fusectl") as control:
                (control / str(minor) / "max_background").write_text(str(MAX_BACKGROUND))
                (control / str(minor) / "congestion_threshold").write_text(str(MAX_BACKGROUND * 3 // 4))
        except OSError as error:
            log.warning("one slow store can hold up reads of other layers: %s", error)

    def _clear(self) -> None:
        """Remove what a dead server left."""
        with suppress(OSError):
            syscalls.umount2(self._paths.fuse_mount, syscalls.MNT_DETACH)
        self._paths.fuse_state.unlink(missing_ok=True)
        remove_cgroups(self._paths.run, "fuse")

    def stop(self) -> None:
        """Unmount, and wait for the server to end.

        Raises:
            HostError: something still reads from it; it goes on serving that, unmounted for everybody else.
        """
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        owner = self.owner
        if owner is None:
            return
        busy = False
        with suppress(FileNotFoundError):
            try:
                syscalls.umount2(self._paths.fuse_mount, 0)
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.EINVAL):
                    raise HostError(f"the FUSE mount stays: {error}") from error
                busy = error.errno == errno.EBUSY
                if busy:
                    syscalls.umount2(self._paths.fuse_mount, syscalls.MNT_DETACH)
        deadline = time.monotonic() + (0 if busy else _END_S)
        while owner.is_alive and time.monotonic() < deadline:
            time.sleep(0.01)
        if busy:
            raise HostError(f"something still reads through the FUSE server (pid {owner.pid}); it ends after that")
        if owner.is_alive:
            os.kill(owner.pid, signal.SIGKILL)
        self._clear()


class _FuseControl:
    """/sys/fs/fuse/connections, mounted at a folder of our own where it is not mounted."""

    _USUAL = Path("/sys/fs/fuse/connections")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted = False

    def __enter__(self) -> Path:
        if any(self._USUAL.iterdir()):
            return self._USUAL
        make_dirs(self._folder, 0o700)
        syscalls.mount("fusectl", self._folder, "fusectl")
        self._mounted = True
        return self._folder

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            syscalls.umount2(self._folder, syscalls.MNT_DETACH)
            self._folder.rmdir()
