"""A directory, local or on a shared file system, as an object store; imported by `store.py` and tests.

Safe in any thread and any number of processes and hosts: there are no locks and no state but the root's path.
Objects appear whole: temporary name in the same folder, fsync, link(2) or rename(2), fsync of the folder. A crash
leaves at most a temporary file, which no key can name and `sweep_stale` removes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layerkit._util.files import fsync_dir, is_temp_name, temp_name, translate_os_error, write_durable
from layerkit.errors import CorruptError, MissingError, UnavailableError
from layerkit.store.objectstore import (
    MAX_OBJECT_BYTES,
    Data,
    ObjectStat,
    check_key,
    check_prefix,
    check_range,
    is_key_part,
)

STALE_AFTER_S = 24 * 3600.0
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


class DirectoryStore:
    """Objects as files below a root.

    Args:
        root: the folder; made by the first write.
        marker: a key that exists as long as the store does. Where it is given and gone, so is the store (a share
            that is not mounted), and what looks missing is answered by UnavailableError; nothing is written then.
    """

    def __init__(self, root: Path, *, marker: str = "") -> None:
        self.root = root
        self._marker = check_key(marker) if marker else ""

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object."""
        with self._open(key) as (fd, size):
            if size > max_bytes:
                raise CorruptError(f"has {size} bytes, at most {max_bytes} are allowed", where=self._where(key))
            data = _read(fd, 0, size)
        if len(data) != size:
            raise UnavailableError(f"{len(data)} of {size} bytes could be read", where=self._where(key))
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        check_range(offset, length)
        with self._open(key) as (fd, size):
            if offset + length > size:
                raise CorruptError(
                    f"has {size} bytes, {length} bytes at {offset} were asked for", where=self._where(key)
                )
            data = _read(fd, offset, length)
        if len(data) != length:
            raise UnavailableError(f"{len(data)} of {length} bytes could be read", where=self._where(key))
        return data

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Create the object by link(2), which one of several writers wins."""
        return self._write(key, data, exclusive=True)

    def put(self, key: str, data: Data) -> None:
        """Create or replace the object by rename(2)."""
        self._write(key, data, exclusive=False)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with `prefix`; what vanishes meanwhile is left out."""
        check_prefix(prefix)
        folder, _, tail = prefix.rpartition("/")
        with self._translated(prefix):
            if not (self.root / folder).is_dir():
                self._check_alive(prefix)
                return
            yield from self._walk(folder, tail)

    def delete(self, key: str) -> None:
        """Remove the object, durably."""
        path = self._path(key)
        with self._translated(key):
            try:
                path.unlink()
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                self._check_alive(key)
                return
            fsync_dir(path.parent)

    def stat(self, key: str) -> ObjectStat | None:
        """Size and time of the object; None when it is not there."""
        with self._translated(key):
            try:
                status = os.stat(self._path(key), follow_symlinks=False)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                self._check_alive(key)
                return None
        return ObjectStat(key, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def sweep_stale(self, *, below: str = "", min_age_s: float = STALE_AFTER_S) -> int:
        """Remove temporary files that writers left when they died, below a prefix; returns how many.

        Ages are measured by the file system's own clock, which on a share is not this host's.
        """
        removed = 0
        with self._translated(""):
            top = self.root / check_prefix(below)
            if not top.is_dir():
                return 0
            newest = self._now_ns() - int(min_age_s * 1e9)
            for folder, _, names in os.walk(top):
                for name in filter(is_temp_name, names):
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):
                        if path.stat(follow_symlinks=False).st_mtime_ns <= newest:
                            path.unlink()
                            removed += 1
        return removed

    def _now_ns(self) -> int:
        probe = temp_name(self.root / "clock")
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
            probe.unlink()

    def _where(self, key: str) -> str:
        return str(self.root / key)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise translate_os_error(error, self._where(key)) from error

    def _check_alive(self, key: str) -> None:
        if self._marker and key != self._marker and not (self.root / self._marker).exists():
            raise UnavailableError(
                "the store is not there", where=str(self.root), hint="is the file system that holds it mounted?"
            )

    @contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, int]]:
        path = self._path(key)
        # O_NONBLOCK: a fifo that somebody left in a shared folder must not hold a reader; no effect on files.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with self._translated(key):
            try:
                fd = os.open(path, flags)
            except OSError as error:
                if error.errno in _GONE:
                    self._check_alive(key)
                    raise MissingError("not in the store", where=self._where(key)) from error
                if error.errno == errno.ELOOP:
                    raise CorruptError("is a symbolic link", where=self._where(key)) from error
                raise
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise MissingError("not in the store (no regular file)", where=self._where(key))
                yield fd, status.st_size
            finally:
                os.close(fd)

    def _write(self, key: str, data: Data, *, exclusive: bool) -> bool:
        path = self._path(key)
        with self._translated(key):
            if not path.parent.is_dir():
                self._check_alive(key)
            elif exclusive and os.path.lexists(path):
                fsync_dir(path.parent)
                return False
            return write_durable(path, data, exclusive=exclusive)

    def _walk(self, folder: str, tail: str) -> Iterator[ObjectStat]:
        found = []
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith(tail) and is_key_part(entry.name):
                        # A store lists by whole keys: what lies in a folder is compared with the slash.
                        found.append(entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name)
        except FileNotFoundError:
            return
        for name in sorted(found):
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                yield from self._walk(key[:-1], "")
            elif (status := self.stat(key)) is not None:
                yield status


def _read(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)
