"""Finished stages become layers with names; an unchanged stage's layer is found without loading anything. `build` only.

The emission cache is part of the step cache: the key holds the layers of the stage and of what it stands on, the
config's bytes and everything else that the layer's tree depends on. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from layerkit.build.config_effect import ImageConfig
from layerkit.build.emission import layer_config, layer_tree
from layerkit.build.events import LayerDone, Report
from layerkit.build.headers import Header
from layerkit.build.knowledge import BuildKnowledge, StepResult
from layerkit.build.making import LayerMaking
from layerkit.build.stage_files import StageFiles
from layerkit.build.stage_inputs import plain_name
from layerkit.build.stages import BuildPlan, PlannedStage
from layerkit.build.step_kit import StepKit
from layerkit.errors import InputError
from layerkit.ids import DEV_TAG, Ref
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import Facts
from layerkit.store.store import Store


@dataclass(frozen=True, slots=True)
class EmissionOptions:
    """What the caller chooses for the layers.

    Attributes:
        tag: the target's reference, None to take LAYER's.
        source_date_epoch: seconds, or None.
        drop_outside: as SETTING drop-outside=true in every toolkit.
    """

    tag: Ref | None = None
    source_date_epoch: int | None = None
    drop_outside: bool = False


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """A layer that the build made or found again; it has its local name already.

    Attributes:
        ref, digest: its names.
        existed: the store had it before.
        stored_bytes: what was added to the store's packs to put it together.
    """

    ref: Ref
    digest: str
    existed: bool
    stored_bytes: int


def layer_refs(plan: BuildPlan, tag: Ref | None, context: Path) -> Mapping[int, Ref]:
    """The name of each layer that a plan makes, by the number of its stage.

    Args:
        plan: the plan.
        tag: the target's name, as the user gave it.
        context: the build context, whose folder's name a layer without any other gets.

    Raises:
        InputError: a tag that does not fit what the target makes, or two layers of one name.
    """
    refs: dict[int, Ref] = {}
    for planned in plan.stages:
        if not planned.emits:
            continue
        header = planned.header
        if planned.index == plan.target and tag is not None:
            refs[planned.index] = _tagged(planned, tag)
        else:
            name = header.name or plain_name(context.absolute().name)
            refs[planned.index] = Ref(header.kind, name, header.version or DEV_TAG)
    for index, ref in refs.items():
        twin = next((other for other, known in refs.items() if other < index and known == ref), None)
        if twin is not None:
            raise InputError(
                f"{plan.stage(twin).stage.title} and {plan.stage(index).stage.title} both make {ref}",
                hint="give one of them another name or version",
            )
    return refs


def _tagged(planned: PlannedStage, tag: Ref) -> Ref:
    header = planned.header
    if tag.digest:
        raise InputError("-t cannot hold a digest", where=str(tag), hint=f"write -t {tag.kind}/{tag.name}:VERSION")
    if tag.kind != header.kind:
        raise InputError(
            f"-t says {tag.kind}, but {planned.stage.title} makes a {header.kind}",
            where=str(tag),
            hint=f"use -t {header.kind}/{tag.name}, or write LAYER {tag.kind} {tag.name} in the stage",
        )
    return tag if tag.version else tag.with_version(header.version or DEV_TAG)


class Emitter:
    """Makes the layers of one build."""

    def __init__(
        self, store: Store, knowledge: BuildKnowledge, kit: StepKit, options: EmissionOptions, report: Report
    ) -> None:
        self._store = store
        self._knowledge = knowledge
        self._kit = kit
        self._options = options
        self._report = report

    def emit(
        self, planned: PlannedStage, ref: Ref, image: ImageConfig, below: StageFiles, files: StageFiles
    ) -> BuiltLayer:
        """The layer of a finished stage, stored and named.

        Args:
            planned: the stage.
            ref: its layer's name.
            image: the configuration that its instructions made.
            below: what it stands on.
            files: what it has become.

        Raises:
            BuildError: a toolkit that wrote outside of its prefix.
        """
        start = time.monotonic()
        header = planned.header
        if self._options.drop_outside:
            header = replace(header, settings={**header.settings, "drop-outside": "true"})
        is_difference = header.kind == "workspace" or header.bound
        parent = below.layers[-1] if is_difference and below.layers else ""
        config = layer_config(ref, header, image, parent, planned.platform)
        existed = True

        def make() -> StepResult:
            nonlocal existed
            made, existed = self._make(header, config, below, files)
            return made

        key = self._kit.key(
            "emit", files.layers, below.layers, config.to_bytes(), header.settings.get("drop-outside"),
            header.mtime.mode, header.mtime.epoch, "MTIME" in header.words, self._options.source_date_epoch,
        )  # fmt: skip
        result, cached = self._kit.cached(key, make)
        self._store.local_refs.set(ref, planned.platform, result.layer)
        self._report(LayerDone(str(ref), result.layer, existed, time.monotonic() - start))
        return BuiltLayer(ref, result.layer, existed, 0 if cached else result.new_bytes)

    def _make(
        self, header: Header, config: LayerConfig, below: StageFiles, files: StageFiles
    ) -> tuple[StepResult, bool]:
        tree = layer_tree(header, below, files, self._options.source_date_epoch)
        facts: Facts = files.facts.restricted_to(tree)
        steps_from = 0 if header.kind == "base" else len(below.layers)
        making = LayerMaking(
            self._store,
            self._knowledge,
            own=lambda id_: files.find_place(id_, above=steps_from),
            near=files.find_place,
            trusting=self._kit.options.use_cache,
        )
        with making:
            making.add_source(files)
            made = making.finish(tree, config, facts)
        return StepResult(made.digest, made.stored_bytes), made.existed
