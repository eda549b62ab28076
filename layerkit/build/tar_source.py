"""Trees from tar archives, read as GNU tar reads them, or a typed error. `build` only; one thread."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

from layerkit._util.files import translate_os_error
from layerkit.build import tar_format
from layerkit.build.compressed import open_plain
from layerkit.build.ingest import WHOLE_MAX, Ingester
from layerkit.build.pieces import Piece
from layerkit.build.tar_attributes import has_acls, inode_of, set_acls
from layerkit.build.tar_format import TarMember, TarReader
from layerkit.errors import ArchiveError
from layerkit.layer.facts import HEAD_SIZE, FactsCollector, FileFacts, read_fact
from layerkit.layer.tree import Content, Inode, new_directory, walk

_TABLES = {"user": b"etc/passwd", "group": b"etc/group"}


@contextmanager
def open_tar(path: Path) -> Iterator[TarReader]:
    """The archive as a forward-only stream, decompressed by what its first bytes say (gzip, bzip2, xz, zstd).

    Raises:
        ArchiveError: it cannot be read as a tar; `where` is the archive for every error while it is in use.
        LayerkitError: the file cannot be read.
    """
    with open_plain(path) as stream:
        try:
            yield TarReader(stream)
        except ArchiveError as error:
            if error.where:
                raise
            raise ArchiveError(error.message, where=str(path), hint=error.hint) from error
        stream.finish()


def is_tar(path: Path) -> bool:
    """Whether the file is a tar archive, compressed or not: its first header can be read."""
    try:
        with open_plain(path) as stream:
            return next(iter(TarReader(stream)), None) is not None
    except ArchiveError:
        return False


class TarSource:
    """The tree in an archive, all its files read in archive order.

    An entry that comes twice counts as the last one says; missing parents get mode 0755 and root as their owner.

    Args:
        path: the archive.
        ingester: takes the files' bytes.
        facts: gets what there is to learn from them.

    Raises:
        ArchiveError: damaged, truncated, or a name that leads out of the tree.
    """

    def __init__(self, path: Path, ingester: Ingester, facts: FactsCollector) -> None:
        self._path = path
        self._ingester = ingester
        self._facts = facts
        self._contents: dict[int, Content] = {}
        self._learnt: dict[Inode, FileFacts] = {}
        self._with_acls: list[tuple[Inode, TarMember]] = []
        self._tables: dict[bytes, bytes] = {}
        tree = _TreeReader()
        with open_tar(path) as archive:
            for member in archive:
                self._add(tree, archive, member)
            self.root = tree.finish()
            for inode, member in self._with_acls:
                set_acls(inode, member, self._find_id)
        # Not while reading: a later entry may have replaced the one that the fact is about.
        for name, inode in walk(self.root):
            facts.put(name, self._learnt.get(inode))
        self._learnt.clear()

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Path, content and bytes once more of each file whose content is wanted, in archive order."""
        with open_tar(self._path) as archive:
            for member in archive:
                content = self._contents.get(member.number)
                if content is not None and member.size == content.size and wanted(content):
                    yield b"/".join(_names(member.name)), content, archive.pieces(member)

    def _add(self, tree: _TreeReader, archive: TarReader, member: TarMember) -> None:
        names = _names(member.name)
        if member.type == tar_format.LINK:
            tree.link(names, _names(member.linkname))
            return
        inode = inode_of(member)
        if has_acls(member):
            self._with_acls.append((inode, member))
        if member.type == tar_format.DIRECTORY:
            inode.body = {}
        elif member.type == tar_format.SYMLINK:
            inode.body = _target(member)
        elif member.type == tar_format.REGULAR:
            inode.body = self._read(archive.pieces(member), member, names, inode)
        tree.put(names, inode)

    def _read(self, pieces: Iterator[Piece], member: TarMember, names: list[bytes], inode: Inode) -> Content | bytes:
        path = b"/".join(names)
        first = next(pieces, b"")
        if path in _TABLES.values() and isinstance(first, bytes):
            self._tables[path] = first
        head = first[:HEAD_SIZE] if isinstance(first, bytes) else b""
        kind = self._facts.wants(path, head, member.mode)
        stream = chain((first,), pieces)
        if kind is None:
            body = self._ingester.read(stream, member.size, path)
        elif member.size <= WHOLE_MAX:
            data = b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in stream)
            body = self._ingester.read((data,), member.size, path)
            self._learn(inode, read_fact(kind, data))
        else:
            with _temporary_file() as copy:
                body = self._ingester.read(_copied(stream, copy), member.size, path)
                copy.flush()
                self._learn(inode, read_fact(kind, lambda offset, length: os.pread(copy.fileno(), length, offset)))
        if isinstance(body, Content):
            self._contents[member.number] = body
        return body

    def _find_id(self, kind: str, name: str) -> int | None:
        """The number of a user or group in the archive's own tables, where the other names of ACLs are from."""
        for line in self._tables.get(_TABLES.get(kind, b""), b"").decode("utf-8", "replace").split("\n"):
            fields = line.split(":")
            if fields[0] == name and len(fields) > 2 and fields[2].isascii() and fields[2].isdigit():
                return int(fields[2][:11])
        return None

    def _learn(self, inode: Inode, fact: FileFacts | None) -> None:
        if fact is not None:
            self._learnt[inode] = fact


@contextmanager
def _temporary_file() -> Iterator[IO[bytes]]:
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        raise translate_os_error(error, tempfile.gettempdir()) from error


def _copied(pieces: Iterator[Piece], copy: IO[bytes]) -> Iterator[Piece]:
    """The same pieces, written to a file on the way: facts are read from where they lie, not in archive order."""
    for piece in pieces:
        if isinstance(piece, bytes):
            copy.write(piece)
        else:
            copy.seek(piece, os.SEEK_CUR)
        yield piece


class _TreeReader:
    """The tree as the members make it."""

    def __init__(self) -> None:
        self._root = new_directory()
        self._links: list[tuple[list[bytes], list[bytes]]] = []

    def put(self, names: list[bytes], inode: Inode) -> None:
        if not names:
            if not inode.is_dir:
                raise ArchiveError("the archive's root is not a directory")
            inode.body = self._root.body
            self._root = inode
            return
        parent = self._directory(names[:-1])
        there = parent.entries.get(names[-1])
        if there is not None and there.is_dir and inode.is_dir:
            inode.body = there.body
        parent.entries[names[-1]] = inode

    def link(self, names: list[bytes], target: list[bytes]) -> None:
        inode = self._find(target)
        if inode is None:
            self._links.append((names, target))  # its target may come later
        else:
            self._put_link(names, target, inode)

    def finish(self) -> Inode:
        """The tree, once the links that came before their targets are made."""
        waiting = self._links
        while waiting:
            missing = [(names, target) for names, target in waiting if not self._link_now(names, target)]
            if len(missing) == len(waiting):
                raise ArchiveError(f"hard link to {_shown(missing[0][1])!r}, which is not in the archive")
            waiting = missing
        return self._root

    def _link_now(self, names: list[bytes], target: list[bytes]) -> bool:
        inode = self._find(target)
        if inode is not None:
            self._put_link(names, target, inode)
        return inode is not None

    def _put_link(self, names: list[bytes], target: list[bytes], inode: Inode) -> None:
        if inode.is_dir:
            raise ArchiveError(f"hard link to the directory {_shown(target)!r}")
        if not names:
            raise ArchiveError("the archive's root is a hard link")
        self.put(names, inode)

    def _directory(self, names: list[bytes]) -> Inode:
        here = self._root
        for depth, name in enumerate(names):
            child = here.entries.get(name)
            if child is None:
                child = here.entries[name] = new_directory()
            if not child.is_dir:
                raise ArchiveError(f"an entry below {_shown(names[: depth + 1])!r}, which is not a directory")
            here = child
        return here

    def _find(self, names: list[bytes]) -> Inode | None:
        here = self._root
        for name in names:
            if not here.is_dir or name not in here.entries:
                return None
            here = here.entries[name]
        return here


def _names(path: bytes) -> list[bytes]:
    if path.startswith(b"/"):
        raise ArchiveError(
            f"absolute name {_shown([path])!r}", hint="make the archive with relative names (tar -C ROOT -c .)"
        )
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise ArchiveError(f"name that leads out of the archive: {_shown([path])!r}")
    if b"\0" in path:
        raise ArchiveError(f"name with a NUL byte: {_shown([path])!r}")
    return names


def _target(member: TarMember) -> bytes:
    if not member.linkname or b"\0" in member.linkname:
        raise ArchiveError(f"the symlink {member.shown()!r} has no target that a symlink can have")
    return member.linkname


def _shown(names: list[bytes]) -> str:
    return b"/".join(names)[:200].decode("utf-8", "backslashreplace")
