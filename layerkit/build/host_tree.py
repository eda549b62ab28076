"""A directory of this machine as a tree whose files are read when they are wanted. `build` only; one thread.

A build context is scanned whole but only what COPY selects is read; the upper directory of a RUN and an imported
directory are read whole. Each file can be read a second time for chunks that turn out to be needed; it must not have
changed by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from layerkit._util.files import translate_os_error
from layerkit.build.pieces import Piece, file_pieces
from layerkit.errors import SourceChangedError
from layerkit.layer.scan import Exclude, scan_directory
from layerkit.layer.tree import INLINE_MAX, Content, Inode, walk

ReadFile = Callable[[int, os.stat_result, bytes], Content | bytes]

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def stat_key(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes when a file changes: ctime cannot be set back without changing the clock."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def may_be_sparse(status: os.stat_result) -> bool:
    """Whether the file occupies less than its size, so that asking for its holes pays."""
    return status.st_blocks * 512 < status.st_size


class _Unread(bytes):
    """A small file's bytes as an object of their own; plain `bytes` that are equal may be one object."""


class HostTree:
    """The tree below `folder`.

    Args:
        folder: the directory.
        overlay_upper: see `scan_directory`.
        exclude: see `scan_directory`.
        read_now: reads every file during the scan; without it files are read by `fill`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        overlay_upper: bool = False,
        exclude: Exclude | None = None,
        read_now: ReadFile | None = None,
    ) -> None:
        self.folder = os.fsencode(folder)
        self._unread: dict[int, tuple[Content | bytes, bytes, os.stat_result]] = {}
        self.root = scan_directory(
            folder, read_content=read_now or self._postpone, overlay_upper=overlay_upper, exclude=exclude
        )

    def _postpone(self, fd: int, status: os.stat_result, path: bytes) -> Content | bytes:
        # An object of its own for each file, which stands in until `fill`; the dict keeps it, so its id is its own.
        # Small ones stand in for themselves: the scan wants their bytes.
        small = status.st_size <= INLINE_MAX
        placeholder = _Unread(os.pread(fd, status.st_size, 0)) if small else Content(status.st_size, ())
        self._unread[id(placeholder)] = placeholder, path, status
        return placeholder

    def fill(self, inodes: Iterable[Inode], read_file: ReadFile) -> None:
        """Read the files among these inodes that have not been read yet.

        Raises:
            SourceChangedError: one is no longer what the scan saw.
        """
        for inode in inodes:
            found = self._unread.get(id(inode.body))
            if found is None:
                continue
            _, path, status = found
            with _opened(self.folder, path) as fd:
                if stat_key(os.fstat(fd)) != stat_key(status):
                    raise SourceChangedError("the file changed while the build ran", where=_shown(path))
                inode.body = read_file(fd, status, path)

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Path, content and bytes once more of each file whose content is wanted."""
        for path, inode in walk(self.root):
            if isinstance(inode.body, Content) and id(inode.body) not in self._unread and wanted(inode.body):
                with _opened(self.folder, path) as fd:
                    status = os.fstat(fd)
                    yield path, inode.body, file_pieces(fd, status.st_size, sparse=may_be_sparse(status))


class _opened:
    """An open file below a folder, no component of its path a symlink."""

    def __init__(self, folder: bytes, path: bytes) -> None:
        self._fds: list[int] = []
        try:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._fds.append(at)
            *folders, name = path.split(b"/")
            for part in folders:
                at = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                self._fds.append(at)
            self.fd = os.open(name, _OPEN, dir_fd=at)
            self._fds.append(self.fd)
        except OSError as error:
            self._close()
            if isinstance(error, PermissionError):
                raise translate_os_error(error, _shown(path)) from error
            raise SourceChangedError("the file went away while the build ran", where=_shown(path)) from error

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *exc: object) -> None:
        self._close()


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
