"""Wrappers that add one ability each to any object store: retry, verification, single-flight.

Imported by `store.py` and by whoever puts a store together. Every wrapper is itself an `ObjectStore`, so they nest:
`SingleFlight(Retrying(Verifying(inner)))` is the usual order, so that what verification finds short is tried again
and waiting callers share all of it. Safe in any thread.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from layerkit.errors import CorruptError, UnavailableError
from layerkit.store.keys import digest_in_key
from layerkit.store.objectstore import MAX_OBJECT_BYTES, Data, ObjectStat, ObjectStore, check_key, check_range

T = TypeVar("T")


class Wrapper:
    """Passes everything on to `inner`; the base of those that change something."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object."""
        return self.inner.get(key, max_bytes=max_bytes)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        return self.inner.get_range(key, offset, length)

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Create the object; False when the key exists."""
        return self.inner.put_if_absent(key, data)

    def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        self.inner.put(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with `prefix`."""
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        """Remove the object."""
        self.inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        """Size and time of the object."""
        return self.inner.stat(key)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try: pauses grow by `factor` from `first_s` to `most_s`, each drawn between zero and that
    (full jitter, so that many hosts do not come back at once), until `deadline_s` after the first attempt.
    """

    first_s: float = 0.1
    factor: float = 2.0
    most_s: float = 10.0
    deadline_s: float = 60.0


class Retrying(Wrapper):
    """Tries again what was unavailable, and nothing else: missing, corrupt and denied are answers.

    Args:
        sleep, clock, draw: for tests; seconds to wait, monotonic seconds, and a number in [0, 1).
    """

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy = RetryPolicy(),
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self._policy = policy
        self._sleep = sleep
        self._clock = clock
        self._draw = draw

    def _attempts(self) -> Iterator[int]:
        """Counts attempts and sleeps between them; ends when the next pause would pass the deadline."""
        end = self._clock() + self._policy.deadline_s
        longest = self._policy.first_s
        for attempt in itertools.count(1):
            yield attempt
            pause = longest * self._draw()
            if self._clock() + pause >= end:
                return
            self._sleep(pause)
            longest = min(longest * self._policy.factor, self._policy.most_s)

    def _again(self, call: Callable[[], T]) -> T:
        failure = UnavailableError("not tried")
        for attempt in self._attempts():
            try:
                return call()
            except UnavailableError as error:
                failure = _given_up(error, attempt)
        raise failure

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object."""
        return self._again(lambda: self.inner.get(key, max_bytes=max_bytes))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        return self._again(lambda: self.inner.get_range(key, offset, length))

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Create the object. When an answer was lost, False may mean that an earlier attempt of this call made it:
        whoever needs to know compares what is there.
        """
        return self._again(lambda: self.inner.put_if_absent(key, data))

    def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        self._again(lambda: self.inner.put(key, data))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with `prefix`; a listing that breaks off goes on behind its last key."""
        failure = UnavailableError("not tried")
        last = ""
        for attempt in self._attempts():
            try:
                for found in self.inner.list(prefix):
                    if found.key > last:
                        last = found.key
                        yield found
                return
            except UnavailableError as error:
                failure = _given_up(error, attempt)
        raise failure

    def delete(self, key: str) -> None:
        """Remove the object."""
        self._again(lambda: self.inner.delete(key))

    def stat(self, key: str) -> ObjectStat | None:
        """Size and time of the object."""
        return self._again(lambda: self.inner.stat(key))


def _given_up(error: UnavailableError, attempts: int) -> UnavailableError:
    last = UnavailableError(f"{error.message} (attempts: {attempts})", where=error.where, hint=error.hint)
    last.__cause__ = error
    return last


class Verifying(Wrapper):
    """Trusts no answer: lengths are checked always, contents wherever the key names their sha256.

    Wrong bytes are read once more before they are called corrupt, so that damage on the way and damage at rest are
    told apart. A range of the right length from the wrong place has no digest of its own: chunk ids find that.
    """

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object, with the digest that its key names."""
        digest = digest_in_key(key)
        data = self._checked_size(key, self.inner.get(key, max_bytes=max_bytes), max_bytes)
        if digest and hashlib.sha256(data).hexdigest() != digest:
            data = self._checked_size(key, self.inner.get(key, max_bytes=max_bytes), max_bytes)
            if hashlib.sha256(data).hexdigest() != digest:
                raise CorruptError(f"its {len(data)} bytes do not have the digest that its name says", where=key)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`.

        Raises:
            UnavailableError: another length came although the object is large enough.
            CorruptError: the object itself is too short.
        """
        check_range(offset, length)
        data = self.inner.get_range(key, offset, length)
        if len(data) != length:
            there = self.inner.stat(key)
            if there is not None and there.size < offset + length:
                raise CorruptError(f"has {there.size} bytes, {length} at {offset} were asked for", where=key)
            raise UnavailableError(f"{len(data)} bytes came, {length} at {offset} were asked for", where=key)
        return data

    def _checked_size(self, key: str, data: bytes, max_bytes: int) -> bytes:
        if len(data) > max_bytes:
            raise CorruptError(f"{len(data)} bytes came, at most {max_bytes} are allowed", where=key)
        if not data:
            there = self.inner.stat(key)
            if there is None or there.size:
                raise UnavailableError("an empty body came", where=key)
        return data


class SingleFlight(Wrapper):
    """Callers that ask for the same bytes at the same time share one request, and its error.

    Nothing is kept after the answer: a failed fetch leaves nothing behind, the next call asks again.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._flights: dict[tuple[str, int, int], Future[bytes]] = {}

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object."""
        return self._share((key, -1, max_bytes), lambda: self.inner.get(key, max_bytes=max_bytes))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        check_range(offset, length)
        return self._share((key, offset, length), lambda: self.inner.get_range(key, offset, length))

    def _share(self, what: tuple[str, int, int], call: Callable[[], bytes]) -> bytes:
        check_key(what[0])
        with self._lock:
            flight = self._flights.get(what)
            if flight is None:
                mine = self._flights[what] = Future()
        if flight is not None:
            return flight.result()
        try:
            data = call()
        except BaseException as error:
            self._land(what)
            # The leader's KeyboardInterrupt is its own; the others may ask again.
            ours = isinstance(error, Exception)
            mine.set_exception(error if ours else UnavailableError("the request was given up", where=what[0]))
            raise
        self._land(what)
        mine.set_result(data)
        return data

    def _land(self, what: tuple[str, int, int]) -> None:
        with self._lock:
            del self._flights[what]
