"""The build context: a directory of this machine without what .dockerignore leaves out. `build` only; one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from layerkit._util.files import translate_os_error
from layerkit.build.copying import CopySource
from layerkit.build.dockerignore import IgnoreRules
from layerkit.build.host_tree import HostTree, ReadFile
from layerkit.build.pieces import Piece
from layerkit.build.selection import select_sources
from layerkit.errors import InputError
from layerkit.layer.facts import FactsCollector
from layerkit.layer.tree import Content, Inode, find, walk

IGNORE_FILE = ".dockerignore"


class BuildContext:
    """Scanned when something is first copied from it; only what is copied is read.

    Args:
        folder: the directory.
        layerfile: its path, whose own `<file>.dockerignore` wins over the context's.
    """

    def __init__(self, folder: Path, layerfile: Path) -> None:
        if not folder.is_dir():
            raise InputError("the build context is not a directory", where=str(folder))
        self.folder = folder
        self._rules = _read_rules(folder, layerfile)

    @cached_property
    def _files(self) -> HostTree:
        exclusion = _Exclusion(self._rules)
        files = HostTree(self.folder, exclude=exclusion if self._rules.patterns else None)
        exclusion.prune(files.root)
        return files

    def select(self, pattern: str) -> list[CopySource]:
        """What a source of COPY means; contents may still be unread (`fill`)."""
        ignored = f" (or {IGNORE_FILE} leaves it out)" if self._rules.patterns else ""
        return select_sources(self._files.root, pattern, f"the build context{ignored}")

    @cached_property
    def facts(self) -> FactsCollector:
        """What was learnt from the files that were read, which happens once a build."""
        return FactsCollector()

    def fill(self, sources: list[CopySource], read_file: ReadFile) -> None:
        """Read the files of these sources that have not been read before."""
        for source in sources:
            self._files.fill((inode for _, inode in walk(source.inode)), read_file)

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Files once more, see `HostTree.contents`."""
        return self._files.contents(wanted)

    @property
    def root(self) -> Inode:
        """The whole tree; contents that were not filled are placeholders."""
        return self._files.root

    def find_path(self, inode: Inode) -> Path | None:
        """Where an inode of the context lies on this machine, for what reads it itself (ADD of a tar)."""
        for path, known in walk(self._files.root):
            if known is inode:
                return self.folder / os.fsdecode(path)
        return None


class _Exclusion:
    """`scan_directory`'s question, answered from the rules; keeps the state of each folder it entered."""

    def __init__(self, rules: IgnoreRules) -> None:
        self._rules = rules
        self._states: dict[str, tuple[bool, ...]] = {"": rules.root}
        self._entered_for_exceptions: list[bytes] = []

    def __call__(self, path: bytes, is_dir: bool) -> bool:
        text = os.fsdecode(path)
        state = self._states[text.rpartition("/")[0]]
        if not is_dir:
            return self._rules.ignores_entry(state, text)
        ignored, inside = self._rules.enter(state, text)
        self._states[text] = inside
        if ignored and self._rules.may_keep_below(text):
            self._entered_for_exceptions.append(path)
            return False
        return ignored

    def prune(self, root: Inode) -> None:
        """Remove the ignored folders in which no exception was found after all."""
        for path in reversed(self._entered_for_exceptions):
            folder, _, name = path.rpartition(b"/")
            parent, inode = find(root, folder), find(root, path)
            if parent is not None and inode is not None and not inode.entries:
                del parent.entries[name]


def _read_rules(folder: Path, layerfile: Path) -> IgnoreRules:
    for path in (layerfile.with_name(layerfile.name + IGNORE_FILE), folder / IGNORE_FILE):
        try:
            if path.is_file():
                return IgnoreRules.parse(path.read_bytes(), str(path))
        except OSError as error:
            raise translate_os_error(error, str(path)) from error
    return IgnoreRules(())
