"""Linux calls that the standard library lacks: mounts old and new, namespaces; standard library only (ctypes).

Used by `fuse` and `runtime`. Every function is one call into the kernel, releases the GIL while it runs, keeps no state
and raises OSError with the errno, the kernel's own words where it gave some, and the path. `_util.overlay` puts them
together.

Sources: mount(2), fsopen(2), open_tree(2), move_mount(2), mount_setattr(2); numbers from asm-generic/unistd.h, which
all architectures share for calls this young.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MNT_FORCE = 1
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_NOATIME = 0x10
MOUNT_ATTR_IDMAP = 0x00100000

OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

FSCONFIG_STRING_MAX = 255
"""Longest value of FSCONFIG_SET_STRING (fs/fsopen.c: strndup_user of 256 bytes)."""

_SET_FLAG, _SET_STRING, _SET_FD, _CMD_CREATE = 0, 1, 5, 6
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT = 428, 429, 430, 431, 432
_NR_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _os_error(path: AnyPath | None = None, detail: str = "") -> OSError:
    number = ctypes.get_errno()
    text = f"{os.strerror(number)} ({detail})" if detail else os.strerror(number)
    return OSError(number, text, None if path is None else os.fsdecode(path))


def _syscall(number: int, *arguments: int | bytes | None, path: AnyPath | None = None) -> int:
    values = [ctypes.c_long(item) if isinstance(item, int) else ctypes.c_char_p(item) for item in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise _os_error(path)
    return result


def mount(
    source: AnyPath | None, target: AnyPath, fstype: str | None, flags: int = 0, options: str | bytes | None = None
) -> None:
    """mount(2). `options` is the text after `-o` that the file system itself understands, at most 4095 bytes."""
    data = options.encode() if isinstance(options, str) else options
    result = _libc.mount(
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else fstype.encode(),
        ctypes.c_ulong(flags),
        data,
    )
    if result:
        raise _os_error(target)


def umount2(target: AnyPath, flags: int = 0) -> None:
    """umount2(2)."""
    if _libc.umount2(os.fsencode(target), ctypes.c_int(flags)):
        raise _os_error(target)


def unshare(flags: int) -> None:
    """unshare(2) for the calling thread (os.unshare came with Python 3.12)."""
    if _libc.unshare(ctypes.c_int(flags)):
        raise _os_error()


def setns(fd: int, flags: int = 0) -> None:
    """setns(2) for the calling thread (os.setns came with Python 3.12)."""
    if _libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)):
        raise _os_error()


def fsopen(fstype: str) -> int:
    """A file system context, to be filled by `fsconfig_*` and made a mount by `fsmount`; the caller closes the fd."""
    return _syscall(_NR_FSOPEN, fstype.encode(), FSOPEN_CLOEXEC)


def _kernel_words(context: int) -> str:
    """What the kernel logged in the context about its last error."""
    words = []
    with suppress(OSError):
        for _ in range(16):
            words.append(os.read(context, 4096).decode("utf-8", "replace").strip()[2:])
    return "; ".join(words)


def _fsconfig(context: int, command: int, key: str | None, value: bytes | None, extra: int) -> None:
    name = None if key is None else key.encode()
    try:
        _syscall(_NR_FSCONFIG, context, command, name, value, extra)
    except OSError as error:
        ctypes.set_errno(error.errno or 0)
        words = _kernel_words(context)
        ctypes.set_errno(error.errno or 0)
        raise _os_error(value or None, ": ".join(filter(None, (key or "create", words)))) from None


def fsconfig_flag(context: int, key: str) -> None:
    """Set an option without a value."""
    _fsconfig(context, _SET_FLAG, key, None, 0)


def fsconfig_string(context: int, key: str, value: AnyPath) -> None:
    """Set an option; the kernel takes at most FSCONFIG_STRING_MAX bytes and answers EINVAL beyond."""
    _fsconfig(context, _SET_STRING, key, os.fsencode(value), 0)


def fsconfig_fd(context: int, key: str, fd: int) -> None:
    """Set an option to an open file (overlay takes its layers so since 6.13, EINVAL before)."""
    _fsconfig(context, _SET_FD, key, None, fd)


def fsconfig_create(context: int) -> None:
    """Make the superblock."""
    _fsconfig(context, _CMD_CREATE, None, None, 0)


def fsmount(context: int, attributes: int = 0) -> int:
    """A detached mount (MOUNT_ATTR_*) of a created context; the caller closes the fd."""
    try:
        return _syscall(_NR_FSMOUNT, context, FSMOUNT_CLOEXEC, attributes)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (fsmount: {_kernel_words(context)})") from None


def open_tree(path: AnyPath, *, recursive: bool = False, dir_fd: int = AT_FDCWD) -> int:
    """A detached clone of the mount at `path` (as a bind mount would show it); the caller closes the fd."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _syscall(_NR_OPEN_TREE, dir_fd, os.fsencode(path), flags, path=path)


def move_mount(mount_fd: int, target: AnyPath) -> None:
    """Attach a detached mount at `target`."""
    flags = MOVE_MOUNT_F_EMPTY_PATH
    _syscall(_NR_MOVE_MOUNT, mount_fd, b"", AT_FDCWD, os.fsencode(target), flags, path=target)


def mount_setattr(
    mount_fd: int,
    path: AnyPath = b"",
    *,
    set_attributes: int = 0,
    clear_attributes: int = 0,
    propagation: int = 0,
    userns_fd: int | None = None,
    recursive: bool = False,
) -> None:
    """Change a mount's attributes; with `userns_fd` map its owners by that user namespace (detached mounts only)."""
    if userns_fd is not None:
        set_attributes |= MOUNT_ATTR_IDMAP
    record = struct.pack("=QQQQ", set_attributes, clear_attributes, propagation, userns_fd or 0)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _syscall(_NR_MOUNT_SETATTR, mount_fd, os.fsencode(path), flags, record, len(record), path=path or None)
