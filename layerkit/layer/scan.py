"""Reading a directory of this machine into a tree; imported by rank 3 up. One scan, one thread.

Every step is relative to an open directory and follows nothing below the root, so a folder that somebody changes
meanwhile gives a typed error or an older state of an entry, never a file from elsewhere. Needs no privileges beyond
reading. Files are met in the layout's data order, so that a packer that is fed from here has neighbours side by side.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from layerkit._util.files import translate_os_error
from layerkit.errors import InputError, LayerkitError, LimitError, SourceChangedError
from layerkit.layer import whiteouts
from layerkit.layer.layout import data_order
from layerkit.layer.tree import INLINE_MAX, Content, Inode

ReadContent = Callable[[int, os.stat_result, bytes], Content | bytes]
"""(fd at offset 0, its stat, path) -> contents: bytes up to INLINE_MAX, else Content. The fd stays the scanner's."""

Exclude = Callable[[bytes, bool], bool]
"""(path, whether it is a directory) -> whether it stays out, directories with all that is beneath them."""

XATTR_VALUE_MAX = 65535
HOST_LABELS = frozenset({b"security.selinux", b"security.ima", b"security.evm", b"security.apparmor"})
"""Labels that a host's policy puts on its own files; they mean nothing elsewhere and are not kept, like SMACK's."""

_KEPT_SPACES = (b"user.", b"trusted.", b"security.")
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_NO_XATTRS = {errno.ENOTSUP, errno.ENOSYS}
_CHANGED = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESTALE}
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN_INODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Ancestors kept open at once; those above are opened again by "..", so that depth does not use up descriptors.
_OPEN_ANCESTORS = 64


def scan_directory(
    path: Path | str | bytes,
    *,
    read_content: ReadContent,
    overlay_upper: bool = False,
    exclude: Exclude | None = None,
) -> Inode:
    """The tree below a directory, the directory's own attributes as its root.

    Hard links are found by (device, inode). xattrs of `user.`, `trusted.` and `security.` and POSIX ACLs are kept,
    HOST_LABELS are not.

    Args:
        path: the directory; it may be a symlink, nothing beneath it is followed.
        read_content: reads one regular file that is not empty; called once a file however many names it has.
        overlay_upper: the directory is the upper directory of an overlay that is not mounted any more: its whiteouts,
            opaque marks and bookkeeping are translated.
        exclude: what stays out.

    Raises:
        InputError: no such folder; a char 0:0 or an overlay's xattr in one that is no upper directory, or such an
            xattr that is not understood.
        SourceChangedError: the folder changed while it was read.
        DeniedError: something may not be read.
        LimitError: an xattr that no layer can hold.
    """
    return _Scan(read_content, overlay_upper, exclude).run(os.fsencode(path))


@dataclass(slots=True)
class _Level:
    """One open directory on the way down; `fd` is -1 while closed to spare descriptors."""

    fd: int
    path: bytes
    inode: Inode
    key: tuple[int, int]
    folders: Iterator[bytes] = field(default_factory=lambda: iter(()))


class _Scan:
    def __init__(self, read_content: ReadContent, overlay_upper: bool, exclude: Exclude | None) -> None:
        self._read_content = read_content
        self._overlay_upper = overlay_upper
        self._exclude = exclude
        self._links: dict[tuple[int, int], Inode] = {}

    def run(self, root_path: bytes) -> Inode:
        """Depth first with an explicit stack: the depth of a tree is not bounded by ours."""
        levels: list[_Level] = []
        try:
            try:
                root_fd = os.open(root_path, _OPEN_DIR & ~os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise InputError(f"no folder to read: {error.strerror}", where=os.fsdecode(root_path)) from error
            except OSError as error:
                raise _translate(error, root_path) from error
            levels.append(self._enter(root_fd, b""))
            root = levels[0].inode
            while levels:
                level = levels[-1]
                name = next(level.folders, None)
                if name is None:
                    self._leave(levels)
                    continue
                path = level.path + b"/" + name if level.path else name
                try:
                    child_fd = os.open(name, _OPEN_DIR, dir_fd=level.fd)
                except OSError as error:
                    raise _translate(error, path) from error
                child = self._enter(child_fd, path)
                level.inode.entries[name] = child.inode
                levels.append(child)
                if len(levels) > _OPEN_ANCESTORS:
                    _close(levels[-_OPEN_ANCESTORS - 1])
            return root
        finally:
            for level in levels:
                _close(level)

    def _leave(self, levels: list[_Level]) -> None:
        """Close the deepest directory; open its parent again, through "..", where that had been closed."""
        done = levels.pop()
        try:
            if levels and levels[-1].fd < 0:
                parent = levels[-1]
                try:
                    parent.fd = os.open("..", _OPEN_DIR, dir_fd=done.fd)
                    found = os.fstat(parent.fd)
                except OSError as error:
                    raise _translate(error, parent.path) from error
                if (found.st_dev, found.st_ino) != parent.key:
                    raise _changed(done.path)
        finally:
            _close(done)

    def _enter(self, fd: int, path: bytes) -> _Level:
        """Take over an open directory: its attributes and all its entries that are not directories."""
        try:
            found = os.fstat(fd)
            inode = _inode(found, {})
            inode.xattrs = self._xattrs(fd, path, found)
            level = _Level(fd, path, inode, (found.st_dev, found.st_ino))
            self._read_entries(level)
        except OSError as error:
            os.close(fd)
            raise _translate(error, path) from error
        except BaseException:
            os.close(fd)
            raise
        return level

    def _read_entries(self, level: _Level) -> None:
        entries = level.inode.entries
        prefix = level.path + b"/" if level.path else b""
        folders = []
        with os.scandir(level.fd) as listing:
            found = [(os.fsencode(entry.name), entry) for entry in listing]
        found.sort(key=lambda pair: data_order(pair[0]))
        for name, entry in found:
            path = prefix + name
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                if self._exclude is not None and self._exclude(path, is_dir):
                    continue
                if is_dir:
                    folders.append(name)
                elif entry.is_file(follow_symlinks=False):
                    entries[name] = self._regular(level.fd, name, path)
                else:
                    entries[name] = self._special(level.fd, name, path)
            except OSError as error:
                raise _translate(error, path) from error
        folders.sort()
        level.folders = iter(folders)

    def _regular(self, dir_fd: int, name: bytes, path: bytes) -> Inode:
        fd = os.open(name, _OPEN_FILE, dir_fd=dir_fd)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _changed(path)
            linked = found.st_nlink > 1
            key = (found.st_dev, found.st_ino)
            if linked and key in self._links:
                return self._links[key]
            inode = _inode(found, self._contents(fd, found, path))
            inode.xattrs = self._xattrs(fd, path, found)
        finally:
            os.close(fd)
        if linked:
            self._links[key] = inode
        return inode

    def _contents(self, fd: int, found: os.stat_result, path: bytes) -> Content | bytes:
        if found.st_size == 0:
            return b""
        contents = self._read_content(fd, found, path)
        size = len(contents) if isinstance(contents, bytes) else contents.size
        now = os.fstat(fd)
        if size != found.st_size or now.st_size != found.st_size or now.st_mtime_ns != found.st_mtime_ns:
            raise _changed(path)
        if (size <= INLINE_MAX) != isinstance(contents, bytes):
            raise TypeError(f"read_content returned {type(contents).__name__} for {size} bytes")
        return contents

    def _special(self, dir_fd: int, name: bytes, path: bytes) -> Inode:
        """A symlink, device, fifo or socket: a descriptor of the inode itself, the device is never opened."""
        fd = os.open(name, _OPEN_INODE, dir_fd=dir_fd)
        try:
            return self._special_at(fd, path)
        finally:
            os.close(fd)

    def _special_at(self, fd: int, path: bytes) -> Inode:
        found = os.fstat(fd)
        key = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and key in self._links:
            return self._links[key]
        if self._overlay_upper and found.st_rdev == 0 and stat.S_ISCHR(found.st_mode):
            # overlayfs links all its whiteouts to one inode; here each is its own.
            return whiteouts.make_whiteout()
        if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
            raise _changed(path)
        is_symlink = stat.S_ISLNK(found.st_mode)
        inode = _inode(found, os.readlink(b"", dir_fd=fd) if is_symlink else None)
        # listxattr(2) refuses such descriptors, but not their names in /proc, which lead to the inode and no further.
        inode.xattrs = self._xattrs(b"/proc/self/fd/%d" % fd, path, found)
        if found.st_nlink > 1:
            self._links[key] = inode
        return inode

    def _xattrs(self, target: int | bytes, path: bytes, found: os.stat_result) -> dict[bytes, bytes]:
        result: dict[bytes, bytes] = {}
        try:
            names = os.listxattr(target)
        except OSError as error:
            if error.errno not in _NO_XATTRS:
                raise
            names = []
        for name in map(os.fsencode, names):
            if is_kept_xattr(name):
                value = os.getxattr(target, name)
                if len(value) > XATTR_VALUE_MAX:
                    raise LimitError(
                        f"the xattr {os.fsdecode(name)} has {len(value)} bytes, {XATTR_VALUE_MAX} are the limit",
                        where=os.fsdecode(path),
                    )
                result[name] = value
        if self._overlay_upper:
            return whiteouts.translate_upper(path, result) if result else result
        whiteouts.refuse_foreign(path, found.st_mode, found.st_rdev, result)
        return result


def is_kept_xattr(name: bytes) -> bool:
    """Whether a layer keeps an xattr of this name: not the host's own labels, of `system.` only ACLs."""
    if name.startswith(b"system."):
        return name in _ACLS
    return name.startswith(_KEPT_SPACES) and name not in HOST_LABELS and not name.startswith(b"security.SMACK64")


def _inode(found: os.stat_result, body: dict[bytes, Inode] | Content | bytes | None) -> Inode:
    kind = stat.S_IFMT(found.st_mode)
    is_device = kind in (stat.S_IFCHR, stat.S_IFBLK)
    return Inode(
        found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_rdev if is_device else 0, body=body
    )


def _close(level: _Level) -> None:
    if level.fd >= 0:
        os.close(level.fd)
        level.fd = -1


def _changed(path: bytes) -> LayerkitError:
    return SourceChangedError("it changed while it was read", where=os.fsdecode(path))


def _translate(error: OSError, path: bytes) -> LayerkitError:
    if error.errno in _CHANGED:
        return SourceChangedError(f"not what it was a moment ago: {error.strerror}", where=os.fsdecode(path))
    return translate_os_error(error, os.fsdecode(path))
