"""openat2(2) with RESOLVE_IN_ROOT: the kernel's own answer to where a path leads inside a root."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_SYS_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10
_libc = ctypes.CDLL(None, use_errno=True)


def is_there() -> bool:
    """Whether this kernel has it (5.6)."""
    try:
        os.close(open_in_root(os.open("/", os.O_PATH), b"/"))
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def open_in_root(root_fd: int, path: bytes, *, follow_last: bool = True) -> int:
    """An O_PATH descriptor of what the path means; OSError as the kernel answers."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow_last else os.O_NOFOLLOW)
    how = ctypes.create_string_buffer(struct.pack("<QQQ", flags, 0, _RESOLVE_IN_ROOT), 24)
    fd: int = _libc.syscall(_SYS_OPENAT2, root_fd, path, how, 24)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd
