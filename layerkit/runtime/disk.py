"""A disk of a given size for what one sandbox writes: a sparse ext4 image on a loop device, mounted nowhere.

Used by the container backend for `disk_mb`. The mount is detached and the loop device clears itself, so both are gone
with the last fd, whatever happens to the process. Functions without state; any thread.

Sources: loop(4), include/uapi/linux/loop.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from layerkit._util import syscalls
from layerkit._util.process import get_program, run_program
from layerkit.errors import HostError, UnsupportedError
from layerkit.runtime.limits import MIB

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_ATTEMPTS = 64


def make_disk(image: Path, size_mb: int) -> int:
    """Make an ext4 file system of `size_mb` MiB in a new sparse file and mount it.

    Returns:
        an fd of the detached mount; /proc/<pid>/fd/<fd> is its root.

    Raises:
        UnsupportedError: no mkfs.ext4, no loop devices.
        HostError: the kernel refuses to mount it.
    """
    program = get_program("mkfs.ext4", "e2fsprogs")
    with open(image, "xb") as file:
        file.truncate(size_mb * MIB)
    run_program(
        [
            program,
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal",
            "-E",
            "lazy_itable_init=1,nodiscard,root_owner=0:0",
            image,
        ]
    )
    device_fd, device = _attach_loop(image)
    try:
        return _mount(device)
    finally:
        os.close(device_fd)


def _attach_loop(image: Path) -> tuple[int, str]:
    """A loop device over the file; others take free devices at the same time, hence the attempts."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UnsupportedError(
            f"no loop devices for a limited disk: {error.strerror}", hint="load the kernel module loop"
        ) from error
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    # struct loop_config: fd, block size, struct loop_info64 (flags at byte 52 of 232), eight reserved words.
    config = struct.pack("=II52xI176x64x", backing, 0, _LO_FLAGS_AUTOCLEAR)
    try:
        for _ in range(_ATTEMPTS):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:
                    raise HostError(f"loop device refused: {error.strerror}", where=device) from error
            else:
                return fd, device
    finally:
        os.close(backing)
        os.close(control)
    raise HostError("no free loop device", where=str(image))


def _mount(device: str) -> int:
    context = syscalls.fsopen("ext4")
    try:
        syscalls.fsconfig_string(context, "source", device)
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, syscalls.MOUNT_ATTR_NODEV)
    except OSError as error:
        raise HostError(f"limited disk cannot be mounted: {error.strerror}", where=device) from error
    finally:
        os.close(context)
