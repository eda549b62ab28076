"""Fetches under way by frame, and those that failed a moment ago; imported by `fuse.populate`; safe from any thread.

Whoever needs a frame that somebody already fetches waits for that fetch. The kernel asks again page by page for what it
did not get: were each of these waits as long as the first, a reader would wait for the deadline once a page. After a
failure a new fetch therefore begins, but readers wait only a moment for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

from layerkit.errors import UnavailableError

IMPATIENT_S = 10.0
"""For so long after a failure readers wait only PROBE_S for the next attempt."""

PROBE_S = 0.25

_FAILURES_KEPT = 4096


class FrameKey(NamedTuple):
    """A frame of one layer's locator, by the locator's generation."""

    layer: str
    generation: int
    frame: int


class Flight(Future[None]):
    """One fetch of a frame. `since` is when it began, by the monotonic clock."""

    def __init__(self, *, is_probe: bool) -> None:
        super().__init__()
        self.since = time.monotonic()
        self._is_probe = is_probe

    def seconds_left(self, deadline_s: float) -> float:
        """How long a reader may wait for it: the deadline counts from the fetch's beginning, whenever he came."""
        patience_s = min(deadline_s, PROBE_S) if self._is_probe else deadline_s
        return max(self.since + patience_s - time.monotonic(), 0.0)


class Flights:
    """The table of flights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[FrameKey, Flight] = {}
        self._failures: dict[FrameKey, float] = {}

    def join(self, keys: Iterable[FrameKey]) -> tuple[list[Flight], dict[int, Flight]]:
        """Take part in the fetches of frames.

        Returns:
            All flights to wait for, and by frame those that are new: the caller must see to it that they land.
        """
        everyone, mine = [], {}
        with self._lock:
            for key in keys:
                flight = self._flights.get(key)
                if flight is None:
                    failed_ago_s = time.monotonic() - self._failures.get(key, -IMPATIENT_S)
                    flight = self._flights[key] = mine[key.frame] = Flight(is_probe=failed_ago_s < IMPATIENT_S)
                everyone.append(flight)
        return everyone, mine

    def land(self, key: FrameKey, error: BaseException | None) -> None:
        """End a flight; nothing happens when it has landed already."""
        with self._lock:
            flight = self._flights.pop(key, None)
            self._failures.pop(key, None)
            if flight is None:
                return
            if isinstance(error, UnavailableError):
                self._failures[key] = time.monotonic()
                if len(self._failures) > _FAILURES_KEPT:
                    del self._failures[next(iter(self._failures))]
        if error is None:
            flight.set_result(None)
        else:
            flight.set_exception(error)

    def is_busy(self, layer: str) -> bool:
        """Whether anything of a layer is under way."""
        with self._lock:
            return any(key.layer == layer for key in self._flights)
