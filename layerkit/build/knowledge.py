"""What the compiler remembers on this machine: known files, places of chunks, results of steps. `build` only.

Everything here can be lost at any time; then files are read again and steps run again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from layerkit._util.canonical import canonical_json
from layerkit.store.knowledge import Knowledge
from layerkit.store.store import Store
from layerkit.store.tables import AgedTable, ChunkTable
from layerkit.store.whole import is_whole


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step made: its layer's digest, '' when it changed nothing, and the bytes it added to the store."""

    layer: str
    new_bytes: int


class BuildKnowledge:
    """The three tables; one thread.

    Attributes:
        files: known files by what the file system says of them (`file_cache`).
        chunks: where the chunks of the store lie.
    """

    def __init__(self, home: Path, store: Store) -> None:
        knowledge = Knowledge.open(home)
        self._store = store
        self._steps: AgedTable = knowledge.steps
        self.files: AgedTable = knowledge.files
        self.chunks: ChunkTable = knowledge.chunks(store.id)

    def find_step(self, key: bytes) -> StepResult | None:
        """The result of a step, when it is known and its layer can still be read."""
        result = _decode(self._steps.get(self._key(key)))
        if result is None or (result.layer and not is_whole(self._store.objects, result.layer)):
            return None
        self._steps.touch([self._key(key)])
        return result

    def add_step(self, key: bytes, result: StepResult) -> None:
        """Remember a step, after its layer is durable."""
        record = canonical_json({"layer": result.layer, "bytes": result.new_bytes})
        self._steps.put(self._key(key), record, cost=result.new_bytes)

    def step_layers(self, *, without: Collection[bytes] = ()) -> set[str]:
        """The digests of the layers that known steps of this store made.

        Args:
            without: records that do not count, from `oldest_steps`.
        """
        rows = ((key, _decode(record)) for key, record in self._steps.items() if self._is_ours(key))
        return {result.layer for key, result in rows if result is not None and result.layer and key not in without}

    def oldest_steps(self, budget_bytes: int) -> dict[bytes, str]:
        """The records that must go for the steps of all stores to be within the budget, with their layers' digests.

        Only those of this store, since only its layers are within reach.
        """
        others = {key for key, _ in self._steps.items() if not self._is_ours(key)}
        rows = ((key, _decode(record)) for key, record in self._steps.oldest(budget_bytes, keep=others))
        return {key: result.layer if result is not None else "" for key, result in rows}

    def forget_steps(self, records: Collection[bytes]) -> None:
        """Forget records from `oldest_steps`."""
        self._steps.delete(records)

    def step_bytes(self) -> int:
        """What all known steps have added to stores."""
        return self._steps.total_cost()

    def _is_ours(self, key: bytes) -> bool:
        return key.startswith(bytes.fromhex(self._store.id))

    def _key(self, key: bytes) -> bytes:
        return bytes.fromhex(self._store.id) + key


def _decode(record: bytes | None) -> StepResult | None:
    try:
        value = json.loads(record or b"")
        return StepResult(str(value["layer"]), int(value["bytes"]))
    except (ValueError, KeyError, TypeError):
        return None
