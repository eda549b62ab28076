"""A small pool of daemon threads with two priorities; imported by the rest of `fuse`; safe from any thread.

Each store has a pool of its own, so that one that hangs takes nobody else's threads. The threads are daemons: a call
that is stuck in the kernel for ever must not keep hostd from ending, which concurrent.futures' own pool would.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from layerkit.errors import HostError

T = TypeVar("T")


class Workers:
    """Runs calls; urgent ones before the rest.

    Args:
        name: of the threads, for logs.
        threads: most that run at once; they start when they are needed.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._most = threads
        self._ready = threading.Condition()
        self._urgent: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._later: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._running: dict[int, float] = {}

    def submit(self, call: Callable[..., T], *arguments: Any, urgent: bool = True) -> Future[T]:
        """Queue a call; its result or error comes with the Future.

        Raises:
            HostError: the pool is closed.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*arguments)
            except BaseException as error:  # noqa: BLE001 - handed to the waiter
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._ready:
            if self._closed:
                raise HostError(f"{self.name} is shutting down")
            (self._urgent if urgent else self._later).append((future, run))
            if self._idle < len(self._urgent) + len(self._later) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self.name}-{self._threads}", daemon=True).start()
            self._ready.notify()
        return future

    def _next(self) -> Callable[[], None] | None:
        with self._ready:
            self._running.pop(threading.get_ident(), None)
            while not (self._urgent or self._later):
                if self._closed:
                    return None
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            self._running[threading.get_ident()] = time.monotonic()
            return (self._urgent or self._later).popleft()[1]

    def _work(self) -> None:
        while (run := self._next()) is not None:
            run()

    @property
    def queued(self) -> int:
        """Calls that wait for a thread."""
        return len(self._urgent) + len(self._later)

    @property
    def oldest_s(self) -> float:
        """How long the longest of the running calls has been running, in seconds."""
        with self._ready:
            return time.monotonic() - min(self._running.values()) if self._running else 0.0

    def close(self) -> None:
        """Take no more calls; what runs goes on, what is queued is cancelled."""
        with self._ready:
            self._closed = True
            dropped = [future for future, _ in (*self._urgent, *self._later)]
            self._urgent.clear()
            self._later.clear()
            self._ready.notify_all()
        for future in dropped:
            future.cancel()
