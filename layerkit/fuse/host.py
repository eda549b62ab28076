"""The host side as one object: mount, overlay, status, recovery. hostd's HTTP handlers call it, tests may too.

Lives in one event loop; every method but `ensure`'s workers runs there. Order of locks: a layer's lock in LayerTable,
then its lock in MountTable; the overlay lock is taken alone (docs/concurrency.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from layerkit import settings
from layerkit._util.processes import Owner
from layerkit.errors import HostError, LayerkitError
from layerkit.fuse.cache_check import CheckedLayer, check_layer
from layerkit.fuse.ensure_server import EnsureServer
from layerkit.fuse.events import Counts, ErrorLog
from layerkit.fuse.frontends import Frontend, FuseFrontend, LocalFrontend, choose_frontend
from layerkit.fuse.fuse_process import FuseProcess
from layerkit.fuse.host_cache import HostCache
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.intake import list_layers
from layerkit.fuse.layer_table import LayerTable, remove_leftovers
from layerkit.fuse.leases import Lease, LeaseTable
from layerkit.fuse.local_chunks import LocalChunks
from layerkit.fuse.mount_table import LayerMount, MountTable
from layerkit.fuse.overlay_table import OverlayRecord, OverlayTable
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.populate import Populator
from layerkit.fuse.prefetch import STEP, Prefetcher
from layerkit.fuse.probes import frontend_support
from layerkit.fuse.requests import MAX_LAYERS, MountRequest, OverlayRequest
from layerkit.fuse.stores import Stores
from layerkit.fuse.workers import Workers
from layerkit.ids import check_digest

log = logging.getLogger("layerkit.host")

REAP_S = 1.0
FLUSH_S = 2.0
SHRINK_S = 30.0
_LOCAL_THREADS, _MOUNT_THREADS = 4, 4
_BRING_AT_ONCE = 4


@dataclass(frozen=True)
class HostOptions:
    """What a Host is tuned by; the defaults are the settings'."""

    linger_s: float
    deadline_s: float
    budget_bytes: int

    @classmethod
    def from_settings(cls) -> HostOptions:
        """From LAYERKIT_* and defaults."""
        return cls(settings.linger_s(), settings.fetch_deadline_s(), settings.host_cache_budget_bytes())


class Host:
    """One instance's layers, mounts and leases. `start` before anything else, `close` at the end.

    Args:
        frontends: in order of preference; None: what this host can do.
    """

    def __init__(
        self,
        paths: HostPaths,
        options: HostOptions,
        *,
        stores: Stores | None = None,
        frontends: Callable[[HostPaths, FuseProcess], Sequence[Frontend]] | None = None,
    ) -> None:
        self.paths = paths
        self.options = options
        self.errors = ErrorLog()
        self.counts = Counts()
        self.stores = stores or Stores(counts=self.counts)
        self.fuse_process = FuseProcess(paths)
        self._local = Workers("local", _LOCAL_THREADS)
        self._mounting = Workers("mount", _MOUNT_THREADS)
        chunks = LocalChunks()
        self.populator = Populator(self.stores.get, self._local, chunks, self.errors, self.counts)
        self.layers = LayerTable(
            paths, self.stores, self._local, chunks, is_mounted=self._is_mounted, deadline_s=options.deadline_s
        )
        self.mounts = MountTable(
            paths, (frontends or default_frontends)(paths, self.fuse_process), self._mounting,
            linger_s=options.linger_s, on_unmounted=self._unmounted,
        )  # fmt: skip
        self.leases = LeaseTable(paths.leases)
        self.overlays = OverlayTable(paths)
        self._overlay_lock = asyncio.Lock()
        self.cache = HostCache(paths, self.layers, self._local, options.budget_bytes, self._may_go)
        self.ensure_server = EnsureServer(
            paths, self._find_for_readers, self.populator, self.errors, self.counts, deadline_s=options.deadline_s
        )
        self.prefetcher = Prefetcher(self.populator, lambda: self.ensure_server.waiting > 0, self.cache.has_room)
        self._tasks: list[asyncio.Task[None]] = []
        self._started = time.time()

    # Start and end

    async def start(self) -> None:
        """Take over what an earlier hostd left, then serve."""
        for folder in (self.paths.layers, self.paths.served, self.paths.mounts):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(self.paths.layers)
        self.leases.load()
        for record in self.overlays.load():
            self._drop_lease(record.lease)
        self._remove_scratch()
        for path, reason in self.mounts.adopt(self.layers.open_now).items():
            self.errors.record(HostError(f"mount lost: {reason}", where=path))
        overlays = {record.lease for record in self.overlays.all()}
        # Of an overlay that is not there: an earlier hostd died before it was mounted.
        without = [lease for lease in self.leases.all() if lease.mount and lease.id not in overlays]
        for lease in [*self.leases.dead(), *without]:
            self._drop_lease(lease.id)
        for lease in self.leases.all():
            for digest in lease.layers:
                if not self.mounts.hold(digest, lease.id):
                    self.errors.record(HostError("the mount of a leased layer is gone", where=lease.id), layer=digest)
        self.mounts.end_unused()
        await self.ensure_server.start()
        self._tasks = [
            asyncio.ensure_future(self._every(REAP_S, self._reap)),
            asyncio.ensure_future(self._every(FLUSH_S, self.layers.flush)),
            asyncio.ensure_future(self._every(SHRINK_S, self._shrink)),
        ]

    def _remove_scratch(self) -> None:
        kept = {record.scratch for record in self.overlays.all()}
        for folder in list(self.paths.writables.glob("*")) if self.paths.writables.is_dir() else []:
            if str(folder) not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    async def _every(self, pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - recorded; the next round comes
                self.errors.record(error)

    async def close(self) -> None:
        """Stop serving and make everything durable; mounts stay for the next hostd."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.prefetcher.close()
        await self.ensure_server.close()
        self.stores.close()
        self.layers.close()
        self._local.close()
        self._mounting.close()

    # What others ask the host

    def _is_mounted(self, digest: str) -> bool:
        mount = self.mounts.find(digest)
        return mount is not None and mount.frontend is not None

    def _may_go(self, digest: str) -> bool:
        used = self.mounts.find(digest) is not None or self.leases.uses(digest) or self.populator.is_busy(digest)
        return not used and not self.prefetcher.is_running(digest)

    def _unmounted(self, layer: HostLayer) -> None:
        self.prefetcher.stop(layer.digest)

    async def _find_for_readers(self, digest: str) -> HostLayer:
        found = self.layers.find(digest)
        if found is None:
            # Read by something that no mount names any more, or known to an earlier hostd only.
            found = await self.layers.get(digest, "")
        return found.layer

    # Layers

    async def mount_layers(self, request: MountRequest) -> dict[str, Any]:
        """Mount layers for an owner, who holds the lease until it ends or is released.

        Raises:
            LayerkitError: one of them cannot be had or mounted; then none is held.
        """
        # The lease comes first: from here on nothing evicts what is being set up.
        lease = self.leases.add(request.owner, [])
        try:
            resolved = await _gather([self.layers.resolve(text, request.store) for text in request.layers])
            if request.parents:
                resolved = await self._with_parents(resolved, request.store)
            lease.layers = [digest for _, digest in resolved]
            self.leases.save(lease)
            mounted = await _gather([self._mount(digest, lease, request) for digest in dict.fromkeys(lease.layers)])
        except BaseException:
            self._drop_lease(lease.id)
            raise
        by_digest = {mount.layer.digest: (mount, config) for mount, config in mounted}
        layers = []
        for ref, digest in resolved:
            mount, config = by_digest[digest]
            frontend = mount.frontend.name if mount.frontend is not None else ""
            layers.append(
                {"ref": ref, "digest": digest, "path": str(mount.path), "frontend": frontend, "config": config}
            )
        return {"lease": lease.id, "layers": layers}

    async def _with_parents(self, asked: list[tuple[str, str]], store: str) -> list[tuple[str, str]]:
        """A stack that names no base, with what its workspaces are differences against put below them."""
        configs = {digest: (await self.layers.get(digest, store)).facts.config for _, digest in asked}
        if any(config.get("kind") == "base" for config in configs.values()):
            return asked
        complete: list[tuple[str, str]] = []
        for ref, digest in asked:
            chain = [(ref, digest)]
            config = configs[digest]
            while config.get("kind") == "workspace" and len(chain) < MAX_LAYERS:
                parent = check_digest(str(config.get("parent")))
                if parent in configs or any(parent == known for _, known in complete):
                    break
                chain.append(("", parent))
                config = (await self.layers.get(parent, store)).facts.config
            complete += reversed(chain)
        return complete

    async def _mount(self, digest: str, lease: Lease, request: MountRequest) -> tuple[LayerMount, dict[str, object]]:
        is_new = self.layers.find(digest) is None
        found = await self.layers.get(digest, request.store)
        if not self._is_mounted(digest):
            frontend = choose_frontend(request.frontend, self.mounts.frontends, found.layer)
            if not frontend.is_lazy:
                await self._bring_all(found.layer)
        mount = await self.mounts.acquire(found.layer, found.facts, lease.id, request.frontend)
        self.layers.touch(digest)
        self.counts.add("layers_mounted")
        if request.prefetch:
            self.prefetcher.start(found.layer)
        if is_new:
            self._tasks.append(asyncio.ensure_future(self._shrink()))
        return mount, found.facts.config

    async def _bring_all(self, layer: HostLayer) -> None:
        limit = asyncio.Semaphore(_BRING_AT_ONCE)

        async def bring(offset: int) -> None:
            async with limit:
                await self.ensure_server.ensure(layer, offset, STEP)

        await _gather([bring(offset) for offset in range(0, layer.data.size, STEP)])

    def release(self, lease_id: str) -> None:
        """End a lease; nothing happens when it has ended already."""
        self._drop_lease(lease_id)

    def _drop_lease(self, lease_id: str) -> None:
        lease = self.leases.remove(lease_id)
        for digest in lease.layers if lease is not None else []:
            self.mounts.release(digest, lease_id)

    # Overlays

    async def overlay(self, request: OverlayRequest) -> OverlayRecord:
        """Mount an overlay; its lease then ends with the mount and not with the process.

        Raises:
            MissingError: no such lease.
            InputError, ConflictError, HostError: as `OverlayTable.add`.
        """
        lease = self.leases.get(request.lease)
        before = lease.owner, lease.mount
        # Before the mount: a client that dies meanwhile must not take the layers from under it.
        lease.owner, lease.mount = None, str(request.target)
        self.leases.save(lease)
        try:
            record = await self._add_overlay(request)
        except BaseException:
            if lease in self.leases.all():  # an umount_all may have ended it
                lease.owner, lease.mount = before
                self.leases.save(lease)
            raise
        lease.mount = record.target
        self.leases.save(lease)
        return record

    async def _add_overlay(self, request: OverlayRequest) -> OverlayRecord:
        async with self._overlay_lock:
            call = self._mounting.submit(
                lambda: self.overlays.add(
                    request.lowers, request.target, request.lease,
                    rw=request.rw, upper=request.upper, work=request.work, suid=request.suid,
                )
            )  # fmt: skip
            return await asyncio.wrap_future(call)

    async def umount(self, target: os.PathLike[str]) -> OverlayRecord:
        """Undo one overlay and its lease; MissingError where layerkit mounted nothing."""
        async with self._overlay_lock:
            record = await asyncio.wrap_future(self._mounting.submit(self.overlays.remove, target))
        self._drop_lease(record.lease)
        return record

    async def umount_all(self) -> dict[str, Any]:
        """Undo every mount of this instance, whoever uses it; {"overlays", "layers", "busy": reason or ''}."""
        async with self._overlay_lock:
            records = await asyncio.wrap_future(self._mounting.submit(self.overlays.remove_all))
        for lease in self.leases.all():
            self.leases.remove(lease.id)
        count = len(self.mounts.all())
        await self.mounts.end_all()
        busy = ""
        try:
            await asyncio.wrap_future(self._mounting.submit(self.fuse_process.stop))
        except HostError as error:
            busy = error.message
            self.errors.record(error)
        return {"overlays": len(records), "layers": count, "busy": busy}

    # Housekeeping

    async def _reap(self) -> None:
        for lease in self.leases.dead():
            log.info("lease %s ends: process %s is gone", lease.id, lease.owner)
            self._drop_lease(lease.id)
        if self.overlays.all():
            async with self._overlay_lock:
                gone = await asyncio.wrap_future(self._mounting.submit(self.overlays.remove_gone))
            for record in gone:
                log.info("%s was unmounted by somebody else", record.target)
                self._drop_lease(record.lease)
        self._tasks = [task for task in self._tasks if not task.done()]

    async def _shrink(self) -> None:
        with suppress(LayerkitError):  # recorded by whoever raised it; the next round tries again
            await self.cache.shrink(self.cache.budget_bytes)

    async def prune(self, budget_bytes: int) -> dict[str, Any]:
        """Evict layers that are not in use until the cache fits the budget given."""
        return await self.cache.shrink(budget_bytes)

    async def check_cache(self) -> list[CheckedLayer]:
        """Hash everything that is cached; what is damaged is fetched anew by whoever reads it next."""
        found = []
        for digest in await asyncio.wrap_future(self._local.submit(list_layers, self.paths)):
            lease = self.leases.add(Owner.current(), [digest])
            try:
                layer = (await self.layers.get(digest, "")).layer
                result = await asyncio.wrap_future(self._local.submit(check_layer, layer))
            finally:
                self._drop_lease(lease.id)
            found.append(result)
            if result.damaged:
                state = "mounted: what was read of them may be cached" if self._is_mounted(digest) else "not mounted"
                message = f"{len(result.damaged)} cached chunks were damaged; the layer is {state}"
                self.errors.record(HostError(message, where=str(layer.data.path)), layer=digest)
        return found

    def describe_process(self) -> dict[str, Any]:
        """For `status`."""
        return {"pid": os.getpid(), "started": self._started, "uptime_s": round(time.time() - self._started, 1)}


async def _gather(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """All results; when one fails its error, but only after every other call has ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def default_frontends(paths: HostPaths, process: FuseProcess) -> Sequence[Frontend]:
    """The frontends of this host as the probes find it."""
    support = frontend_support()
    return [
        LocalFrontend(loop=support.needs_loop, problem=support.local_problem),
        FuseFrontend(paths, process, view=support.view, problem=support.fuse_problem),
    ]
