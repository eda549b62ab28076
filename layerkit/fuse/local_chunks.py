"""Chunks that another layer of this host already has; imported by `fuse.populate`; safe from any thread."""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_left

from layerkit.core.hashing import CHUNK_ID_SIZE, chunk_id
from layerkit.errors import LayerkitError
from layerkit.fuse.host_layer import HostLayer

log = logging.getLogger("layerkit.host")


class _ChunkTable:
    """The chunk ids of one layer in sorted order: 12 bytes a chunk."""

    def __init__(self, layer: HostLayer) -> None:
        prefixes = array("Q")
        prefixes.frombytes(layer.chunk_index.ids)
        # The first eight bytes of every id; equal prefixes are told apart by the whole id.
        prefixes = prefixes[:: CHUNK_ID_SIZE // 8]
        self._numbers = array("I", sorted(range(len(prefixes)), key=prefixes.__getitem__))
        self._prefixes = array("Q", [prefixes[number] for number in self._numbers])
        self._layer = layer

    def find(self, wanted: bytes) -> int | None:
        prefix = array("Q", wanted[:8])[0]
        at = bisect_left(self._prefixes, prefix)
        while at < len(self._prefixes) and self._prefixes[at] == prefix:
            number = self._numbers[at]
            present = self._layer.present.has(number) or self._layer.is_unverified(number)
            if present and self._layer.chunk_index.stored_id(number) == wanted:
                return number
            at += 1
        return None


class LocalChunks:
    """The layers that chunks may be copied from; tables are made when they are first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layers: dict[str, HostLayer] = {}
        self._tables: dict[str, _ChunkTable] = {}

    def add(self, layer: HostLayer) -> None:
        """Chunks may be copied from this layer."""
        with self._lock:
            self._layers[layer.digest] = layer

    def remove(self, digest: str) -> None:
        """The layer is about to be closed."""
        with self._lock:
            self._layers.pop(digest, None)
            self._tables.pop(digest, None)

    def _tables_without(self, layer: HostLayer) -> list[tuple[HostLayer, _ChunkTable]]:
        with self._lock:
            found = []
            for digest, other in self._layers.items():
                if digest != layer.digest:
                    if digest not in self._tables:
                        self._tables[digest] = _ChunkTable(other)
                    found.append((other, self._tables[digest]))
            return found

    def read(self, layer: HostLayer, number: int) -> bytes | None:
        """The verified bytes of a stored chunk of `layer` from another layer's data file, None when none has them."""
        wanted = layer.chunk_index.stored_id(number)
        for other, table in self._tables_without(layer):
            found = table.find(wanted)
            if found is None:
                continue
            try:
                data = other.data.read(*other.chunk_range(found))
                if chunk_id(data) == wanted:
                    return data
                other.forget([found])
            except (OSError, ValueError, LayerkitError) as error:  # closed or cut meanwhile: the store has it too
                log.warning("%s: chunk %d cannot be copied: %s", other.digest, found, error)
                continue
            log.warning("%s: chunk %d was damaged; it is fetched anew when it is read", other.digest, found)
        return None
