"""The sparse data file of a layer and its identity, to which presence maps are bound.

Imported by the rest of `fuse`; standard library only. A DataFile may be used from any thread: reads and writes carry
their offset. Holes in it mean nothing; only the presence maps say what is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from layerkit._util.files import fsync_dir, make_dirs, translate_os_error
from layerkit.errors import HostError

_FS_IOC_GETVERSION = 0x80087601
_IDENTITY = struct.Struct("<QQQQ")


class DataIdentity(NamedTuple):
    """What tells one data file from every other under the same path.

    `generation` is the inode's (FS_IOC_GETVERSION; 0 where the file system has none): ext4 gives a new file the inode
    number of the one just deleted.
    """

    device: int
    ino: int
    generation: int
    size: int

    def pack(self) -> bytes:
        """32 bytes, little endian."""
        return _IDENTITY.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> DataIdentity:
        """The reverse of `pack`."""
        return cls(*_IDENTITY.unpack(data))


IDENTITY_SIZE = _IDENTITY.size


def identify(fd: int) -> DataIdentity:
    """The identity of an open file."""
    status = os.fstat(fd)
    generation = bytearray(8)
    with suppress(OSError):
        fcntl.ioctl(fd, _FS_IOC_GETVERSION, generation)
    return DataIdentity(status.st_dev, status.st_ino, int.from_bytes(generation[:4], "little"), status.st_size)


class DataFile:
    """An open data file.

    Attributes:
        created: it was made by this call, or had to be made anew because its size was wrong: it holds nothing.
    """

    def __init__(self, path: Path, fd: int, *, created: bool) -> None:
        self.path = path
        self.created = created
        self.identity = identify(fd)
        self._fd = fd
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    @classmethod
    def create_or_open(cls, path: Path, size: int) -> Self:
        """Open the data file for reading and writing; one that is missing or has another size is made anew.

        Raises:
            NoSpaceError, DeniedError, UnavailableError: as the file system answers.
        """
        try:
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                if os.fstat(fd).st_size == size:
                    return cls(path, fd, created=False)
                os.close(fd)
                # Unlinked, not truncated: a mount that nobody sees any more may still read the old one.
                path.unlink()
            make_dirs(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            os.ftruncate(fd, size)
            os.fsync(fd)
            fsync_dir(path.parent)
        except OSError as error:
            raise translate_os_error(error, str(path)) from error
        return cls(path, fd, created=True)

    @property
    def size(self) -> int:
        """Bytes of the file: the layer's mapped length."""
        return self.identity.size

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to this very file, with its size unchanged."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return identify(fd) == self.identity
        finally:
            os.close(fd)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes.

        Raises:
            HostError: the file ends before, which means that somebody cut it.
        """
        parts = []
        with self._open_fd() as fd:
            while length:
                part = os.pread(fd, length, offset)
                if not part:
                    raise HostError(f"the data file ends at {offset}", where=str(self.path))
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data`.

        Raises:
            NoSpaceError, DeniedError, UnavailableError: as the file system answers.
        """
        view = memoryview(data)
        try:
            with self._open_fd() as fd:
                while view:
                    written = os.pwrite(fd, view, offset)
                    offset += written
                    view = view[written:]
        except OSError as error:
            raise translate_os_error(error, str(self.path)) from error

    def sync(self) -> None:
        """fdatasync(2)."""
        with self._open_fd() as fd:
            os.fdatasync(fd)

    def drop_cached_pages(self) -> None:
        """Give the page cache's copy back; readers above have their own."""
        with self._open_fd() as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def allocated_bytes(self) -> int:
        """What the file takes on disk."""
        with self._open_fd() as fd:
            return os.fstat(fd).st_blocks * 512

    @contextmanager
    def _open_fd(self) -> Iterator[int]:
        """The fd, kept open meanwhile: a late writer must not meet another file under a recycled number."""
        with self._lock:
            if self._is_closed:
                raise HostError("the data file is closed", where=str(self.path))
            self._users += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._users:
            os.close(self._fd)

    def close(self) -> None:
        """Close the file, once the last call on it has ended."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_if_unused()


def is_used_elsewhere(path: Path) -> bool:
    """Whether any other open file description reads the file: also a mount that no mountinfo shows any more.

    A write lease (fcntl(2), F_SETLEASE) is refused while there is one. False for a missing file; True where the
    file system knows no leases, because then nothing can be said.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EINVAL, errno.EACCES):
            raise
        return True
    else:
        return False
    finally:
        os.close(fd)
