"""More of what the kernel can do, for `doctor` only: user namespaces, idmapped mounts, fanotify, overlay, cgroups.

Each function says what is wrong, '' when nothing is, and cleans up after itself. Single-threaded callers only: some
fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layerkit._util import syscalls
from layerkit._util.overlay import mount_idmapped, mount_overlay
from layerkit.errors import HostError
from layerkit.fuse.probes import probe_folder, tiny_mount

_FAN_CLASS_PRE_CONTENT, _FAN_CLOEXEC, _FAN_NONBLOCK = 8, 1, 2
_FAN_MARK_ADD, _FAN_PRE_ACCESS = 1, 0x0010_0000
_MAPPED = 65536


@contextmanager
def user_namespace() -> Iterator[int]:
    """A process that sits in a new user namespace; its pid.

    Raises:
        OSError: none can be made.
    """
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.write(told, b"\0")
        except OSError as error:
            os.write(told, bytes([error.errno or 1]))
            os._exit(1)
        signal.pause()
        os._exit(0)
    os.close(told)
    try:
        number = os.read(ready, 1)
        if number != b"\0":
            code = number[0] if number else 1
            raise OSError(code, os.strerror(code))
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def user_namespace_problem() -> str:
    """Whether this user may make user namespaces."""
    try:
        with user_namespace():
            return ""
    except OSError as error:
        return error.strerror or str(error)


def idmapped_mount_problem() -> str:
    """Whether an EROFS mount can be shown with mapped owners."""
    try:
        with tiny_mount() as folder, user_namespace() as child:
            for kind in ("uid", "gid"):
                Path(f"/proc/{child}/{kind}_map").write_text(f"0 100000 {_MAPPED}")
            userns = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            target = folder / "mapped"
            target.mkdir()
            try:
                mount_idmapped(folder / "m", target, userns)
                try:
                    owner = (target / "f").stat().st_uid
                finally:
                    syscalls.umount2(target)
            finally:
                os.close(userns)
            return "" if owner == 100000 else f"owner 0 is shown as {owner}"
    except (OSError, HostError) as error:
        return str(error)


def overlay_problem() -> str:
    """Whether overlays of folders can be mounted, writable ones too."""
    try:
        with probe_folder() as folder:
            for name in ("a", "b", "up", "work"):
                (folder / name).mkdir()
            (folder / "b" / "f").write_text("x")
            mount_overlay([folder / "a", folder / "b"], folder / "m", upper=folder / "up", work=folder / "work")
            (folder / "m" / "f").write_text("y")
            return "" if (folder / "b" / "f").read_text() == "x" else "writes reach the lower"
    except OSError as error:
        return str(error)


def many_lowers_problem() -> str:
    """Whether lowers can be given one by one (`lowerdir+`, since 6.7)."""
    try:
        context = syscalls.fsopen("overlay")
    except OSError as error:
        return str(error)
    try:
        syscalls.fsconfig_string(context, "lowerdir+", "/")
    except OSError as error:
        return str(error)
    finally:
        os.close(context)
    return ""


def fanotify_problem(folder: Path) -> str:
    """Whether files in the folder can be marked for pre-content events (since 6.14; ext4, xfs, btrfs)."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _FAN_CLASS_PRE_CONTENT | _FAN_CLOEXEC | _FAN_NONBLOCK
    group = libc.fanotify_init(flags, os.O_RDONLY)
    if group < 0:
        return f"fanotify_init: {os.strerror(ctypes.get_errno())}"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".layerkit-probe-") as file:
            path = ctypes.c_char_p(os.fsencode(file.name))
            mask = ctypes.c_uint64(_FAN_PRE_ACCESS)
            if libc.fanotify_mark(group, _FAN_MARK_ADD, mask, syscalls.AT_FDCWD, path):
                return f"fanotify_mark in {folder}: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(group)
    return ""


def cgroup_mode() -> str:
    """`v2`, `v1`, `hybrid` or `none`."""
    kinds = set()
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        kinds.add(line.partition(" - ")[2].split(" ", 1)[0])
    if "cgroup2" in kinds:
        return "hybrid" if "cgroup" in kinds else "v2"
    return "v1" if "cgroup" in kinds else "none"
