"""Facts of files that a COPY or ADD puts at new paths: what was learnt once follows the content. `build` only.

The result equals what importing the copied tree would find (`layer.facts.wanted`): ELF files say the same under every
path and mode; a script is one when somebody may execute it; package databases are known by their path. What the
sources' facts leave open, because path or mode are new, is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layerkit.build.file_reader import PATH_KINDS
from layerkit.build.pieces import Piece
from layerkit.build.places import Source
from layerkit.layer.elf import ElfFacts
from layerkit.layer.facts import HEAD_SIZE, FactKind, Facts, FileFacts, ScriptFacts, read_fact, wanted
from layerkit.layer.packages import PACKAGES_MAX_BYTES
from layerkit.layer.tree import Content, Inode, walk

_EXECUTABLE = 0o111


@dataclass(frozen=True, slots=True)
class _Known:
    """What is certain of a content: its fact, or that it is neither an ELF file nor begins with `#!`."""

    body: Content | bytes
    """Held, because it is looked up by identity."""
    fact: ElfFacts | ScriptFacts | None


class CopiedFacts:
    """Collects what is known of the sources, then answers for the copy.

    Args:
        sources: what the files were read from, to read some of them again; it may grow.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._known: dict[int, _Known] = {}
        self._sources = sources

    def add(self, root: Inode, facts: Facts) -> None:
        """Files that may be copied: their tree, and the facts of all of them that are."""
        for path, inode in walk(root):
            if not inode.is_regular or not isinstance(inode.body, Content | bytes):
                continue
            fact = facts.files.get(path)
            if isinstance(fact, ElfFacts | ScriptFacts):
                self._known[id(inode.body)] = _Known(inode.body, fact)
            elif inode.mode & _EXECUTABLE and fact is None:
                self._known.setdefault(id(inode.body), _Known(inode.body, None))

    def of(self, copied: Inode) -> Facts:
        """The facts of a tree whose files share their content objects with the sources."""
        found: dict[bytes, FileFacts] = {}
        unread: dict[int, list[tuple[bytes, Inode]]] = {}
        for path, inode in walk(copied):
            body = inode.body
            if not inode.is_regular or not isinstance(body, Content | bytes):
                continue
            known = self._known.get(id(body))
            if known is not None and known.fact is not None:
                if isinstance(known.fact, ElfFacts) or inode.mode & _EXECUTABLE:
                    found[path] = known.fact
            elif wanted(path, b"", inode.mode) or (known is None and inode.mode & _EXECUTABLE):
                unread.setdefault(id(body), []).append((path, inode))
        for path, mode, data in self._read(unread):
            kind = wanted(path, data[:HEAD_SIZE], mode)
            # An ELF file that had something to say is known already.
            fact = read_fact(kind, data) if kind not in (None, FactKind.ELF) else None
            if fact is not None:
                found[path] = fact
        return Facts(found)

    def _read(self, unread: dict[int, list[tuple[bytes, Inode]]]) -> Iterable[tuple[bytes, int, bytes]]:
        """Path, mode and bytes (as many as count) of each file."""
        for names in unread.values():
            for path, inode in names:
                if isinstance(inode.body, bytes):
                    yield path, inode.mode, inode.body
        left = {number for number, names in unread.items() if isinstance(names[0][1].body, Content)}
        for source in self._sources:
            if not left:
                return
            for _, content, pieces in source.contents(lambda content: id(content) in left):
                left.discard(id(content))
                names = unread[id(content)]
                most = max(_needed(path, inode.mode) for path, inode in names)
                data = _beginning(pieces, most)
                for path, inode in names:
                    yield path, inode.mode, data


def _needed(path: bytes, mode: int) -> int:
    """How many bytes of a file its fact may take."""
    return PACKAGES_MAX_BYTES + 1 if wanted(path, b"", mode) in PATH_KINDS else HEAD_SIZE


def _beginning(pieces: Iterable[Piece], most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else bytes(min(piece, most - size))
        parts.append(data)
        size += len(data)
        if size >= most:
            break
    return b"".join(parts)[:most]
