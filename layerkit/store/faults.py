"""Scripted faults: an object store that fails as it is told, for tests and for trying out what a failure does.

Imported by tests and by whoever wraps a store for such a trial. Safe in any thread.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from layerkit.errors import CorruptError, DeniedError, MissingError, NoSpaceError, UnavailableError
from layerkit.store.objectstore import MAX_OBJECT_BYTES, Data, ObjectStat, ObjectStore
from layerkit.store.wrappers import Wrapper


class FaultKind(Enum):
    """What goes wrong. The first group raises, the second spoils the body of a read, the third stops or slows."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    NO_SPACE = "no-space"
    LOST_ANSWER = "lost-answer"
    """The operation is carried out, then answered by UnavailableError."""

    EMPTY = "empty"
    SHORT = "short"
    LONG = "long"
    FLIPPED = "flipped"
    """One bit of the body is wrong."""
    WRONG_RANGE = "wrong-range"
    """The right length from another place of the object."""
    WHOLE_OBJECT = "whole-object"
    """What a server that ignores ranges sends."""
    HTML = "html"
    """What a proxy sends instead of the object."""

    DELAY = "delay"
    KILL_BEFORE = "kill-before"
    """SIGKILL to this process instead of the operation."""
    KILL_AFTER = "kill-after"
    """SIGKILL to this process right after the operation."""


_RAISED = {
    FaultKind.MISSING: MissingError,
    FaultKind.CORRUPT: CorruptError,
    FaultKind.UNAVAILABLE: UnavailableError,
    FaultKind.DENIED: DeniedError,
    FaultKind.NO_SPACE: NoSpaceError,
}
_HTML = b"<html><head><title>503 Service Unavailable</title></head><body>Please try again later</body></html>\n"


@dataclass
class Fault:
    """One line of the script.

    Args:
        kind: what goes wrong.
        operation: name of the method, as a shell pattern (`get*`, `put_if_absent`).
        key: the keys concerned, as a shell pattern.
        after: how many matching calls succeed before.
        times: how many matching calls then fail; None: all.
        delay_s: seconds, for DELAY.
    """

    kind: FaultKind
    operation: str = "*"
    key: str = "*"
    after: int = 0
    times: int | None = 1
    delay_s: float = 0.0
    seen: int = field(default=0, init=False)

    def strikes(self, operation: str, key: str) -> bool:
        """Count a call and say whether it fails; the caller holds the script's lock."""
        if not (fnmatch.fnmatchcase(operation, self.operation) and fnmatch.fnmatchcase(key, self.key)):
            return False
        self.seen += 1
        return self.seen > self.after and (self.times is None or self.seen <= self.after + self.times)


class ScriptedFaults(Wrapper):
    """Fails as its script says; the first line that strikes decides. `calls` lists every call as (operation, key)."""

    def __init__(self, inner: ObjectStore, script: Sequence[Fault]) -> None:
        super().__init__(inner)
        self.script = list(script)
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def _fault(self, operation: str, key: str) -> FaultKind | None:
        with self._lock:
            self.calls.append((operation, key))
            # Every line counts every call, also those after the one that decides.
            struck = [fault for fault in self.script if fault.strikes(operation, key)]
        if not struck:
            return None
        kind = struck[0].kind
        if kind in _RAISED:
            raise _RAISED[kind](f"scripted fault in {operation}", where=key)
        if kind is FaultKind.DELAY:
            time.sleep(struck[0].delay_s)
        elif kind is FaultKind.KILL_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        return kind

    @staticmethod
    def _after(kind: FaultKind | None, key: str) -> None:
        if kind is FaultKind.KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind is FaultKind.LOST_ANSWER:
            raise UnavailableError("scripted fault: the answer was lost", where=key)

    def _body(self, operation: str, key: str, read: Callable[[], bytes], offset: int) -> bytes:
        kind = self._fault(operation, key)
        if kind in (FaultKind.WRONG_RANGE, FaultKind.WHOLE_OBJECT):
            whole = self.inner.get(key)
            if kind is FaultKind.WHOLE_OBJECT:
                return whole
            length = len(read())
            other = offset - length if offset >= length else offset + 1
            return (whole[other : other + length] + bytes(length))[:length]
        data = _spoil(kind, read())
        self._after(kind, key)
        return data

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object."""
        return self._body("get", key, lambda: self.inner.get(key, max_bytes=max_bytes), 0)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, unless the script says otherwise."""
        return self._body("get_range", key, lambda: self.inner.get_range(key, offset, length), offset)

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Create the object."""
        kind = self._fault("put_if_absent", key)
        created = self.inner.put_if_absent(key, data)
        self._after(kind, key)
        return created

    def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        kind = self._fault("put", key)
        self.inner.put(key, data)
        self._after(kind, key)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with `prefix`."""
        kind = self._fault("list", prefix)
        yield from self.inner.list(prefix)
        self._after(kind, prefix)

    def delete(self, key: str) -> None:
        """Remove the object."""
        kind = self._fault("delete", key)
        self.inner.delete(key)
        self._after(kind, key)

    def stat(self, key: str) -> ObjectStat | None:
        """Size and time of the object."""
        kind = self._fault("stat", key)
        found = self.inner.stat(key)
        self._after(kind, key)
        return found


def _spoil(kind: FaultKind | None, data: bytes) -> bytes:
    match kind:
        case FaultKind.EMPTY:
            return b""
        case FaultKind.SHORT:
            return data[: len(data) // 2]
        case FaultKind.LONG:
            return data + b"\0"
        case FaultKind.HTML:
            return _HTML
        case FaultKind.FLIPPED if data:
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data
