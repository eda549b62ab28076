"""The budget of data files: what is not in use goes, least recently mounted first, by unlink and never by punching.

A lazily detached mount, or one in another mount namespace, may still read a file that no mountinfo names; unlinked, it
lives on for that reader. Imported by hostd; `measure` blocks, the rest lives in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from layerkit.fuse.intake import list_layers
from layerkit.fuse.layer_table import LayerTable
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.workers import Workers


class CachedLayer(NamedTuple):
    """What a layer takes on this host's disk."""

    digest: str
    allocated_bytes: int
    last_mount_s: float


def measure(paths: HostPaths) -> list[CachedLayer]:
    """Every layer on this host, last mounted first."""
    found = []
    for digest in list_layers(paths):
        files = paths.layer(digest)
        size = 0
        with suppress(FileNotFoundError):
            size = sum(entry.stat().st_blocks * 512 for entry in files.folder.iterdir())
            found.append(CachedLayer(digest, size, files.record.stat().st_mtime))
    return found


class HostCache:
    """Keeps the data files within their budget.

    Args:
        may_go: whether nothing uses a layer: no lease, no mount, no fetch.

    Attributes:
        is_over: the budget is exceeded and everything is in use.
    """

    def __init__(
        self, paths: HostPaths, layers: LayerTable, local: Workers, budget_bytes: int, may_go: Callable[[str], bool]
    ) -> None:
        self._paths = paths
        self._layers = layers
        self._local = local
        self._may_go = may_go
        self._lock = asyncio.Lock()
        self._used_bytes = 0
        self.budget_bytes = budget_bytes
        self.is_over = False

    async def _measure(self) -> list[CachedLayer]:
        return await asyncio.wrap_future(self._local.submit(measure, self._paths))

    async def has_room(self) -> bool:
        """Whether prefetch may go on; makes room where it can."""
        await self.shrink(self.budget_bytes)
        return not self.is_over

    async def shrink(self, budget_bytes: int) -> dict[str, Any]:
        """Evict until the budget holds.

        Returns:
            {"evicted": digests, "freed_bytes", "used_bytes", "budget_bytes"}.
        """
        async with self._lock:
            cached = await self._measure()
            used = sum(layer.allocated_bytes for layer in cached)
            evicted, freed = [], 0
            for layer in reversed(cached):
                if used - freed <= budget_bytes:
                    break
                if self._may_go(layer.digest) and await self._layers.delete(layer.digest, self._may_go):
                    evicted.append(layer.digest)
                    freed += layer.allocated_bytes
            self._used_bytes = used - freed
            self.is_over = self._used_bytes > self.budget_bytes
            return {
                "evicted": evicted, "freed_bytes": freed, "used_bytes": self._used_bytes, "budget_bytes": budget_bytes,
            }  # fmt: skip

    async def describe(self) -> dict[str, Any]:
        """For `status` and `df`."""
        cached = await self._measure()
        self._used_bytes = sum(layer.allocated_bytes for layer in cached)
        self.is_over = self._used_bytes > self.budget_bytes
        return {
            "budget_bytes": self.budget_bytes, "used_bytes": self._used_bytes, "over_budget": self.is_over,
            "layers": [
                {"digest": layer.digest, "allocated_bytes": layer.allocated_bytes, "last_mount": layer.last_mount_s,
                 "in_use": not self._may_go(layer.digest)}
                for layer in cached
            ],
        }  # fmt: skip
