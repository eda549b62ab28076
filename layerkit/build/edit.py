"""Editing a tree without touching the tree it came from, and the difference that the edits make. `build` only.

Directories on the way to an edit are copied once (copy on write); everything else is shared with the original, which
stays as it was. One thread.
"""

from __future__ import annotations

from dataclasses import replace

from layerkit.build.paths import Parts, join
from layerkit.errors import InputError
from layerkit.layer.tree import Inode, new_directory


class TreeEditor:
    """A tree under edit; `root` is the edited tree, `difference()` what has been put into it."""

    def __init__(self, root: Inode) -> None:
        self.root = self._copied(root)
        # Holds the directories themselves: an id alone may come back for another object.
        self._owned = {id(self.root): self.root}
        self._touched: dict[Parts, None] = {}

    @staticmethod
    def _copied(directory: Inode) -> Inode:
        return replace(directory, body=dict(directory.entries), xattrs=dict(directory.xattrs))

    def directory(self, parts: Parts) -> Inode:
        """The directory at a real path, ready to be changed.

        Raises:
            InputError: something on the path is missing or not a directory.
        """
        here = self.root
        for depth, name in enumerate(parts):
            child = here.entries.get(name)
            if child is None or not child.is_dir:
                raise InputError("not a directory", where=join(parts[: depth + 1]).decode("utf-8", "backslashreplace"))
            if id(child) not in self._owned:
                child = self._copied(child)
                self._owned[id(child)] = child
                here.entries[name] = child
            here = child
        return here

    def put(self, parts: Parts, inode: Inode) -> None:
        """Set the inode at a real path whose directory exists, replacing what was there."""
        self.directory(parts[:-1]).entries[parts[-1]] = inode
        self._touched[parts] = None
        if inode.is_dir:
            self._owned[id(inode)] = inode

    def set_attributes(self, parts: Parts, source: Inode) -> None:
        """Give an existing directory the mode, owner, mtime and xattrs of another one."""
        directory = self.directory(parts)
        directory.mode, directory.uid, directory.gid = source.mode, source.uid, source.gid
        directory.mtime_ns, directory.xattrs = source.mtime_ns, dict(source.xattrs)
        self._touched[parts] = None

    def make_directories(self, parts: Parts, *, mode: int, uid: int, gid: int, mtime_ns: int) -> None:
        """Create the directory at a real path with all that is missing above it; existing ones are left alone."""
        here = self.root
        for depth, name in enumerate(parts):
            child = here.entries.get(name)
            if child is None:
                child = new_directory(mode, uid, gid, mtime_ns)
                self.put(parts[: depth + 1], child)
            here = child

    def difference(self) -> Inode:
        """The tree of what was put in, below directories that have the attributes they have in the edited tree."""
        top = replace(self.root, body={}, xattrs=dict(self.root.xattrs))
        for parts in self._touched:
            source, target = self.root, top
            for depth, name in enumerate(parts):
                source = source.entries[name]
                known = target.entries.get(name)
                if known is None:
                    known = source if depth == len(parts) - 1 and not source.is_dir else _shell(source)
                    target.entries[name] = known
                target = known
        return top


def _shell(inode: Inode) -> Inode:
    return replace(inode, body={}, xattrs=dict(inode.xattrs)) if inode.is_dir else inode
