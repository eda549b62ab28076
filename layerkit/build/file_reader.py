"""Reads files of this machine for a layer: content, and the facts in it, through the file cache. `build` only."""

from __future__ import annotations

import os
import stat
from itertools import chain

from layerkit.build.file_cache import FileCache, KnownFile
from layerkit.build.host_tree import may_be_sparse
from layerkit.build.ingest import Ingester
from layerkit.build.pieces import Piece, file_pieces
from layerkit.layer.facts import HEAD_SIZE, FactKind, FactsCollector, FileFacts
from layerkit.layer.tree import Content

# What these say depends on the path, which the cache does not know.
PATH_KINDS = (FactKind.DPKG, FactKind.PYTHON)


class FileReader:
    """What `scan_directory` and `HostTree.fill` call for each regular file; one thread."""

    def __init__(self, ingester: Ingester, facts: FactsCollector, cache: FileCache | None) -> None:
        self._ingester = ingester
        self._facts = facts
        self._cache = cache

    def __call__(self, fd: int, status: os.stat_result, path: bytes) -> Content | bytes:
        """The file's content; its facts go to the collector."""
        if self._cache is not None and self._facts.wants(path, b"") not in PATH_KINDS:
            known = self._cache.find(fd, status)
            if known is not None:
                self._facts.put(path, known.fact)
                return known.body
        pieces = file_pieces(fd, status.st_size, sparse=may_be_sparse(status))
        # The beginning says whether there is something to learn; a read of its own would be one call more a file.
        first = next(pieces, b"")
        body = self._ingester.read(chain((first,), pieces), status.st_size, path)
        fact = self._learn(fd, first, status, path)
        if self._cache is not None:
            self._cache.add(fd, status, KnownFile(body, fact))
        return body

    def _learn(self, fd: int, first: Piece, status: os.stat_result, path: bytes) -> FileFacts | None:
        """Learn from a file; returns what it says under any path."""
        head = first[:HEAD_SIZE] if isinstance(first, bytes) else b""
        kind = self._facts.wants(path, head, stat.S_IMODE(status.st_mode))
        if kind is None:
            return None
        if isinstance(first, bytes) and len(first) == status.st_size:
            fact = self._facts.add(path, kind, first)
        else:
            fact = self._facts.add(path, kind, lambda offset, length: os.pread(fd, length, offset))
        return None if kind in PATH_KINDS else fact
