"""Layers as overlayfs will show them, looked at before they are mounted; standard library only.

Used by the container backend to find out where a path leads inside a stack. A view keeps no open files; any thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import InputError

MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads.

    Args:
        parts: the names from the root on, without links.
        status: of what stands there, None when nothing does.
        source: the topmost layer's file or folder that gives it its attributes.
    """

    parts: tuple[str, ...]
    status: os.stat_result | None
    source: Path | None

    @property
    def is_dir(self) -> bool:
        """Whether a folder stands there."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def path(self) -> str:
        """The absolute path without links."""
        return "/" + "/".join(self.parts)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "trusted.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


class MergedView:
    """A stack of directory trees, topmost first."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._layers = tuple(layers)

    def resolve(self, path: str) -> Place:
        """Follow an absolute path as a process inside would, links in its last name included.

        Raises:
            InputError: too many links, or a part of it is neither folder nor link.
        """
        left = [part for part in path.split("/") if part]
        parts: list[str] = []
        links = 0
        while left:
            name = left.pop(0)
            if name in (".", ".."):
                if name == ".." and parts:
                    parts.pop()
                continue
            place = self.look((*parts, name))
            if place.status is not None and stat.S_ISLNK(place.status.st_mode):
                links += 1
                if links > MAX_LINKS or place.source is None:
                    raise InputError("too many links", where=path)
                target = os.readlink(place.source)
                if target.startswith("/"):
                    parts = []
                left = [part for part in target.split("/") if part] + left
                continue
            if place.status is not None and not place.is_dir and left:
                raise InputError(f"{place.path} is not a folder", where=path)
            parts.append(name)
        return self.look(tuple(parts))

    def look(self, parts: tuple[str, ...]) -> Place:
        """What stands at a path that has no links before its last name."""
        folders = list(self._layers)
        status: os.stat_result | None = os.lstat(folders[0]) if folders else None
        for name in parts:
            status, folders = _step(folders, name)
            if status is None:
                return Place(parts, None, None)
        return Place(parts, status, folders[0] if folders else None)


def _step(folders: Sequence[Path], name: str) -> tuple[os.stat_result | None, list[Path]]:
    """One name further: its status, and the folders that are merged there (or the one file)."""
    found: os.stat_result | None = None
    merged: list[Path] = []
    for folder in folders:
        path = folder / name
        status = _lstat(path)
        if status is None:
            continue
        if _is_whiteout(status) or (found is not None and not stat.S_ISDIR(status.st_mode)):
            break
        found = found or status
        merged.append(path)
        if not stat.S_ISDIR(status.st_mode) or _is_opaque(path):
            break
    return found, merged
