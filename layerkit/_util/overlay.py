"""Overlay mounts of any number of lowers, idmapped clones and tidy unmounting; standard library only.

Used by `fuse` and `runtime`; keeps no state; safe from any thread.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from layerkit._util import syscalls
from layerkit._util.syscalls import AnyPath

OPTION_PAGE = 4096
"""mount(2) takes its options in one page; longer ones are cut or refused, depending on the kernel."""

_NO_FSCONFIG = {errno.EINVAL, errno.ENOSYS, errno.EPERM}


def _opened(path: AnyPath, stack: ExitStack) -> int:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    stack.callback(os.close, fd)
    return fd


def _set_folder(context: int, key: str, path: AnyPath, stack: ExitStack) -> None:
    """Give a folder to overlay: by its path where that fits, so that mountinfo shows it, else by an open fd."""
    text = os.fsencode(path)
    if len(text) <= syscalls.FSCONFIG_STRING_MAX and b"\\" not in text:
        syscalls.fsconfig_string(context, key, text)
        return
    fd = _opened(path, stack)
    try:
        syscalls.fsconfig_fd(context, key, fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.fsconfig_string(context, key, f"/proc/self/fd/{fd}")


def open_overlay(
    lowers: Sequence[AnyPath],
    *,
    upper: AnyPath | None = None,
    work: AnyPath | None = None,
    attributes: int = 0,
    options: Sequence[tuple[str, str]] = (),
) -> int:
    """A detached overlay mount; the caller attaches it with `syscalls.move_mount` and closes the fd.

    A single lower without upper, which overlay refuses, becomes a read-only clone of the lower's mount.

    Args:
        lowers: topmost first, at least one; their paths may be of any length.
        upper, work: both for a writable overlay, empty or left over from the same stack, on one file system.
        attributes: MOUNT_ATTR_*.
        options: further overlay options, such as ("userxattr", "") or ("volatile", "").

    Raises:
        OSError: as the kernel answers; EINVAL also where it has no `lowerdir+` (before 6.7).
    """
    if not lowers:
        raise ValueError("an overlay needs at least one lower")
    if (upper is None) != (work is None):
        raise ValueError("upper and work come together")
    if upper is None and len(lowers) == 1:
        return _open_clone(lowers[0], attributes)
    with ExitStack() as stack:
        context = syscalls.fsopen("overlay")
        stack.callback(os.close, context)
        syscalls.fsconfig_string(context, "source", "layerkit")
        for lower in lowers:
            _set_folder(context, "lowerdir+", lower, stack)
        if upper is not None and work is not None:
            _set_folder(context, "upperdir", upper, stack)
            _set_folder(context, "workdir", work, stack)
        for key, value in options:
            if value:
                syscalls.fsconfig_string(context, key, value)
            else:
                syscalls.fsconfig_flag(context, key)
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, attributes)


def _open_clone(source: AnyPath, attributes: int) -> int:
    fd = syscalls.open_tree(source)
    try:
        syscalls.mount_setattr(fd, set_attributes=attributes | syscalls.MOUNT_ATTR_RDONLY)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mount_overlay(
    lowers: Sequence[AnyPath],
    target: AnyPath,
    *,
    upper: AnyPath | None = None,
    work: AnyPath | None = None,
    attributes: int = 0,
    options: Sequence[tuple[str, str]] = (),
) -> None:
    """Mount an overlay at `target`; arguments as of `open_overlay`.

    Kernels without `lowerdir+` get one option string over short names of open fds.

    Raises:
        OSError: as the kernel answers.
    """
    try:
        fd = open_overlay(lowers, upper=upper, work=work, attributes=attributes, options=options)
    except OSError as error:
        if error.errno not in _NO_FSCONFIG or _kernel_release() >= (6, 7):
            raise
        folders = [("upperdir", upper), ("workdir", work)] if upper is not None and work is not None else []
        _mount_by_options(lowers, target, folders, attributes, options)
        return
    try:
        syscalls.move_mount(fd, target)
    finally:
        os.close(fd)


def _kernel_release() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def _mount_by_options(
    lowers: Sequence[AnyPath],
    target: AnyPath,
    folders: Sequence[tuple[str, AnyPath]],
    attributes: int,
    options: Sequence[tuple[str, str]],
) -> None:
    with ExitStack() as stack:

        def name(path: AnyPath) -> str:
            return f"/proc/self/fd/{_opened(path, stack)}"

        parts = ["lowerdir=" + ":".join(name(lower) for lower in lowers)]
        parts += [f"{key}={name(path)}" for key, path in folders]
        parts += [f"{key}={value}" if value else key for key, value in options]
        text = ",".join(parts)
        if len(text) >= OPTION_PAGE:
            raise OSError(errno.E2BIG, f"{len(lowers)} lowers need {len(text)} bytes of options, 4095 are possible")
        # MOUNT_ATTR_RDONLY, NOSUID, NODEV and NOEXEC have the values of their MS_ twins.
        syscalls.mount("layerkit", target, "overlay", attributes & 0xF, text)


def open_idmapped(source: AnyPath, userns_fd: int, *, attributes: int = 0) -> int:
    """A detached clone of the mount at `source` whose owners are mapped by a user namespace; the caller closes it.

    Raises:
        OSError: EINVAL where the file system or the kernel (before 5.12) cannot be idmapped.
    """
    fd = syscalls.open_tree(source)
    try:
        syscalls.mount_setattr(fd, set_attributes=attributes, userns_fd=userns_fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mount_idmapped(source: AnyPath, target: AnyPath, userns_fd: int, *, attributes: int = 0) -> None:
    """Attach an idmapped clone of the mount at `source` to `target`."""
    fd = open_idmapped(source, userns_fd, attributes=attributes)
    try:
        syscalls.move_mount(fd, target)
    finally:
        os.close(fd)


def is_mounted(target: Path) -> bool:
    """Whether a mount of this mount namespace begins exactly at `target`."""
    text = os.fsencode(os.path.realpath(target.parent) + "/" + target.name)
    return any(point == text for point in mount_points())


def mount_points() -> list[bytes]:
    """Every mount point of this mount namespace, in the order of mounting."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [unescape(line.split(b" ", 5)[4]) for line in file]


def unescape(field: bytes) -> bytes:
    r"""Undo the octal escapes of mountinfo (\040 and the like)."""
    if b"\\" not in field:
        return field
    first, *rest = field.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def unmount(target: AnyPath, *, wait_s: float = 1.0) -> bool:
    """Unmount `target`, waiting a little where it is busy, then detaching it lazily.

    Returns:
        True when the mount is gone for good, False when it was detached and lives on until its last user closes it.

    Raises:
        OSError: EINVAL or ENOENT where nothing is mounted there, EPERM without CAP_SYS_ADMIN.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            syscalls.umount2(target, syscalls.UMOUNT_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return True
        if time.monotonic() >= deadline:
            syscalls.umount2(target, syscalls.UMOUNT_NOFOLLOW | syscalls.MNT_DETACH)
            return False
        time.sleep(0.02)
