"""The host's data files as `df` and `prune` see them, through hostd when there is anything to ask about. `cli` only."""

from __future__ import annotations

from typing import Any

from layerkit.fuse.client import HostClient
from layerkit.fuse.intake import list_layers
from layerkit.fuse.paths import HostPaths


def describe_host_cache() -> dict[str, Any]:
    """Layers, bytes and budget of the data files of this instance; hostd is not started for it."""
    from layerkit import settings
    from layerkit.fuse.host_cache import measure

    cached = measure(HostPaths.from_settings())
    return {
        "layers": len(cached), "used_bytes": sum(layer.allocated_bytes for layer in cached),
        "budget_bytes": settings.host_cache_budget_bytes(),
    }  # fmt: skip


def prune_host_cache(budget_bytes: int, *, dry_run: bool = False) -> dict[str, Any]:
    """Evict what is not in use, last mounted last, until the rest is within the budget.

    hostd does it, since it alone knows what is in use; where there is nothing to evict it is not started.

    Returns:
        {"evicted": digests, "freed_bytes", "used_bytes", "budget_bytes"}.

    Raises:
        HostError: hostd cannot be started.
    """
    if not list_layers(HostPaths.from_settings()):
        return {"evicted": [], "freed_bytes": 0, "used_bytes": 0, "budget_bytes": budget_bytes}
    with HostClient.connect() as client:
        return _would_evict(client.cache(), budget_bytes) if dry_run else client.prune(budget_bytes=budget_bytes)


def _would_evict(cache: dict[str, Any], budget_bytes: int) -> dict[str, Any]:
    used: int = cache["used_bytes"]
    evicted, freed = [], 0
    for layer in reversed(cache["layers"]):
        if used - freed <= budget_bytes:
            break
        if not layer["in_use"]:
            evicted.append(layer["digest"])
            freed += layer["allocated_bytes"]
    return {"evicted": evicted, "freed_bytes": freed, "used_bytes": used - freed, "budget_bytes": budget_bytes}
