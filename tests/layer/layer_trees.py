"""What the tests of layers share: random trees and edit scripts, trees on disk, and a reference reader of mounts."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from layerkit.core.hashing import chunk_id
from layerkit.layer.tree import INLINE_MAX, Chunk, Content, Inode, find, new_directory
from layerkit.layer.whiteouts import make_whiteout, set_opaque

NAMES = [b"a", b"b", b"c", b"caf\xe9", b".wh"]
XATTR = b"user.color"


def content_of(data: bytes) -> Content | bytes:
    """Small contents as bytes, larger ones as one chunk."""
    return data if len(data) <= INLINE_MAX else Content(len(data), (Chunk(len(data), chunk_id(data)),))


def read_whole(fd: int, found: os.stat_result, path: bytes) -> Content | bytes:
    """A `read_content` for files of any size that fits memory."""
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return content_of(b"".join(parts))


def file(data: bytes = b"", mode: int = 0o644, **attributes: object) -> Inode:
    return Inode(stat.S_IFREG | mode, body=content_of(data), **attributes)  # type: ignore[arg-type]


def directory(entries: dict[bytes, Inode] | None = None, mode: int = 0o755, **attributes: object) -> Inode:
    return Inode(stat.S_IFDIR | mode, body=dict(entries or {}), **attributes)  # type: ignore[arg-type]


def symlink(target: bytes) -> Inode:
    return Inode(stat.S_IFLNK | 0o777, body=target)


def clone(root: Inode) -> Inode:
    """A copy in which nothing is shared with the original and hard links stay hard links."""
    copies: dict[Inode, Inode] = {}

    def copy(inode: Inode) -> Inode:
        if inode not in copies:
            copies[inode] = Inode(
                inode.mode, inode.uid, inode.gid, inode.mtime_ns, inode.rdev, dict(inode.xattrs), inode.body
            )
            if isinstance(inode.body, dict):
                copies[inode].body = {name: copy(child) for name, child in inode.body.items()}
        return copies[inode]

    return copy(root)


# Edit scripts: the same steps work on a tree in memory and on a mounted file system.

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
steps = st.tuples(
    st.sampled_from(
        ["write", "mkdir", "remove", "link", "symlink", "fifo", "chmod", "chown", "xattr", "move", "touch"]
    ),
    paths,
    paths,
    st.integers(0, 3),
)
scripts = st.lists(steps, max_size=14)


def edit(root: Inode, script: Sequence[tuple[str, bytes, bytes, int]]) -> Inode:
    """A copy of the tree after the script; steps that a file system would refuse do nothing."""
    root = clone(root)
    for step in script:
        _edit_step(root, *step)
    return root


def _slot(root: Inode, path: bytes) -> tuple[dict[bytes, Inode] | None, bytes]:
    head, _, name = path.rpartition(b"/")
    parent = find(root, head)
    return (parent.body if parent is not None and isinstance(parent.body, dict) else None), name


def _edit_step(root: Inode, kind: str, path: bytes, other: bytes, number: int) -> None:
    entries, name = _slot(root, path)
    if entries is None:
        return
    inode = entries.get(name)
    if kind in ("write", "mkdir", "symlink", "fifo"):
        _create(entries, name, inode, kind, number)
    elif inode is None:
        return
    elif kind == "remove":
        del entries[name]
    elif kind in ("link", "move"):
        target, target_name = _slot(root, other)
        inside = other == path or other.startswith(path + b"/")
        if target is None or inside or target_name in target or (kind == "link" and inode.is_dir):
            return
        target[target_name] = inode
        if kind == "move":
            del entries[name]
    elif kind == "chmod":
        inode.mode = stat.S_IFMT(inode.mode) | [0o644, 0o755, 0o4755, 0o1777][number]
    elif kind == "chown":
        inode.uid, inode.gid = number, number * 1000
    elif kind == "xattr" and (inode.is_dir or inode.is_regular):
        inode.xattrs[XATTR] = b"\0" * number
    elif kind == "touch":
        inode.mtime_ns = [0, -1, 1 << 62, 123456789][number]


def _create(entries: dict[bytes, Inode], name: bytes, inode: Inode | None, kind: str, number: int) -> None:
    if kind == "write" and inode is not None and inode.is_regular:
        inode.body = content_of(b"x" * 200 * number)
    elif inode is None:
        entries[name] = {
            "write": lambda: file(b"new" * number),
            "mkdir": lambda: new_directory(mtime_ns=number),
            "symlink": lambda: symlink(b"target%d" % number),
            "fifo": lambda: Inode(stat.S_IFIFO | 0o600),
        }[kind]()


def edit_on_disk(root: Path, script: Sequence[tuple[str, bytes, bytes, int]]) -> None:
    """The same script on a real file system; what the kernel refuses is left out."""
    for kind, relative, relative_other, number in script:
        path = os.path.join(os.fsencode(root), relative)
        other = os.path.join(os.fsencode(root), relative_other)
        try:
            _disk_step(kind, path, other, number)
        except OSError:
            continue


def _disk_step(kind: str, path: bytes, other: bytes, number: int) -> None:
    if kind == "write":
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        os.write(fd, b"x" * 80 * number)
        os.close(fd)
    elif kind == "mkdir":
        os.mkdir(path)
    elif kind == "symlink":
        os.symlink(b"target%d" % number, path)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "remove":
        subprocess.run(["rm", "-rf", path], check=True)
    elif kind == "link":
        os.link(path, other, follow_symlinks=False)
    elif kind == "move":
        if not os.path.lexists(other):
            os.rename(path, other)
    elif kind == "chmod":
        if not os.path.islink(path):
            os.chmod(path, [0o644, 0o755, 0o4755, 0o1777][number])
    elif kind == "chown":
        os.lchown(path, number, number * 1000)
    elif kind == "xattr":
        if not os.path.islink(path):
            os.setxattr(path, XATTR, b"\0" * number)
    elif kind == "touch":
        os.utime(path, ns=(0, [0, -1, 1 << 33, 123456789][number]), follow_symlinks=False)


# Trees on disk.


def materialise(root: Inode, target: Path) -> None:
    """Write a tree of inline files to a directory that exists, with every attribute. Devices and owners need root."""
    made: dict[Inode, bytes] = {}
    folders: list[tuple[bytes, Inode]] = []

    def put(inode: Inode, path: bytes) -> None:
        if inode in made:
            os.link(made[inode], path, follow_symlinks=False)
            return
        made[inode] = path
        _make(inode, path)
        if isinstance(inode.body, dict):
            folders.append((path, inode))
            for name, child in inode.body.items():
                put(child, os.path.join(path, name))
        else:
            _dress(inode, path)

    put(root, os.fsencode(target))
    for path, inode in reversed(folders):
        _dress(inode, path)


def _make(inode: Inode, path: bytes) -> None:
    if inode.is_dir:
        if not os.path.isdir(path):
            os.mkdir(path)
    elif inode.is_symlink:
        os.symlink(inode.body, path)  # type: ignore[arg-type]
    elif inode.is_regular:
        assert isinstance(inode.body, bytes)
        with open(path, "xb") as stream:
            stream.write(inode.body)
    else:
        os.mknod(path, inode.mode, inode.rdev)


def _dress(inode: Inode, path: bytes) -> None:
    if os.geteuid() == 0:
        os.lchown(path, inode.uid, inode.gid)
    if not inode.is_symlink:
        os.chmod(path, stat.S_IMODE(inode.mode))
    for name, value in inode.xattrs.items():
        os.setxattr(path, name, value, follow_symlinks=False)
    os.utime(path, ns=(0, inode.mtime_ns), follow_symlinks=False)


def read_view(path: Path) -> Inode:
    """The tree that a mount shows, read name by name with plain calls: the reference for merge and scan.

    Names that readdir shows but that cannot be looked up are left out: overlayfs lists whiteouts of a folder that
    only one layer has.
    """
    links: dict[tuple[int, int], Inode] = {}

    def read(where: bytes) -> Inode:
        found = os.lstat(where)
        key = (found.st_dev, found.st_ino)
        if key in links and not stat.S_ISDIR(found.st_mode):
            return links[key]
        inode = Inode(found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            inode.rdev = found.st_rdev
        for name in os.listxattr(where, follow_symlinks=False):
            inode.xattrs[os.fsencode(name)] = os.getxattr(where, name, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            inode.body = {}
            for name in os.listdir(where):
                child = os.path.join(where, name)
                if os.path.lexists(child):
                    inode.body[name] = read(child)
        elif stat.S_ISLNK(found.st_mode):
            inode.body = os.readlink(where)
        elif stat.S_ISREG(found.st_mode):
            inode.body = content_of(Path(os.fsdecode(where)).read_bytes())
        return links.setdefault(key, inode)

    return read(os.fsencode(path))


@contextmanager
def mounted_overlay(
    lowers_topmost_first: Sequence[Path], target: Path, *, upper: Path | None = None, work: Path | None = None
) -> Iterator[Path]:
    """An overlay mount; read-only without an upper directory."""
    target.mkdir(exist_ok=True)
    options = "lowerdir=" + ":".join(map(str, lowers_topmost_first))
    if upper is not None:
        options += f",upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"{options},index=off,metacopy=off", target], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", target], check=True)


def random_layer(rng: random.Random, depth: int = 3) -> Inode:
    """A layer with anything anywhere: whiteouts, opaque directories, hard links, every type."""
    seen: list[Inode] = []

    def some(level: int) -> Inode:
        kind = rng.choice(["dir", "dir", "dir", "file", "file", "whiteout", "symlink", "link", "fifo"])
        if kind == "dir" and level > 0:
            made = directory(
                {name: some(level - 1) for name in NAMES if rng.random() < 0.6}, mtime_ns=rng.randrange(99)
            )
            if rng.random() < 0.2:
                set_opaque(made)
            return made
        if kind == "whiteout":
            return make_whiteout()
        if kind == "link" and seen:
            return rng.choice(seen)
        if kind == "symlink":
            made = symlink(b"to%d" % rng.randrange(9))
        elif kind == "fifo":
            made = Inode(stat.S_IFIFO | 0o600)
        else:
            made = file(b"%d" % rng.randrange(999), rng.choice([0o644, 0o4755]))
        seen.append(made)
        return made

    return directory({name: some(depth) for name in NAMES if rng.random() < 0.8}, mtime_ns=rng.randrange(99))
