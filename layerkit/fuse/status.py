"""What `layerkit status` and the gauges of /metrics show; imported by hostd; lives in its event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerkit import __version__
from layerkit.fuse.host import Host
from layerkit.fuse.metrics import COUNTS
from layerkit.fuse.mount_table import LayerMount
from layerkit.fuse.stores import STALLED_S


def _mount(host: Host, mount: LayerMount) -> dict[str, Any]:
    layer = mount.layer
    return {
        "digest": layer.digest,
        "path": str(mount.path),
        "frontend": mount.frontend.name if mount.frontend is not None else "",
        "leases": sorted(mount.leases),
        "store": layer.store_url,
        "chunks": layer.present.bits,
        "present_chunks": layer.present.count,
        "data_bytes": layer.data.size,
        "allocated_bytes": layer.data.allocated_bytes,
        "prefetching": host.prefetcher.is_running(layer.digest),
    }


async def describe(host: Host) -> dict[str, Any]:
    """The whole status as JSON."""
    stores = host.stores.describe()
    cache = await host.cache.describe()
    fuse = host.fuse_process.owner
    is_running = host.fuse_process.is_running
    mounts = [_mount(host, mount) for mount in host.mounts.all()]
    problems = [f"store {store['url']} is stalled" for store in stores if store["oldest_call_s"] > STALLED_S]
    if cache["over_budget"]:
        problems.append("the cache is over its budget and everything in it is in use")
    if not is_running and any(mount["frontend"] == "fuse" for mount in mounts):
        problems.append("the FUSE server is gone: its mounts are lost")
    return {
        "health": "degraded" if problems else "ok",
        "problems": problems,
        "hostd": {**host.describe_process(), "version": __version__},
        "holder": {"pid": None},
        "fuse_server": {"pid": fuse.pid if fuse is not None and fuse.is_alive else None, "mounted": is_running},
        "mounts": mounts,
        "overlays": [record.to_json() for record in host.overlays.all()],
        "leases": [lease.to_json() for lease in host.leases.all()],
        "stores": stores,
        "counts": {name: host.counts.get(name) for name in COUNTS},
        "waiting_readers": host.ensure_server.waiting,
        "cache": cache,
        "errors": host.errors.listing(),
        "frontends": {frontend.name: frontend.problem or "usable" for frontend in host.mounts.frontends},
    }


def gauges(host: Host) -> Mapping[str, tuple[str, float]]:
    """The state of the moment for /metrics."""
    return {
        "mounts": ("EROFS mounts", len(host.mounts.all())),
        "overlays": ("Overlays that hostd mounted", len(host.overlays.all())),
        "leases": ("Leases", len(host.leases.all())),
        "waiting_readers": ("Ranges that readers wait for", host.ensure_server.waiting),
        "stalled_stores": (
            "Stores with a call that hangs",
            sum(store["oldest_call_s"] > STALLED_S for store in host.stores.describe()),
        ),
    }
