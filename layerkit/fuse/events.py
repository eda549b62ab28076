"""What `status` and `/metrics` tell: recent errors and running counts; standard library only; safe from any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from typing import Any

from layerkit.errors import LayerkitError

log = logging.getLogger("layerkit.host")
_KEPT = 100


class ErrorLog:
    """The last errors by layer, kind and place, with how often and when; each goes to the log file as well."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: OrderedDict[tuple[str, str, str], dict[str, Any]] = OrderedDict()

    def record(self, error: BaseException, *, layer: str = "", store: str = "") -> None:
        """Keep an error; one of the same kind at the same place raises the count and replaces the message."""
        code = error.code if isinstance(error, LayerkitError) else "internal"
        where = error.where if isinstance(error, LayerkitError) else ""
        message = error.message if isinstance(error, LayerkitError) else f"{type(error).__name__}: {error}"
        key = (layer, code, where)
        with self._lock:
            count = self._errors.pop(key, {"count": 0})["count"] + 1
            self._errors[key] = {
                "layer": layer, "store": store, "code": code, "where": where, "message": message, "count": count,
                "time": time.time(),
            }  # fmt: skip
            while len(self._errors) > _KEPT:
                self._errors.popitem(last=False)
        traceback = error if code == "internal" else None
        log.error("%s %s: %s", layer or store or "host", code, error, exc_info=traceback)

    def listing(self) -> list[dict[str, Any]]:
        """Newest first."""
        with self._lock:
            return [dict(entry) for entry in reversed(self._errors.values())]


class Counts:
    """Running sums by name; the names and their meaning are in `fuse.metrics`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counter: Counter[str] = Counter()

    def add(self, name: str, amount: float = 1) -> None:
        """Raise a count."""
        with self._lock:
            self._counter[name] += amount  # type: ignore[assignment]

    def get(self, name: str) -> float:
        """A count, 0 when nothing has happened."""
        return self._counter[name]
