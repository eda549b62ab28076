"""The tree of a layer: inodes, their entries and their contents; imported by everything from rank 2 up.

Plain mutable values without locks: one thread at a time. Names, link targets and xattrs are bytes. A tree is what
its EROFS image holds: whiteouts are char 0:0 inodes and opaque directories carry an xattr (`layer.whiteouts`).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

INLINE_MAX = 256
"""Regular files up to this many bytes live in the metadata image; every larger one in `data`. Part of the format."""

ZERO_CHUNK_ID = b""


class Chunk(NamedTuple):
    """A piece of a file: its length in bytes and the BLAKE3-256 of its plain bytes, or b'' when they are all zeros."""

    length: int
    id: bytes


@dataclass(slots=True, eq=False)
class Content:
    """The bytes of a regular file as chunks in order; their lengths add up to `size`. Shared by identical files."""

    size: int
    chunks: tuple[Chunk, ...]


@dataclass(slots=True, eq=False)
class Inode:
    """One inode. Several names that hold the same object are hard links.

    Attributes:
        mode: st_mode with its type bits.
        uid, gid: 0 to 2^32-1.
        mtime_ns: nanoseconds since the epoch, negative before 1970.
        rdev: device number (`os.makedev`) of character and block devices, else 0.
        xattrs: full names to values; empty when there are none.
        body: directories: names to inodes. Regular files: bytes up to INLINE_MAX, else Content. Symlinks: the target.
            Devices, fifos and sockets: None.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    rdev: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    body: dict[bytes, Inode] | Content | bytes | None = None

    @property
    def is_dir(self) -> bool:
        """Whether this is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Whether this is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """Whether this is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def entries(self) -> dict[bytes, Inode]:
        """The entries of a directory; TypeError for anything else."""
        if not isinstance(self.body, dict):
            raise TypeError("not a directory")
        return self.body

    @property
    def size(self) -> int:
        """Bytes of a regular file or of a symlink's target; 0 for the rest."""
        if isinstance(self.body, Content):
            return self.body.size
        return len(self.body) if isinstance(self.body, bytes) else 0


def new_directory(mode: int = 0o755, uid: int = 0, gid: int = 0, mtime_ns: int = 0) -> Inode:
    """An empty directory; `mode` without type bits."""
    return Inode(stat.S_IFDIR | mode, uid, gid, mtime_ns, body={})


def walk(root: Inode) -> Iterator[tuple[bytes, Inode]]:
    """Every name with its inode, parents first, entries in byte order; paths without a leading slash, root is b''.

    Hard links come once a name. Iterative: depth is bounded by memory, not by the stack.
    """
    pending: list[tuple[bytes, Inode]] = [(b"", root)]
    while pending:
        path, inode = pending.pop()
        yield path, inode
        if isinstance(inode.body, dict):
            prefix = path + b"/" if path else b""
            pending.extend((prefix + name, inode.body[name]) for name in sorted(inode.body, reverse=True))


def find(root: Inode, path: bytes) -> Inode | None:
    """The inode at a path of plain names (no symlink is followed, no `.` or `..` understood), or None."""
    inode = root
    for name in path.split(b"/"):
        if not name:
            continue
        if not isinstance(inode.body, dict) or name not in inode.body:
            return None
        inode = inode.body[name]
    return inode
