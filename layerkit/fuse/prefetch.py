"""Prefetch: the rest of a mounted layer, behind the readers' backs; imported by hostd; lives in its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from layerkit.errors import LayerkitError
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.plan import MAX_REQUEST
from layerkit.fuse.populate import Populator
from layerkit.fuse.waiting import wait_for_all

log = logging.getLogger("layerkit.host")

STEP = MAX_REQUEST
_STEP_DEADLINE_S = 600.0
_STAND_BACK_S = 0.005
_PAUSE_AFTER_ERROR_S = 5.0
_PAUSE_WHEN_FULL_S = 10.0


class Prefetcher:
    """One task a layer; one step of 4 MiB at a time each.

    Args:
        readers_wait: whether any reader waits: faults go first.
        has_room: whether the cache's budget allows more.
    """

    def __init__(
        self, populator: Populator, readers_wait: Callable[[], bool], has_room: Callable[[], Awaitable[bool]]
    ) -> None:
        self._populator = populator
        self._readers_wait = readers_wait
        self._has_room = has_room
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, layer: HostLayer) -> None:
        """Bring in the whole layer, unless that is under way."""
        if not layer.is_complete and layer.digest not in self._tasks:
            task = asyncio.ensure_future(self._run(layer))
            self._tasks[layer.digest] = task
            task.add_done_callback(lambda _: self._tasks.pop(layer.digest, None))

    def stop(self, digest: str) -> None:
        """The layer is not mounted any more; what is under way ends, nothing new begins."""
        task = self._tasks.pop(digest, None)
        if task is not None:
            task.cancel()

    def is_running(self, digest: str) -> bool:
        """Whether the layer is being brought in."""
        return digest in self._tasks

    async def _run(self, layer: HostLayer) -> None:
        offset = 0
        while offset < layer.data.size:
            while self._readers_wait():
                await asyncio.sleep(_STAND_BACK_S)
            if not await self._has_room():
                await asyncio.sleep(_PAUSE_WHEN_FULL_S)
                continue
            try:
                futures = self._populator.start(layer, offset, STEP, urgent=False)
                await wait_for_all(futures, _STEP_DEADLINE_S)
                for future in futures:
                    if future.done():
                        future.result()
            except LayerkitError as error:
                # Recorded by the populator. What is broken stays to the reader who needs it.
                log.info("%s: prefetch goes on after %s", layer.digest, error.code)
                await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
            offset += STEP

    async def close(self) -> None:
        """Stop all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
