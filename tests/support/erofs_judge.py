"""Independent judges of EROFS images: the kernel's own mount in the three views, fsck.erofs and dump.erofs.

`mount_erofs` is a context manager; `compare_tree` compares a mounted folder with a tree in every attribute and byte;
`judge` runs all of it over metadata and data. fsck.erofs 1.5 (Debian 12) needs `--device=` for an image with a device
table and then checks names and inodes but not the data of flat inodes, so it extracts from the old view only; see
`layerkit.core.erofs_utils`. The mounts need root; nothing stays mounted.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from layerkit.core.erofs_utils import dump_superblock, fsck_erofs
from layerkit.core.erofs_views import flat_view, old_view
from layerkit.layer.tree import Content, Inode, walk
from tests.support.contents import Chunks, extents, hole_unit, hole_units, read

MS_RDONLY = 1
MNT_DETACH = 2
LONG_ZEROS = 16 << 20
ZERO_SAMPLE = 64 << 10
VIEWS = ("device", "flat", "old")
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextmanager
def mount_erofs(image: Path, target: Path, device: Path | None = None) -> Iterator[Path]:
    """Mount an image file read-only on a folder, which is made when absent.

    Raises:
        OSError: mount(2) or umount(2) refused; a busy mount is detached before that is raised.
    """
    target.mkdir(parents=True, exist_ok=True)
    options = os.fsencode(f"device={device}") if device else None
    _call("mount", os.fsencode(image), os.fsencode(target), b"erofs", MS_RDONLY, options)
    try:
        yield target
    finally:
        try:
            _call("umount2", os.fsencode(target), 0)
        except OSError:
            _call("umount2", os.fsencode(target), MNT_DETACH)
            raise


def read_xattrs(path: bytes) -> dict[bytes, bytes]:
    """All xattrs of a path itself."""
    names = [os.fsencode(name) for name in os.listxattr(path, follow_symlinks=False)]
    assert len(names) == len(set(names)), f"{path!r}: an xattr is listed twice"
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def _compare_stat(path: bytes, inode: Inode, nlink: int) -> None:
    found = os.lstat(path)
    expected = (inode.mode, inode.uid, inode.gid, inode.mtime_ns, nlink, inode.rdev)
    got = (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_nlink, found.st_rdev)
    assert got == expected, f"{path!r}: {got}, expected {expected}"
    if not inode.is_dir:
        assert found.st_size == inode.size, f"{path!r}: size {found.st_size}, expected {inode.size}"


def _compare_zeros(descriptor: int, path: bytes, at: int, length: int) -> None:
    """All of a short run; both ends of a long one, whose middle the hole check covers."""
    ranges = [(at, length)]
    if length > LONG_ZEROS:
        ranges = [(at, ZERO_SAMPLE), (at + length - ZERO_SAMPLE, ZERO_SAMPLE)]
    for start, size in ranges:
        assert os.pread(descriptor, size, start) == bytes(size), f"{path!r}: zeros at {start} read otherwise"


def _hole_ranges(content: Content) -> list[tuple[int, int]]:
    unit, ranges = hole_unit(content.size), []
    for index, is_hole in enumerate(hole_units(content)):
        first, last = index * unit, min((index + 1) * unit, content.size)
        if is_hole and ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        elif is_hole:
            ranges.append((first, last))
    return ranges


def _compare_holes(descriptor: int, path: bytes, content: Content) -> None:
    """Holes are where lseek(2) finds them."""
    found, at = [], 0
    while at < content.size:
        first = os.lseek(descriptor, at, os.SEEK_HOLE)
        if first >= content.size:
            break
        try:
            at = os.lseek(descriptor, first, os.SEEK_DATA)
        except OSError:
            at = content.size
        found.append((first, at))
    assert found == _hole_ranges(content), f"{path!r}: holes {found}"


def _compare_content(path: bytes, content: Content, chunks: Chunks, holes: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for at, length, data in extents(content, chunks):
            if data is None:
                _compare_zeros(descriptor, path, at, length)
            else:
                assert os.pread(descriptor, length, at) == data, f"{path!r}: other bytes at {at}"
        assert os.pread(descriptor, 1, content.size) == b"", f"{path!r}: bytes behind its end"
        if holes:
            _compare_holes(descriptor, path, content)
    finally:
        os.close(descriptor)


def _compare_body(path: bytes, inode: Inode, chunks: Chunks, holes: bool) -> None:
    if inode.is_symlink:
        assert os.readlink(path) == inode.body, f"{path!r}: another target"
    elif isinstance(inode.body, Content):
        _compare_content(path, inode.body, chunks, holes)
    elif inode.is_regular:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert os.read(descriptor, 1 << 20) == inode.body, f"{path!r}: other bytes"
        finally:
            os.close(descriptor)
    elif inode.is_dir:
        found = sorted(os.listdir(path))
        assert found == sorted(inode.entries), f"{path!r}: other names"


def link_counts(root: Inode) -> dict[int, int]:
    """id(inode) -> the link count that a file system shows."""
    counts: dict[int, int] = {id(root): 2}
    for _, inode in walk(root):
        if inode.is_dir:
            for child in inode.entries.values():
                counts[id(child)] = counts.get(id(child), 0) + (2 if child.is_dir else 1)
                counts[id(inode)] += child.is_dir
    return counts


def compare_tree(folder: Path, root: Inode, chunks: Chunks, *, holes: bool = True) -> None:
    """Compare a mounted folder with a tree in everything: names, types, modes, owners, mtimes, link counts and groups,
    device numbers, xattrs, targets, bytes and holes.

    Args:
        chunks: plain bytes by chunk id.
        holes: whether holes must be where the format puts them; False for folders that are no EROFS mount.

    Raises:
        AssertionError: with the path of the first difference.
    """
    nlinks, inos, seen = link_counts(root), {}, {}
    for name, inode in walk(root):
        path = os.fsencode(folder) + (b"/" + name if name else b"")
        _compare_stat(path, inode, nlinks[id(inode)])
        ino = os.lstat(path).st_ino
        assert inos.setdefault(id(inode), ino) == ino, f"{path!r}: a hard link became a copy"
        assert seen.setdefault(ino, id(inode)) == id(inode), f"{path!r}: two inodes became one"
        assert read_xattrs(path) == inode.xattrs, f"{path!r}: other xattrs"
        _compare_body(path, inode, chunks, holes)


def write_views(folder: Path, meta: bytes, write_data: Callable[..., None]) -> dict[str, tuple[Path, Path | None]]:
    """Files for the three views: view name -> image and device. `write_data(path, start=N)` puts the data at byte N."""
    meta_path, data_path = folder / "meta.erofs", folder / "data"
    meta_path.write_bytes(meta)
    write_data(data_path, start=0)
    device = data_path if data_path.stat().st_size else None
    views: dict[str, tuple[Path, Path | None]] = {"device": (meta_path, device)}
    for name, view in (("flat", flat_view(meta)), ("old", old_view(meta))):
        path = folder / f"{name}.erofs"
        path.write_bytes(view)
        write_data(path, start=len(view))
        views[name] = (path, None)
    return views


def judge_mounts(folder: Path, meta: bytes, write_data: Callable[..., None], root: Inode, chunks: Chunks) -> None:
    """Mount all three views and compare each."""
    for image, device in write_views(folder, meta, write_data).values():
        with mount_erofs(image, folder / "mounted", device) as mounted:
            compare_tree(mounted, root, chunks)


def judge_tools(folder: Path, meta: bytes, write_data: Callable[..., None], root: Inode, chunks: Chunks) -> None:
    """fsck.erofs over the device and old view; everything extracted from the old one; dump.erofs counts the inodes.

    Needs no root; what fsck.erofs extracts is compared by bytes only, because 1.5 restores no xattrs, links or devices,
    and leaves out the holes of chunk-based files instead of writing zeros.
    """
    views = write_views(folder, meta, write_data)
    fsck_erofs(views["device"][0], device=views["device"][1])
    image = views["old"][0]
    extracted = folder / "extracted"
    fsck_erofs(image, extract=extracted)
    inodes = {id(inode) for _, inode in walk(root)}
    assert int(dump_superblock(image)["Filesystem inode count"]) == len(inodes)
    for name, inode in walk(root):
        path = os.fsencode(extracted) + b"/" + name
        if inode.is_regular or inode.is_symlink:
            assert stat.S_IFMT(os.lstat(path).st_mode) == stat.S_IFMT(inode.mode), name
        if isinstance(inode.body, Content) and os.lstat(path).st_size != inode.size:
            assert Path(os.fsdecode(path)).read_bytes() == _mapped_bytes(inode.body, chunks), f"{path!r}: other bytes"
        elif inode.is_regular or inode.is_symlink:
            _compare_body(path, inode, chunks, holes=False)


def _mapped_bytes(content: Content, chunks: Chunks) -> bytes:
    unit = hole_unit(content.size)
    return b"".join(
        read(content, chunks, index * unit, unit) for index, is_hole in enumerate(hole_units(content)) if not is_hole
    )
