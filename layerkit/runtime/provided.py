"""What the runtime itself puts into a sandbox's root: a topmost lower that is thrown away, and its traces in an upper.

Mount points that the stack lacks, the host's CA bundle and the profile file stand in a small directory that becomes the
topmost lower. So nothing of it is in the upper directory, a package that rewrites the CA bundle can rename over it, and
the OCI runtime finds every mount point there. Its folders repeat the attributes of the stack's, because overlayfs shows
those of the topmost layer. `scrub` takes out of an upper what a command copied up or deleted of it.

Used by the container backend; functions over directories that nobody else uses; any thread.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import InputError
from layerkit.runtime.merged_view import MergedView, Place


@dataclass(frozen=True, slots=True)
class Wish:
    """A path that must be there when the sandbox starts.

    Args:
        path: absolute, links are followed.
        is_dir: a folder, else a file.
        content: of the file; None for a mount point, for which whatever is there already will do.
    """

    path: str
    is_dir: bool
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Provided:
    """One path of the extra lower: `content` None for a folder; `was_there` when the stack has that path too."""

    parts: tuple[str, ...]
    content: bytes | None
    was_there: bool


def provide(folder: Path, view: MergedView, wishes: Iterable[Wish]) -> list[Provided]:
    """Fill `folder` (made here, when needed) with what the view lacks of the wishes.

    Returns:
        what was put there, parents before children; empty when no extra lower is needed (then `folder` is not made).

    Raises:
        InputError: a folder is wished where the stack has a file, or the reverse.
    """
    found: list[Provided] = []
    for wish in wishes:
        place = view.resolve(wish.path)
        if place.status is not None and place.is_dir != wish.is_dir:
            kinds = ("a folder", "a file") if place.is_dir else ("a file", "a folder")
            raise InputError(f"cannot mount over {place.path}: it is {kinds[0]}, not {kinds[1]}", where=wish.path)
        if place.status is None or wish.content is not None:
            _add(folder, view, place, wish, found)
    _repeat_times(folder, view, found)
    return found


def _add(folder: Path, view: MergedView, place: Place, wish: Wish, found: list[Provided]) -> None:
    known = {item.parts for item in found}
    for depth in range(len(place.parts) + (1 if wish.is_dir else 0)):
        parts = place.parts[:depth]
        if parts not in known:
            found.append(_add_folder(folder, view, parts))
    if wish.is_dir or place.parts in known:
        return
    path = folder.joinpath(*place.parts)
    path.write_bytes(wish.content or b"")
    path.chmod(0o644)
    if place.status is not None:
        _repeat_attributes(place, path)
    found.append(Provided(place.parts, wish.content or b"", place.status is not None))


def _add_folder(folder: Path, view: MergedView, parts: tuple[str, ...]) -> Provided:
    path = folder.joinpath(*parts)
    path.mkdir()
    path.chmod(0o755)
    place = view.look(parts)
    if place.status is not None:
        _repeat_attributes(place, path)
    return Provided(parts, None, place.status is not None)


def _repeat_attributes(place: Place, path: Path) -> None:
    """Owner, mode and xattrs of the stack's own file or folder."""
    assert place.status is not None
    assert place.source is not None
    os.chown(path, place.status.st_uid, place.status.st_gid)
    path.chmod(stat.S_IMODE(place.status.st_mode))
    for name in os.listxattr(place.source, follow_symlinks=False):
        if not name.startswith("trusted.overlay."):
            os.setxattr(path, name, os.getxattr(place.source, name, follow_symlinks=False))


def _repeat_times(folder: Path, view: MergedView, found: list[Provided]) -> None:
    """Last, because every new entry changes its folder's time; children first."""
    for item in reversed(found):
        status = view.look(item.parts).status
        times = (0, 0) if status is None else (status.st_atime_ns, status.st_mtime_ns)
        os.utime(folder.joinpath(*item.parts), ns=times)


def scrub(upper: Path, provided: Iterable[Provided]) -> None:
    """Take out of an upper what came from the extra lower: copies of its files, whiteouts and empty copies of folders.

    A file that a command changed stays as it is, but for the runtime's own bytes at its beginning.
    """
    for item in sorted(provided, key=lambda item: len(item.parts), reverse=True):
        path = upper.joinpath(*item.parts)
        if not item.parts or not _is_reachable(upper, item.parts):
            continue
        with suppress(FileNotFoundError):
            _scrub_one(path, item)


def _is_reachable(upper: Path, parts: tuple[str, ...]) -> bool:
    """Whether no link or file stands in for a folder on the way: `upper` was written by strangers."""
    path = upper
    for name in parts[:-1]:
        path = path / name
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return False
        except FileNotFoundError:
            return False
    return True


def _scrub_one(path: Path, item: Provided) -> None:
    status = os.lstat(path)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        if not item.was_there:
            path.unlink()
    elif stat.S_ISDIR(status.st_mode):
        if item.content is None and not item.was_there:
            with suppress(OSError):
                path.rmdir()
    elif stat.S_ISREG(status.st_mode) and item.content and status.st_size >= len(item.content):
        _scrub_file(path, status, item.content)


def _scrub_file(path: Path, status: os.stat_result, content: bytes) -> None:
    with open(path, "rb") as file:
        if file.read(len(content)) != content:
            return
        if status.st_size == len(content):
            path.unlink()
            return
        rest = path.with_name(f".layerkit-scrub-{os.getpid()}")
        with open(rest, "xb") as target:
            shutil.copyfileobj(file, target)
    os.chown(rest, status.st_uid, status.st_gid)
    rest.chmod(stat.S_IMODE(status.st_mode))
    os.utime(rest, ns=(status.st_atime_ns, status.st_mtime_ns))
    rest.rename(path)
