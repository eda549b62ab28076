"""Files whose bytes stand in the Layerfile (heredocs), as a source of contents. `build` only; one thread."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator

from layerkit.build.ingest import Ingester
from layerkit.build.pieces import Piece
from layerkit.layer.tree import Content, Inode


class MemorySource:
    """Makes regular files of bytes, and gives them again."""

    def __init__(self) -> None:
        self._files: list[tuple[bytes, Content, bytes]] = []

    def file(self, name: bytes, data: bytes, ingester: Ingester, mtime_ns: int) -> Inode:
        """A file of mode 0644 that belongs to root."""
        body = ingester.read(iter((data,)), len(data), name)
        if isinstance(body, Content):
            self._files.append((name, body, data))
        return Inode(stat.S_IFREG | 0o644, mtime_ns=mtime_ns, body=body)

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Path, content and bytes of each file whose content is wanted."""
        for name, content, data in self._files:
            if wanted(content):
                yield name, content, iter((data,))
