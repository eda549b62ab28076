"""Durable files: data, fsync, rename, fsync of the folder; standard library only; safe from any thread."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layerkit.errors import DeniedError, LayerkitError, NoSpaceError, UnavailableError

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
TEMP_PREFIX = ".tmp-"
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def fsync_dir(folder: Path) -> None:
    """Make the folder's entries durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(folder: Path, mode: int = 0o777) -> None:
    """Create the folder and its parents, durably: each new entry's parent is synced."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode)
            fsync_dir(path.parent)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """write(2) until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def temp_name(path: Path) -> Path:
    """A name beside `path` that no other writer uses and that readers skip (it begins with '.tmp-')."""
    return path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"


def is_temp_name(name: str) -> bool:
    """Whether a file's name was made by `temp_name`: what such a file holds was never finished."""
    return name.startswith(TEMP_PREFIX)


def write_durable(
    path: Path, data: bytes | bytearray | memoryview, *, exclusive: bool = False, mode: int = 0o644
) -> bool:
    """Write a whole file so that a crash leaves the old one or the new one.

    Args:
        path: the file; its folder is created.
        exclusive: never replace: return False when the name exists already.

    Raises:
        OSError: as the file system answers; `translate_os_error` turns it into a typed error.
    """
    make_dirs(path.parent)
    temp = temp_name(path)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        if exclusive:
            created = _link_once(temp, path)
            temp.unlink()
        else:
            os.rename(temp, path)
            created = True
    except BaseException:
        with suppress(FileNotFoundError):
            temp.unlink()
        raise
    # Also when another writer was first: its entry may not be durable yet, and the caller goes on to build on it.
    fsync_dir(path.parent)
    return created


def _link_once(temp: Path, path: Path) -> bool:
    try:
        os.link(temp, path)
    except FileExistsError:
        # NFS sends a lost request again and then finds the link that the first one made: the count tells.
        return os.stat(temp).st_nlink == 2
    return True


def translate_os_error(error: OSError, where: str) -> LayerkitError:
    """The typed error for what a file system answered: full, denied, or unavailable."""
    text = error.strerror or str(error)
    if error.errno in NO_SPACE:
        return NoSpaceError(f"no space left: {text}", where=where)
    if error.errno in DENIED:
        return DeniedError(f"access refused: {text}", where=where)
    return UnavailableError(text, where=where)


@contextmanager
def locked(path: Path, *, shared: bool = False, blocking: bool = True) -> Iterator[int]:
    """Hold flock(2) on a file that is created where missing; yields its fd.

    Raises:
        BlockingIOError: somebody holds it and `blocking` is False.
    """
    make_dirs(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if blocking else fcntl.LOCK_NB))
        yield fd
    finally:
        os.close(fd)
