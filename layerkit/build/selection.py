"""Which things in a tree the sources of a COPY mean. Pure; `build` only.

As BuildKit: symlinks on the way to a source, and a source that is one itself, are followed inside the tree; a wildcard
matches within one component; what a wildcard does not find is an error like a missing file.
"""

from __future__ import annotations

import os

from layerkit._util.text import did_you_mean
from layerkit.build.copying import CopySource
from layerkit.build.gomatch import has_wildcards, match
from layerkit.build.paths import resolve, split
from layerkit.errors import InputError, MissingError
from layerkit.layer.tree import Inode


def select_sources(root: Inode, pattern: str, what: str) -> list[CopySource]:
    """The things that one source means, in byte order of their names.

    Args:
        root: what is copied from.
        pattern: relative path, wildcards allowed; '' is the whole tree.
        what: what `root` is, for errors.

    Raises:
        MissingError: nothing is there; the hint names what looks alike.
    """
    found: list[tuple[str, Inode]] = [("", root)]
    for name in (os.fsdecode(part) for part in split(os.fsencode(pattern))):
        if has_wildcards(name):
            found = [pair for path, inode in found for pair in _matching(root, path, inode, name)]
        else:
            found = [pair for path, _ in found for pair in _named(root, f"{path}/{name}")]
        if not found:
            raise _missing(root, pattern, what)
    return [CopySource(os.fsencode(path.rpartition("/")[2]), inode) for path, inode in found]


def _named(root: Inode, path: str) -> list[tuple[str, Inode]]:
    try:
        inode = resolve(root, os.fsencode(path)).inode
    except InputError:
        return []
    return [(path, inode)] if inode is not None else []


def _matching(root: Inode, path: str, folder: Inode, pattern: str) -> list[tuple[str, Inode]]:
    if not folder.is_dir:
        return []
    names = [os.fsdecode(name) for name in sorted(folder.entries)]
    return [pair for name in names if match(pattern, name) for pair in _named(root, f"{path}/{name}")]


def _missing(root: Inode, pattern: str, what: str) -> MissingError:
    folder, _, name = pattern.rpartition("/")
    try:
        near = resolve(root, os.fsencode(folder)).inode
    except InputError:
        near = None
    names = [os.fsdecode(entry) for entry in near.entries] if near is not None and near.is_dir else []
    hint = did_you_mean(name, names) or f"{what} holds {', '.join(sorted(names)[:8])}" if names else ""
    return MissingError(f"nothing in {what} is called {pattern!r}", hint=hint)
