"""What every step of a build needs: its options, the step cache, and how a difference becomes a layer. `build` only.

A step's difference is a layer like any other, stored under its digest; the step cache maps the step's key to it. The
record is written after the layer is durable, so a crash in between costs the step, never a wrong hit. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layerkit.build.keys import step_key
from layerkit.build.knowledge import BuildKnowledge, StepResult
from layerkit.build.making import LayerMaking
from layerkit.build.places import FindPlace
from layerkit.build.stage_files import StageFiles
from layerkit.ids import Platform
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import Facts
from layerkit.layer.merge import is_empty_difference
from layerkit.layer.tree import Inode
from layerkit.store.store import Store

STEP_NAME = "build-step"

Outcome = tuple[StepResult, bool]
"""What a step made, and whether it came from the cache."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What holds for all steps of a build.

    Attributes:
        platform: what is built for.
        mtime_ns: the time of what the compiler itself creates (parents, WORKDIR, heredoc files).
        host_trust: whether RUN sees the host's CA bundle.
        host_network: whether RUN may ask for the host's network.
        extra_env: variables for RUN that are in no key and no layer (proxies).
        use_cache: whether results of earlier builds count, and what they stored is believed to be sound.
    """

    platform: Platform
    mtime_ns: int = 0
    host_trust: bool = False
    host_network: bool = False
    extra_env: dict[str, str] | None = None
    use_cache: bool = True


class StepKit:
    """Shared by the steps of one build."""

    def __init__(self, store: Store, knowledge: BuildKnowledge, options: StepOptions) -> None:
        self.options = options
        self._store = store
        self._knowledge = knowledge

    def key(self, *fields: Any) -> bytes:
        """The cache key of a step: its fields, and what every step's result depends on."""
        return step_key(str(self.options.platform), self.options.mtime_ns, *fields)

    def find(self, key: bytes) -> StepResult | None:
        """The result that is kept under a key, None where the cache must not be used."""
        return self._knowledge.find_step(key) if self.options.use_cache else None

    def add(self, key: bytes, result: StepResult) -> None:
        """Keep a result whose layer is stored."""
        self._knowledge.add_step(key, result)

    def cached(self, key: bytes, run: Callable[[], StepResult]) -> Outcome:
        """The result under a key, from the cache or by running the step."""
        found = self.find(key)
        if found is not None:
            return found, True
        result = run()
        self.add(key, result)
        return result, False

    def making(self, near: FindPlace, *, pack_now: bool = True) -> LayerMaking:
        """A layer in the making; `near` finds chunks of layers that the step reads."""
        return LayerMaking(self._store, self._knowledge, near=near, pack_now=pack_now, trusting=self.options.use_cache)

    def keep(
        self, making: LayerMaking, files: StageFiles, difference: Inode, facts: Facts | None = None
    ) -> StepResult:
        """Store a step's difference; one that changes nothing (B21) makes no layer."""
        if is_empty_difference(files.root, difference):
            return StepResult("", 0)
        kind, parent = ("workspace", files.layers[-1]) if files.layers else ("base", "")
        config = LayerConfig(kind=kind, name=STEP_NAME, parent=parent, platform=self.options.platform)
        made = making.finish(difference, config, facts)
        return StepResult(made.digest, made.stored_bytes)
