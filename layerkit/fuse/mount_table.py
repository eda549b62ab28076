"""One EROFS mount a layer, counted by leases, gone a little after the last; imported by hostd.

Lives in hostd's event loop; what blocks runs in the workers it is given. Each layer has a lock of its own: the next
mount waits until the teardown before it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerkit._util.canonical import read_json_object
from layerkit._util.files import make_dirs
from layerkit._util.overlay import unmount
from layerkit.errors import HostError, LayerkitError
from layerkit.fuse.erofs_mount import mount_erofs, mounts_below
from layerkit.fuse.frontends import Frontend, choose_frontend
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.intake import LayerFacts
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.served import write_volatile
from layerkit.fuse.workers import Workers

log = logging.getLogger("layerkit.host")


@dataclass
class LayerMount:
    """A layer that is mounted, being mounted or lingering."""

    layer: HostLayer
    path: Path
    frontend: Frontend | None = None
    leases: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None


class MountTable:
    """The EROFS mounts of this instance.

    Args:
        workers: for mount and umount calls.
        linger_s: how long a mount stays after its last lease.
        on_unmounted: called in the loop after a layer's mount is gone.
    """

    def __init__(
        self,
        paths: HostPaths,
        frontends: Sequence[Frontend],
        workers: Workers,
        *,
        linger_s: float,
        on_unmounted: Callable[[HostLayer], None] = lambda layer: None,
    ) -> None:
        self.frontends = frontends
        self._paths = paths
        self._workers = workers
        self._linger_s = linger_s
        self._on_unmounted = on_unmounted
        self._mounts: dict[str, LayerMount] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._workers.submit(call, *arguments))

    async def acquire(self, layer: HostLayer, facts: LayerFacts, lease: str, frontend: str) -> LayerMount:
        """Mount the layer for a lease, or share the mount that is there, whatever its frontend.

        Raises:
            HostError, UnsupportedError: it cannot be mounted; the lease holds nothing then.
        """
        mount = self._mounts.setdefault(layer.digest, LayerMount(layer, self._paths.mount_point(layer.digest)))
        mount.leases.add(lease)
        if mount.timer is not None:
            mount.timer.cancel()
            mount.timer = None
        try:
            async with mount.lock:
                if mount.frontend is not None and not mount.frontend.is_alive():
                    log.error("%s is lost: the process behind frontend %s died", mount.path, mount.frontend.name)
                    await self._run(self._unmount, mount)
                if mount.frontend is None:
                    mount.layer = layer
                    chosen = choose_frontend(frontend, self.frontends, layer)
                    await self._run(self._mount, mount, chosen, facts)
        except BaseException:
            self.release(layer.digest, lease)
            raise
        return mount

    def _mount(self, mount: LayerMount, frontend: Frontend, facts: LayerFacts) -> None:
        make_dirs(mount.path, 0o700)
        source = frontend.prepare(mount.layer, facts)
        state = self._paths.mount_states / mount.path.name
        # Before the mount: a hostd that dies between the two leaves a record without a mount, which is harmless.
        write_volatile(state, {"digest": mount.layer.digest, "frontend": frontend.name})
        try:
            mount_erofs(source, mount.path)
        except BaseException:
            state.unlink(missing_ok=True)
            frontend.finish(mount.layer)
            raise
        mount.frontend = frontend

    def release(self, digest: str, lease: str) -> None:
        """A lease needs the layer no longer; nothing happens when it did not hold it."""
        mount = self._mounts.get(digest)
        if mount is None or lease not in mount.leases:
            return
        mount.leases.discard(lease)
        if not mount.leases and mount.timer is None:
            loop = asyncio.get_running_loop()
            mount.timer = loop.call_later(self._linger_s, self._linger_is_over, mount)

    def _linger_is_over(self, mount: LayerMount) -> None:
        mount.timer = None
        task = asyncio.ensure_future(self._end(mount))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end(self, mount: LayerMount) -> None:
        async with mount.lock:
            if mount.leases or self._mounts.get(mount.layer.digest) is not mount:
                return
            try:
                await self._run(self._unmount, mount)
            except (OSError, LayerkitError) as error:
                log.error("%s cannot be unmounted: %s", mount.path, error)
                return
            if not mount.leases:
                del self._mounts[mount.layer.digest]
                self._on_unmounted(mount.layer)

    def _unmount(self, mount: LayerMount) -> None:
        if mount.frontend is not None:
            if not unmount(mount.path, wait_s=0.2):
                log.warning("%s is still in use somewhere; it was detached", mount.path)
            mount.frontend.finish(mount.layer)
            mount.frontend = None
        (self._paths.mount_states / mount.path.name).unlink(missing_ok=True)
        mount.path.rmdir()

    async def end_all(self) -> None:
        """Unmount everything now, whoever uses it."""
        for mount in list(self._mounts.values()):
            mount.leases.clear()
            if mount.timer is not None:
                mount.timer.cancel()
                mount.timer = None
            await self._end(mount)

    def find(self, digest: str) -> LayerMount | None:
        """The mount of a layer, mounted or on its way there or from there."""
        return self._mounts.get(digest)

    def all(self) -> list[LayerMount]:
        """Every mount."""
        return list(self._mounts.values())

    def adopt(self, open_layer: Callable[[str], HostLayer]) -> dict[str, str]:
        """Take over the mounts of an earlier hostd; call before anything else, blocking.

        Args:
            open_layer: opens a layer from this host's files.

        Returns:
            What could not be kept, mount point to reason; those mounts are gone.
        """
        lost = {}
        mounted = mounts_below(self._paths.mounts)
        for name in mounted:
            state = self._paths.mount_states / name
            path = self._paths.mounts / name
            try:
                record = read_json_object(state.read_bytes(), "mount record", max_bytes=64 << 10)
                digest = str(record["digest"])
                frontend = next(f for f in self.frontends if f.name == record["frontend"])
                if not frontend.is_alive():
                    raise HostError(f"the process behind frontend {frontend.name} died")
                self._mounts[digest] = LayerMount(open_layer(digest), path, frontend)
            except (OSError, KeyError, StopIteration, LayerkitError) as error:
                lost[str(path)] = str(error) or type(error).__name__
                unmount(path, wait_s=0.0)
                state.unlink(missing_ok=True)
        for state in list(self._paths.mount_states.glob("*")) if self._paths.mount_states.is_dir() else []:
            if state.name not in mounted:
                state.unlink(missing_ok=True)
        for folder in list(self._paths.mounts.glob("*")) if self._paths.mounts.is_dir() else []:
            if folder.name not in mounts_below(self._paths.mounts):
                with suppress(OSError):  # not empty: not ours
                    folder.rmdir()
        return lost

    def hold(self, digest: str, lease: str) -> bool:
        """Count a lease of an earlier hostd; False when the layer is not mounted any more."""
        if digest not in self._mounts:
            return False
        self._mounts[digest].leases.add(lease)
        return True

    def end_unused(self) -> None:
        """After adoption: what nobody holds is about to go."""
        for mount in self._mounts.values():
            if not mount.leases and mount.timer is None:
                mount.timer = asyncio.get_running_loop().call_later(self._linger_s, self._linger_is_over, mount)
