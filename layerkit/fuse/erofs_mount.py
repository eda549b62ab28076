"""Mounting EROFS images and finding such mounts again; imported by the rest of `fuse`; safe from any thread."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from layerkit._util import syscalls
from layerkit._util.overlay import unescape
from layerkit.errors import HostError
from layerkit.fuse.loop import attach_loop


class MountSource(NamedTuple):
    """What is mounted: an image, and the file of its external device if it has one; `loop`: through loop devices."""

    image: Path
    device: Path | None = None
    loop: bool = False


def mount_erofs(source: MountSource, target: Path, *, attributes: int = 0) -> None:
    """Mount an EROFS image read-only, by default with setuid programs and devices in force: sandboxes need them.

    Raises:
        HostError: the kernel refuses, with its own words.
    """
    attributes |= syscalls.MOUNT_ATTR_RDONLY
    try:
        try:
            _mount(source, target, attributes)
        except OSError as error:
            # EROFS reads no files of a file system without read_folio, such as tmpfs; a loop device does.
            if error.errno != errno.ENOTBLK or source.loop:
                raise
            _mount(source._replace(loop=True), target, attributes)
    except OSError as error:
        raise HostError(f"EROFS mount failed: {error}", where=str(source.image)) from error


def _mount(source: MountSource, target: Path, attributes: int) -> None:
    with ExitStack() as stack:
        context = syscalls.fsopen("erofs")
        stack.callback(os.close, context)
        for key, path in (("source", source.image), ("device", source.device)):
            if path is not None:
                syscalls.fsconfig_string(context, key, _name(path, loop=source.loop, stack=stack))
        syscalls.fsconfig_flag(context, "ro")
        syscalls.fsconfig_create(context)
        mount = syscalls.fsmount(context, attributes)
        stack.callback(os.close, mount)
        syscalls.move_mount(mount, target)


def _name(path: Path, *, loop: bool, stack: ExitStack) -> str:
    if loop:
        device, fd = attach_loop(path)
        stack.callback(os.close, fd)
        return device
    if len(os.fsencode(path)) <= syscalls.FSCONFIG_STRING_MAX:
        return str(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"


def mounts_below(folder: Path) -> dict[str, str]:
    """File system type of every mount directly below a folder, by name."""
    prefix = os.fsencode(os.path.realpath(folder)) + b"/"
    found = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point = unescape(line.split(b" ", 5)[4])
            if point.startswith(prefix) and b"/" not in point[len(prefix) :]:
                fstype = line.partition(b" - ")[2].split(b" ", 1)[0]
                found[os.fsdecode(point[len(prefix) :])] = fstype.decode()
    return found
