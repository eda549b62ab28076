"""Loop devices, for kernels that cannot mount EROFS from a file (before 6.12); standard library only.

Source: linux/loop.h. The device frees itself when its last user is gone (LO_FLAGS_AUTOCLEAR).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_READ_ONLY, _AUTOCLEAR = 1, 4
_INFO_SIZE, _CONFIG_SIZE = 232, 304
_FLAGS_AT = 52
_ATTEMPTS = 16


def attach_loop(path: Path) -> tuple[str, int]:
    """A read-only loop device over a file.

    Returns:
        Its path and an open fd: whoever mounts the device closes the fd afterwards, then the mount keeps it.

    Raises:
        OSError: no loop device can be had.
    """
    backing = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            return _configure(control, backing)
        finally:
            os.close(control)
    finally:
        os.close(backing)


def _configure(control: int, backing: int) -> tuple[str, int]:
    info = bytearray(_INFO_SIZE)
    struct.pack_into("<I", info, _FLAGS_AT, _READ_ONLY | _AUTOCLEAR)
    config = (struct.pack("<II", backing, 512) + bytes(info)).ljust(_CONFIG_SIZE, b"\0")
    for _ in range(_ATTEMPTS):
        device = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _CONFIGURE, config)
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EBUSY:  # somebody else took it between the two calls
                raise
        else:
            return device, fd
    raise OSError(errno.EBUSY, "no free loop device")
