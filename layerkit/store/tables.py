"""The tables of local knowledge: what their keys and values mean; imported by `knowledge.py` and its users.

Thread-safe as far as the `Access` beneath is, and `Knowledge` is. Everything here can vanish at any time: a table
that lost its content answers as an empty one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from layerkit.store.frames import ChunkPlace

_PLACE = struct.Struct("<32sIIIII")
_AGE = struct.Struct("<QQ")
TOUCH_AFTER_NS = 3600 * 1_000_000_000

Items = Iterable[tuple[bytes, bytes]]


class Access(Protocol):
    """Named tables of byte strings, as `Knowledge` provides them."""

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        ...

    def put_many(self, table: str, items: Items) -> None:
        """Store all or nothing, durably."""
        ...

    def delete_many(self, table: str, keys: Iterable[bytes]) -> None:
        """Delete those keys."""
        ...

    def view(self, table: str) -> AbstractContextManager[Callable[[bytes], bytes | None]]:
        """Many look-ups in a table."""
        ...

    def items(self, table: str) -> list[tuple[bytes, bytes]]:
        """Every row, by key."""
        ...

class ChunkTable:
    """Where the chunks of one store lie, as far as this machine knows: chunk id to place.

    What is said here was true once. Whoever reuses a place checks that the pack exists before publishing.
    """

    def __init__(self, access: Access, store_id: str) -> None:
        self._access = access
        self._name = f"chunks:{store_id}"

    def get_many(self, chunk_ids: Iterable[bytes]) -> dict[bytes, ChunkPlace]:
        """The places of those chunks that are known."""
        found = self._access.get_many(self._name, chunk_ids)
        return {key: ChunkPlace._make(_PLACE.unpack(value)) for key, value in found.items()}

    @contextmanager
    def view(self) -> Iterator[Callable[[bytes], ChunkPlace | None]]:
        """Look-ups for a scan; see `Knowledge.view`."""
        with self._access.view(self._name) as find:

            def place(chunk_id: bytes) -> ChunkPlace | None:
                value = find(chunk_id)
                return None if value is None else ChunkPlace._make(_PLACE.unpack(value))

            yield place

    def put_many(self, places: Iterable[tuple[bytes, ChunkPlace]]) -> None:
        """Learn places; a later one replaces an earlier one."""
        self._access.put_many(self._name, ((chunk_id, _PLACE.pack(*place)) for chunk_id, place in places))

class AgedTable:
    """Records with the time of their last use and a cost in bytes, pruned to a budget, oldest first.

    Keys have at most 500 bytes; records are bytes that only their writer understands.
    """

    def __init__(self, access: Access, name: str, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._access = access
        self._name = name
        self._clock_ns = clock_ns

    def get(self, key: bytes) -> bytes | None:
        """The record, None when there is none."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The records of those keys that are there; `touch` says later which of them were of use."""
        return {key: value[_AGE.size :] for key, value in self._access.get_many(self._name, keys).items()}

    @contextmanager
    def view(self) -> Iterator[Callable[[bytes], bytes | None]]:
        """Look-ups for a scan; see `Knowledge.view`."""
        with self._access.view(self._name) as find:

            def record(key: bytes) -> bytes | None:
                value = find(key)
                return None if value is None else value[_AGE.size :]

            yield record

    def put(self, key: bytes, record: bytes, *, cost: int = 0) -> None:
        """Store one record. `cost`: bytes that it stands for elsewhere; its own length is added."""
        self.put_many([(key, record)], cost=cost)

    def put_many(self, items: Items, *, cost: int = 0) -> None:
        """Store records, used now, each with `cost`."""
        now = self._clock_ns()
        self._access.put_many(
            self._name, ((key, _AGE.pack(now, cost + len(record)) + record) for key, record in items)
        )  # fmt: skip

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that records were of use; written only for those not noted within the last hour."""
        now = self._clock_ns()
        fresh = []
        for key, value in self._access.get_many(self._name, keys).items():
            used, cost = _AGE.unpack_from(value)
            if now - used > TOUCH_AFTER_NS:
                fresh.append((key, _AGE.pack(now, cost) + value[_AGE.size :]))
        if fresh:
            self._access.put_many(self._name, fresh)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove records."""
        self._access.delete_many(self._name, keys)

    def items(self) -> Items:
        """Every key with its record."""
        return ((key, value[_AGE.size :]) for key, value in self._access.items(self._name))

    def total_cost(self) -> int:
        """The cost of all records."""
        return sum(_AGE.unpack_from(value)[1] for _, value in self._access.items(self._name))

    def oldest(self, budget_bytes: int, *, keep: Collection[bytes] = ()) -> list[tuple[bytes, bytes]]:
        """Keys and records of those least recently used that must go until the rest costs at most `budget_bytes`.

        Args:
            keep: keys that stay whatever they cost.
        """
        rows = self._access.items(self._name)
        total = sum(_AGE.unpack_from(value)[1] for _, value in rows)
        found = []
        for key, value in sorted(rows, key=lambda row: (_AGE.unpack_from(row[1])[0], row[0])):
            if total <= budget_bytes:
                break
            if key not in keep:
                total -= _AGE.unpack_from(value)[1]
                found.append((key, value[_AGE.size :]))
        return found

    def prune(self, budget_bytes: int, *, keep: Collection[bytes] = ()) -> list[tuple[bytes, bytes]]:
        """Remove what `oldest` finds; returns it."""
        removed = self.oldest(budget_bytes, keep=keep)
        if removed:
            self._access.delete_many(self._name, [key for key, _ in removed])
        return removed
