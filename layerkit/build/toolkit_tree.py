"""The tree of a toolkit that is not BOUND: what lies under its PREFIX, and nothing else. Pure; `build` only.

The layer has to work above bases that it was not built on: it holds all that lies there, no whiteouts, and the
directories above the prefix as the base has them (B12).
"""

from __future__ import annotations

import re
from dataclasses import replace

from layerkit.build.headers import Header
from layerkit.errors import BuildError
from layerkit.layer.tree import Inode, find, new_directory, walk

DROPPED = re.compile(
    rb"(?:tmp|var/tmp|run|var/run|var/cache|var/log|var/lib/dpkg|var/lib/apt|var/lib/pacman|var/lib/rpm"
    rb"|var/lib/systemd|etc/ld\.so\.cache|(?:root|home/[^/]+)/\.(?:cache|npm)|(?:.*/)?__pycache__)(?:/.*)?"
)
"""What package managers and interpreters leave outside of a toolkit's prefix and nobody misses."""

MAX_LISTED = 20


def toolkit_tree(header: Header, lower: Inode, merged: Inode, difference: Inode) -> Inode:
    """The layer's tree.

    Args:
        header: the stage's declarations.
        lower: what the stage stands on.
        merged: what it has become.
        difference: between the two.

    Raises:
        BuildError: something was written outside of the prefixes, or nothing lies under one of them.
    """
    prefixes = [prefix.encode().strip(b"/") for prefix in header.prefixes]
    if header.settings.get("drop-outside") != "true":
        _refuse_outside(header, _outside(difference, lower, prefixes))
    top = _shell(lower)
    for prefix in prefixes:
        _refuse_link(header, merged, prefix)
        found = find(merged, prefix)
        if found is None or not found.is_dir:
            raise BuildError(
                f"toolkit/{header.name} holds nothing under /{_shown(prefix)}",
                hint="install it there, or correct PREFIX",
            )
        _place(top, lower, merged, prefix.split(b"/"), found)
    return top


def _refuse_outside(header: Header, outside: list[bytes]) -> None:
    if not outside:
        return
    shown = "\n".join(f"  /{_shown(path)}" for path in outside[:MAX_LISTED])
    more = f"\n  … and {len(outside) - MAX_LISTED} more" if len(outside) > MAX_LISTED else ""
    raise BuildError(
        f"toolkit/{header.name} wrote outside of {', '.join(header.prefixes)}:\n{shown}{more}",
        hint="build in another stage and COPY --from it, or say SETTING drop-outside=true, or make it BOUND",
    )


def _refuse_link(header: Header, merged: Inode, prefix: bytes) -> None:
    """A prefix behind a symlink would put a directory over the link in every stack."""
    parts = prefix.split(b"/")
    for depth in range(1, len(parts) + 1):
        path = b"/".join(parts[:depth])
        found = find(merged, path)
        if found is not None and found.is_symlink and isinstance(found.body, bytes):
            raise BuildError(
                f"PREFIX /{_shown(prefix)} of toolkit/{header.name} leads through the symbolic link /{_shown(path)} "
                f"to {_shown(found.body)}",
                hint="write PREFIX with the path that the link leads to",
            )


def _outside(difference: Inode, lower: Inode, prefixes: list[bytes]) -> list[bytes]:
    """What the difference holds outside of the prefixes; a new directory that is outside as a whole stands for all."""
    listed: set[bytes] = set()
    new: list[tuple[bytes, Inode]] = []
    for path, inode in walk(difference):
        if not path or DROPPED.fullmatch(path) or any(path == p or path.startswith(p + b"/") for p in prefixes):
            continue
        if not inode.is_dir:
            listed.add(path)
            continue
        if any(prefix.startswith(path + b"/") for prefix in prefixes):
            continue
        there = find(lower, path)
        if there is not None and there.is_dir:
            if not _same_access(inode, there):
                listed.add(path)
        elif inode.entries:
            new.append((path, inode))
        else:
            listed.add(path)
    for path, inode in reversed(new):  # children first
        children = [path + b"/" + name for name in inode.entries]
        if listed.issuperset(children):
            listed.difference_update(children)
            listed.add(path)
    return sorted(listed)


def _same_access(one: Inode, other: Inode) -> bool:
    """Equal but for the time, which every file that came and went again has changed."""
    return (one.mode, one.uid, one.gid, one.xattrs) == (other.mode, other.uid, other.gid, other.xattrs)


def _place(top: Inode, lower: Inode, merged: Inode, parts: list[bytes], tree: Inode) -> None:
    here = top
    for depth in range(1, len(parts)):
        path = b"/".join(parts[:depth])
        model = find(lower, path)
        if model is None or not model.is_dir:
            model = find(merged, path)
        here = here.entries.setdefault(parts[depth - 1], _shell(model or new_directory()))
    here.entries[parts[-1]] = tree


def _shell(model: Inode) -> Inode:
    return replace(model, body={}, xattrs=dict(model.xattrs))


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
