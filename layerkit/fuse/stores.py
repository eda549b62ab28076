"""The stores that hostd talks to, each with threads of its own; imported by the rest of `fuse`; any thread.

A store is opened when it is first needed, inside its own threads: one that cannot be reached stops nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from layerkit.fuse.events import Counts
from layerkit.fuse.workers import Workers
from layerkit.store.objectstore import MAX_OBJECT_BYTES, ObjectStore
from layerkit.store.store import Store, open_store
from layerkit.store.wrappers import Wrapper

THREADS = 8
"""Requests in flight to one store: times 4 MiB a request, the most memory that fetching takes."""

STALLED_S = 10.0
"""A call that runs longer than this makes `status` name its store."""


class Metered(Wrapper):
    """Counts what is read of a store, metadata and data alike."""

    def __init__(self, inner: ObjectStore, counts: Counts) -> None:
        super().__init__(inner)
        self._counts = counts

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """As `inner`."""
        return self._counted(super().get(key, max_bytes=max_bytes))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """As `inner`."""
        return self._counted(super().get_range(key, offset, length))

    def _counted(self, data: bytes) -> bytes:
        self._counts.add("store_reads")
        self._counts.add("store_read_bytes", len(data))
        return data


class StoreHandle:
    """One store by its URL.

    Attributes:
        workers: where every call to the store belongs.
    """

    def __init__(self, url: str, opener: Callable[[str], Store], counts: Counts) -> None:
        self.url = url
        self.workers = Workers(f"store-{url[-24:]}", THREADS)
        self._opener = opener
        self._counts = counts
        self._lock = threading.Lock()
        self._store: Store | None = None

    def store(self) -> Store:
        """The open store; may block, so only from `workers`. Raises as `open_store` does."""
        with self._lock:
            if self._store is None:
                store = self._opener(self.url)
                store.objects = Metered(store.objects, self._counts)
                self._store = store
            return self._store

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        oldest = self.workers.oldest_s
        state = "stalled" if oldest > STALLED_S else "open" if self._store is not None else "not opened"
        return {"url": self.url, "state": state, "oldest_call_s": round(oldest, 1), "queued": self.workers.queued}


class Stores:
    """The handles by URL.

    Args:
        opener: lets tests put scripted faults below a store.
        counts: where reads are counted.
    """

    def __init__(self, opener: Callable[[str], Store] = open_store, counts: Counts | None = None) -> None:
        self._opener = opener
        self._counts = counts or Counts()
        self._lock = threading.Lock()
        self._handles: dict[str, StoreHandle] = {}

    def get(self, url: str) -> StoreHandle:
        """The handle of a URL; never blocks."""
        with self._lock:
            if url not in self._handles:
                self._handles[url] = StoreHandle(url, self._opener, self._counts)
            return self._handles[url]

    def describe(self) -> list[dict[str, Any]]:
        """For `status`."""
        with self._lock:
            return [handle.describe() for handle in self._handles.values()]

    def close(self) -> None:
        """Take no more calls."""
        with self._lock:
            for handle in self._handles.values():
                handle.workers.close()
