"""Paths inside a tree: symlinks are followed beneath the root, never out of it. Pure; `build` only.

Follows path_resolution(7) as a process sees it that is chrooted to the tree's root: `..` at the root stays there, an
absolute link target starts at the root.
"""

from __future__ import annotations

from dataclasses import dataclass

from layerkit.errors import InputError
from layerkit.layer.tree import Inode

MAX_LINKS = 40  # Linux include/linux/namei.h: MAXSYMLINKS

Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a path leads.

    Attributes:
        parts: the real path's names; those that do not exist yet stand at its end.
        inode: what is there, or None.
        missing: how many names at the end of `parts` do not exist.
    """

    parts: Parts
    inode: Inode | None
    missing: int


def split(path: bytes) -> list[bytes]:
    """The names of a path; empty ones and `.` are dropped, `..` is kept."""
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def join(parts: Parts) -> bytes:
    """The absolute spelling of real path names."""
    return b"/" + b"/".join(parts)


def resolve(root: Inode, path: bytes, *, follow_last: bool = True) -> Resolved:
    """Follow `path` from the root of a tree.

    Args:
        root: the tree.
        path: absolute or relative to the root.
        follow_last: whether a symlink at the very end is followed as well; one with `/` behind it always is.

    Raises:
        InputError: more than 40 links, or a name below something that is not a directory.
    """
    pending = split(path)[::-1]
    follow_last = follow_last or path.endswith((b"/", b"/."))
    reached: list[tuple[bytes, Inode | None]] = []
    links = 0
    while pending:
        name = pending.pop()
        if name == b"..":
            if reached:
                reached.pop()
            continue
        here = reached[-1][1] if reached else root
        if here is not None and not here.is_dir:
            raise InputError("a name below something that is not a directory", where=_shown(_names(reached)))
        child = here.entries.get(name) if here is not None else None
        if child is None or not child.is_symlink or not (pending or follow_last):
            reached.append((name, child))
            continue
        links += 1
        if links > MAX_LINKS:
            raise InputError(f"more than {MAX_LINKS} symbolic links", where=_shown((*_names(reached), name)))
        target = child.body if isinstance(child.body, bytes) else b""
        if target.startswith(b"/"):
            reached.clear()
        pending.extend(split(target)[::-1])
    missing = sum(inode is None for _, inode in reached)
    return Resolved(_names(reached), reached[-1][1] if reached else root, missing)


def _names(reached: list[tuple[bytes, Inode | None]]) -> Parts:
    return tuple(name for name, _ in reached)


def _shown(parts: Parts) -> str:
    return join(parts).decode("utf-8", "backslashreplace")
