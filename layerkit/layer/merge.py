"""Layers on top of each other: merge as overlayfs shows it, difference, application; imported by rank 2 up.

Pure: inputs are not changed. Directories of a result are new; every other inode is shared with the inputs, so that a
merge of a million files costs no copies: replace such an inode in a result, never change it in place.

The rules are those of overlayfs (Linux fs/overlayfs/namei.c, ovl_lookup): name by name, the topmost inode wins;
directories of neighbouring layers join until one is opaque or something else than a directory lies under that name; a
whiteout ends the search; a joined directory has the attributes of its topmost part. Names within one layer that
share an inode are hard links, names in different layers never are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerkit.errors import InputError
from layerkit.layer.contents import same_body
from layerkit.layer.tree import Inode
from layerkit.layer.whiteouts import is_opaque, is_whiteout, make_whiteout, without_opaque


def merge(lower_to_upper: Sequence[Inode]) -> Inode:
    """The tree that an overlay of the layers shows; whiteouts and opaque marks are resolved and gone.

    Args:
        lower_to_upper: roots of the layers, the lowest first (an overlay's `lowerdir` names them the other way round).
    """
    roots = [lower_to_upper[-1]]
    for root in reversed(lower_to_upper[:-1]):
        if is_opaque(roots[-1]):
            break
        roots.append(root)
    merged = _bare_directory(roots[0])
    pending = [(merged, roots)]
    while pending:
        directory, stack = pending.pop()
        entries = directory.entries
        for name, found in _visible(stack):
            top = found[0]
            if type(top.body) is dict:
                entries[name] = child = _bare_directory(top)
                pending.append((child, found))
            elif not is_whiteout(top):
                entries[name] = top
    return merged


def apply(lower: Inode, difference: Inode) -> Inode:
    """The tree with a difference laid over it."""
    return merge([lower, difference])


def _visible(stack: list[Inode]) -> Iterator[tuple[bytes, list[Inode]]]:
    """Each name with what lies under it, topmost first: one inode, or the directories that join."""
    if len(stack) == 1:
        for name, inode in stack[0].entries.items():
            yield name, [inode]
        return
    found: dict[bytes, list[Inode]] = {}
    closed: set[bytes] = set()
    for directory in stack:
        for name, inode in directory.entries.items():
            if name in closed:
                continue
            if type(inode.body) is dict:
                found.setdefault(name, []).append(inode)
                if is_opaque(inode):
                    closed.add(name)
            else:
                found.setdefault(name, [inode])
                closed.add(name)
    yield from found.items()


def _bare_directory(inode: Inode) -> Inode:
    """A new empty directory with the attributes of `inode`, without the opaque mark."""
    return Inode(inode.mode, inode.uid, inode.gid, inode.mtime_ns, xattrs=without_opaque(inode.xattrs), body={})


def same_attributes(one: Inode, other: Inode) -> bool:
    """Whether mode, owner, time, device number and xattrs are equal."""
    return (
        one.mode == other.mode
        and one.mtime_ns == other.mtime_ns
        and one.uid == other.uid
        and one.gid == other.gid
        and one.rdev == other.rdev
        and one.xattrs == other.xattrs
    )


def same_inode(one: Inode, other: Inode) -> bool:
    """Whether two inodes that are not directories have equal attributes and bytes."""
    return one is other or (same_attributes(one, other) and same_body(one.body, other.body))


@dataclass(slots=True, eq=False)
class _Frame:
    """A directory of the merged tree on the way of the comparison; `out` is its part of the difference, when placed."""

    upper: Inode
    lower: Inode | None
    parent: _Frame | None
    name: bytes
    out: Inode
    placed: bool = False

    def entries(self) -> dict[bytes, Inode]:
        """The entries of this directory in the difference; it and its parents are placed there first."""
        frame: _Frame | None = self
        while frame is not None and not frame.placed:
            frame.placed = True
            if frame.parent is not None:
                frame.parent.out.entries[frame.name] = frame.out
            frame = frame.parent
        return self.out.entries

    def path(self, name: bytes) -> str:
        """The path of an entry, for messages."""
        parts = [name]
        frame: _Frame | None = self
        while frame is not None and frame.parent is not None:
            parts.append(frame.name)
            frame = frame.parent
        return os.fsdecode(b"/".join(reversed(parts)))


def diff(lower: Inode, upper_merged: Inode) -> Inode:
    """The smallest layer that turns `lower` into `upper_merged`: `apply(lower, diff(lower, m))` equals `m`.

    Deleted names are explicit whiteouts, nothing is opaque. A directory whose attributes are unchanged is there only
    as the way to what changed beneath it, with the same attributes. The root is always there; `is_empty_difference`
    says whether it is all there is.

    Hard links: a group of names counts as unchanged when each of its names belonged to one lower inode with equal
    attributes and bytes; else the group is in the difference with all its names, as one inode. Where one lower inode
    has become several equal ones, the one with the most names stays out (the first met among
    equals) and the rest is written, so that they are no links any more. A changed name that was linked to others
    leaves those as they were, as overlayfs does when it copies up.

    Args:
        lower: a merged tree.
        upper_merged: a merged tree.

    Raises:
        InputError: `upper_merged` holds a whiteout, so it is not a merged tree.
    """
    unchanged = _unchanged_inodes(lower, upper_merged)
    root = _Frame(upper_merged, lower, None, b"", _bare_directory(upper_merged), placed=True)
    for frame, name, above, below in _pairs(root):
        if above is None:
            frame.entries()[name] = make_whiteout()
        elif isinstance(above, _Frame):
            if below is None or type(below.body) is not dict or not same_attributes(above.upper, below):
                above.entries()
        elif above not in unchanged:
            if is_whiteout(above):
                raise InputError("a whiteout in a merged tree", where=frame.path(name))
            frame.entries()[name] = above
    return root.out


def is_empty_difference(lower: Inode, difference: Inode) -> bool:
    """Whether a difference against `lower` changes nothing: no entries and the root's attributes as they were."""
    return not difference.entries and same_attributes(lower, difference)


def _pairs(root: _Frame) -> Iterator[tuple[_Frame, bytes, Inode | _Frame | None, Inode | None]]:
    """Every name of both trees: its directory, itself, what it is above (a frame for directories) and below.

    Parents come before children and names in byte order, directories depth first.
    """
    pending = [root]
    while pending:
        frame = pending.pop()
        lower = frame.lower.entries if frame.lower is not None else {}
        upper = frame.upper.entries
        children = []
        for name in sorted(upper):
            above, below = upper[name], lower.get(name)
            if type(above.body) is dict:
                joined = below if below is not None and type(below.body) is dict else None
                child = _Frame(above, joined, frame, name, _bare_directory(above))
                children.append(child)
                yield frame, name, child, below
            else:
                yield frame, name, above, below
        for name in sorted(lower.keys() - upper.keys()):
            yield frame, name, None, lower[name]
        pending.extend(reversed(children))


def _unchanged_inodes(lower: Inode, upper: Inode) -> set[Inode]:
    """The inodes of `upper`, directories aside, that `lower` holds under all their names with nothing changed."""
    partner: dict[Inode, Inode | None] = {}
    names: dict[Inode, int] = {}
    for _, _, above, below in _pairs(_Frame(upper, lower, None, b"", upper)):
        if not isinstance(above, Inode):
            continue
        if above not in partner:
            equal = below is not None and type(below.body) is not dict and same_inode(above, below)
            partner[above] = below if equal else None
            names[above] = 1
        else:
            names[above] += 1
            if partner[above] is not below:
                partner[above] = None
    kept: dict[Inode, Inode] = {}
    for above, below in partner.items():
        if below is not None and (below not in kept or names[above] > names[kept[below]]):
            kept[below] = above
    return set(kept.values())
