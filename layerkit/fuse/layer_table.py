"""The layers that are open in hostd: resolved, prepared once whoever asks, closed and deleted when the cache is full.

Lives in hostd's event loop; what blocks runs in workers: local files in the local ones, store calls in the store's.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from layerkit._util.files import temp_name
from layerkit.errors import CorruptError, LayerkitError, UnavailableError
from layerkit.fuse.data_file import is_used_elsewhere
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.intake import LayerFacts, fetch_layer, is_known, list_layers, open_layer, touch_layer
from layerkit.fuse.local_chunks import LocalChunks
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.stores import Stores
from layerkit.fuse.waiting import result_of
from layerkit.fuse.workers import Workers
from layerkit.ids import Platform, Ref, check_digest, is_range, is_version

log = logging.getLogger("layerkit.host")

PEERS = 8
"""Cached layers that are opened when a new one comes, because it may share chunks with them."""


class OpenLayer(NamedTuple):
    """A prepared layer."""

    layer: HostLayer
    facts: LayerFacts


class LayerTable:
    """The open layers by digest.

    Args:
        is_mounted: whether a layer is mounted, being mounted or lingering.
        deadline_s: longest wait for a store.
    """

    def __init__(
        self,
        paths: HostPaths,
        stores: Stores,
        local: Workers,
        local_chunks: LocalChunks,
        *,
        is_mounted: Callable[[str], bool],
        deadline_s: float,
    ) -> None:
        self._paths = paths
        self._stores = stores
        self._local = local
        self._local_chunks = local_chunks
        self._is_mounted = is_mounted
        self._deadline_s = deadline_s
        self._open: dict[str, OpenLayer] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._resolved: dict[tuple[str, str], tuple[str, str]] = {}
        self._flushing: set[str] = set()

    async def resolve(self, text: str, store_url: str) -> tuple[str, str]:
        """The full reference ('' for a bare digest) and the digest of a layer.

        Raises:
            RefError, MissingError: no such layer.
            UnavailableError: the store does not answer and the version was never resolved before.
        """
        if text.startswith("sha256:"):
            return "", check_digest(text)
        version = "" if is_range(text) else Ref.parse(text).version
        if not is_range(text) and (digest := Ref.parse(text).digest):
            return text, digest
        handle = self._stores.get(store_url)
        try:
            call = handle.workers.submit(lambda: handle.store().resolve_text(text, Platform.host()))
            found = await result_of(call, self._deadline_s, store_url)
        except UnavailableError:
            # A published version never moves: what it was, it still is.
            if is_version(version) and (store_url, text) in self._resolved:
                return self._resolved[store_url, text]
            raise
        self._resolved[store_url, text] = str(found.ref), found.digest
        return str(found.ref), found.digest

    async def get(self, digest: str, store_url: str) -> OpenLayer:
        """The layer, its files fetched and checked; the caller holds a lease on it.

        Raises:
            StoreError, NoSpaceError: it cannot be had.
        """
        async with self._locks[digest]:
            found = self._open.get(digest)
            if found is not None and not self._is_mounted(digest):
                if await asyncio.wrap_future(self._local.submit(is_known, self._paths.layer(digest))):
                    await asyncio.wrap_future(self._local.submit(found.layer.reopen_if_replaced))
                else:
                    log.warning("%s: its files were removed; they are fetched anew", self._paths.layer(digest).folder)
                    del self._open[digest]
                    self._local_chunks.remove(digest)
                    found.layer.close()
                    found = None
            if found is None:
                found = await self._prepare(digest, store_url)
                self._keep(found)
            if store_url not in ("", found.layer.store_url) and not found.layer.is_complete:
                await self._change_store(found.layer, store_url)
            return found

    async def _prepare(self, digest: str, store_url: str) -> OpenLayer:
        if is_known(self._paths.layer(digest)):
            try:
                return await self._open_files(digest, store_url="")
            except CorruptError as error:
                log.warning("%s; fetching the layer's files anew", error)
        await self._open_peers()
        handle = self._stores.get(store_url)
        call = handle.workers.submit(lambda: fetch_layer(handle.store(), digest, self._paths, store_url))
        await result_of(call, self._deadline_s, store_url)
        return await self._open_files(digest, store_url)

    async def _open_files(self, digest: str, store_url: str) -> OpenLayer:
        call = self._local.submit(open_layer, self._paths, digest, store_url)
        return OpenLayer(*await asyncio.wrap_future(call))

    async def _open_peers(self) -> None:
        known = await asyncio.wrap_future(self._local.submit(list_layers, self._paths))
        for digest in known[:PEERS]:
            lock = self._locks[digest]
            if digest in self._open or lock.locked():
                continue
            async with lock:
                try:
                    self._keep(await self._open_files(digest, ""))
                except LayerkitError as error:
                    log.warning("%s is not used to copy chunks from: %s", digest, error)

    async def _change_store(self, layer: HostLayer, store_url: str) -> None:
        """From now on take chunks from another store that has the layer too."""
        handle = self._stores.get(store_url)
        call = handle.workers.submit(lambda: handle.store().get_locator(layer.digest))
        try:
            locator = await result_of(call, self._deadline_s, store_url)
        except LayerkitError as error:
            log.warning("%s: staying with %s: %s", layer.digest, layer.store_url, error)
            return
        layer.replace_locator(locator)
        layer.store_url = store_url

    def _keep(self, found: OpenLayer) -> None:
        self._open[found.layer.digest] = found
        self._local_chunks.add(found.layer)

    def open_now(self, digest: str) -> HostLayer:
        """Open a layer from this host's files, blocking; for the start, when nothing else runs."""
        if digest not in self._open:
            self._keep(OpenLayer(*open_layer(self._paths, digest)))
        return self._open[digest].layer

    def find(self, digest: str) -> OpenLayer | None:
        """An open layer."""
        return self._open.get(digest)

    def all(self) -> list[HostLayer]:
        """Every open layer."""
        return [found.layer for found in self._open.values()]

    def touch(self, digest: str) -> None:
        """The layer is mounted now."""
        touch_layer(self._paths.layer(digest))

    async def delete(self, digest: str, may_go: Callable[[str], bool]) -> bool:
        """Unlink a layer's files, unless somebody uses them; whether they went.

        Args:
            may_go: asked under the layer's lock, so that a mount that is being set up is not missed.
        """
        async with self._locks[digest]:
            if digest in self._flushing or not may_go(digest):
                return False
            found = self._open.pop(digest, None)
            self._local_chunks.remove(digest)
            if found is not None:
                found.layer.close()
            return await asyncio.wrap_future(self._local.submit(self._unlink, digest))

    def _unlink(self, digest: str) -> bool:
        files = self._paths.layer(digest)
        if is_used_elsewhere(files.data):
            log.info("%s stays: something that is not mounted any more still reads it", digest)
            return False
        gone = temp_name(files.folder)
        files.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        self._paths.volatile_map(digest).unlink(missing_ok=True)
        return True

    async def flush(self) -> None:
        """Make what arrived durable, layer after layer."""
        for layer in self.all():
            if layer.digest not in self._open:
                continue
            self._flushing.add(layer.digest)
            try:
                await asyncio.wrap_future(self._local.submit(layer.flush))
            except (OSError, LayerkitError) as error:
                log.error("%s: the presence map is not written: %s", layer.digest, error)
            finally:
                self._flushing.discard(layer.digest)

    def close(self) -> None:
        """Write what is unwritten and close every layer; blocking."""
        for found in self._open.values():
            try:
                found.layer.flush()
            except (OSError, LayerkitError) as error:
                log.error("%s: the presence map is not written: %s", found.layer.digest, error)
            found.layer.close()
        self._open.clear()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and layers whose intake was cut short; before anything else runs."""
    for entry in list(folder.glob("*")) if folder.is_dir() else []:
        if entry.name.startswith(".tmp-") or not (entry / "layer.json").exists():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            for temp in entry.glob(".tmp-*"):
                temp.unlink(missing_ok=True)
