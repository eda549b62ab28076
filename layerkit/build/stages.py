"""The plan of a build: which stages are needed, in which order, on what, and what layer each one makes. Pure.

`plan_build` resolves names only. What a layer reference or image name leads to is the caller's to find.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from layerkit._util.text import did_you_mean
from layerkit.build.headers import Header
from layerkit.build.layer_rules import settle_header
from layerkit.build.layerfile.expand import error_at, error_in, expand
from layerkit.build.layerfile.nodes import Arg, Copy, Declaration, Instruction, Layer, Layerfile, Stage
from layerkit.build.origins import Origin, parse_origin
from layerkit.build.plan_scope import PlanScope
from layerkit.build.scope import ArgScope, parse_platform, platform_args, unused_build_args
from layerkit.errors import InputError, RefError
from layerkit.ids import Platform


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage to build.

    Attributes:
        index: its number in the file.
        name: what AS calls it, '' without.
        origin: what FROM means.
        platform: what it is built for.
        header: what it says of its layer; kind settled.
        steps: its instructions without LAYER and the other declarations.
        copies: origins of COPY --from, by the number of the step.
        needs: indexes of stages that must be built before.
        emits: whether its result becomes a layer: the target, with `emit_all` every stage with a LAYER, and those
            whose digest such a layer records as its parent.
        stage: the stage as parsed, for messages.
    """

    index: int
    name: str
    origin: Origin
    platform: Platform
    header: Header
    steps: tuple[Instruction, ...]
    copies: Mapping[int, Origin]
    needs: tuple[int, ...]
    emits: bool
    stage: Stage


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The stages in the order of building, each after those it needs.

    Attributes:
        stages: only what the target, and with `emit_all` the other stages with a LAYER, need.
        target: index of the target stage.
        scope: where ARGs get their values, for `config_effect.apply`.
        unused_build_args: build arguments that no ARG of these stages declares.
    """

    stages: tuple[PlannedStage, ...]
    target: int
    scope: ArgScope
    unused_build_args: tuple[str, ...]

    def stage(self, index: int) -> PlannedStage:
        """The planned stage of that index."""
        return next(stage for stage in self.stages if stage.index == index)


def plan_build(
    layerfile: Layerfile,
    *,
    build_args: Mapping[str, str] | None = None,
    target: str = "",
    platform: Platform | None = None,
    build_platform: Platform | None = None,
    emit_all: bool = False,
    contexts: Collection[str] = (),
) -> BuildPlan:
    """Plan the build of one target.

    Args:
        layerfile: the file.
        build_args: values for ARGs.
        target: a stage's name or number; the last stage when empty.
        platform: what to build for; this machine's when None.
        build_platform: what the build runs on; this machine's when None.
        emit_all: also build every other stage that has a LAYER.
        contexts: names of further build contexts, which FROM and --from may use.

    Raises:
        LayerfileError: at the place of what is impossible.
        InputError: an unknown target.
    """
    build_platform = build_platform or Platform.host()
    platform = platform or build_platform
    number = _target(layerfile, target)
    automatic = platform_args(platform, build_platform, layerfile.stages[number].name)
    scope = ArgScope.of(layerfile, build_args or {}, automatic)
    planner = _Planner(layerfile, scope, platform, contexts)
    wanted = {number}
    if emit_all:
        wanted |= {stage.index for stage in layerfile.stages if _has_layer(stage)}
    needed = planner.reach(wanted)
    stages = planner.settle(needed, wanted)
    declared = [arg for stage in stages for arg in stage.steps if isinstance(arg, Arg)]
    unused = unused_build_args(scope.build_args, [*layerfile.global_args, *declared], automatic)
    return BuildPlan(stages, number, scope, tuple(unused))


def _has_layer(stage: Stage) -> bool:
    return any(isinstance(node, Layer) for node in stage.instructions)


def _target(layerfile: Layerfile, target: str) -> int:
    if not target:
        return len(layerfile.stages) - 1
    named = [stage.index for stage in layerfile.stages if stage.name == target.lower()]
    if named:
        return named[-1]
    if target.isascii() and target.isdigit() and int(target[:9]) < len(layerfile.stages):
        return int(target)
    names = [stage.name for stage in layerfile.stages if stage.name]
    hint = did_you_mean(target.lower(), names) or (f"there are {', '.join(names)}" if names else "no stage has a name")
    raise InputError(f"no stage is called {target[:100]!r}", where=layerfile.file, hint=hint)


class _Planner:
    """Plans stages once each; a stage only knows those above it, so there are no cycles. One thread."""

    def __init__(self, layerfile: Layerfile, scope: ArgScope, platform: Platform, contexts: Collection[str]) -> None:
        self._layerfile = layerfile
        self._scope = scope
        self._platform = platform
        self._contexts = contexts
        self._planned: dict[int, PlannedStage] = {}
        self._scopes: dict[int, PlanScope] = {}

    def reach(self, wanted: Collection[int]) -> set[int]:
        """Plan the wanted stages and everything they need; returns their indexes."""
        needed: set[int] = set()
        waiting = sorted(wanted)
        while waiting:
            index = waiting.pop()
            if index in needed:
                continue
            needed.add(index)
            self._planned[index] = self._plan(self._layerfile.stages[index])
            waiting += self._planned[index].needs
        for index in sorted(needed):
            self._read_header(index)
        return needed

    def settle(self, needed: Collection[int], wanted: Collection[int]) -> tuple[PlannedStage, ...]:
        """The finished stages; each header is checked against what its stage stands on."""
        order = sorted(needed)
        for index in order:
            planned = self._planned[index]
            chain = [(below.origin, below.header) for below in self._chain(planned)]
            header = settle_header(self._layerfile, planned.stage, chain, emits=index in wanted)
            self._planned[index] = replace(planned, header=header, emits=index in wanted)
        for index in reversed(order):
            self._emit_parent(self._planned[index])
        return tuple(self._planned[index] for index in order)

    def _chain(self, planned: PlannedStage) -> list[PlannedStage]:
        """The stage and those of the file that it stands on, topmost first."""
        chain = [planned]
        while chain[-1].origin.kind == "stage":
            chain.append(self._planned[chain[-1].origin.stage])
        return chain

    def _emit_parent(self, planned: PlannedStage) -> None:
        if planned.emits and (planned.header.kind == "workspace" or planned.header.bound):
            parent = next((below for below in self._chain(planned)[1:] if not below.header.implicit), None)
            if parent is not None:
                self._planned[parent.index] = replace(parent, emits=True)

    def _plan(self, stage: Stage) -> PlannedStage:
        origin = self._origin(stage)
        steps = tuple(node for node in stage.instructions if not isinstance(node, Layer | Declaration))
        copies = {
            number: self._copy_origin(stage, step)
            for number, step in enumerate(steps)
            if isinstance(step, Copy) and step.from_stage
        }
        needs = {found.stage for found in (origin, *copies.values()) if found.kind == "stage"}
        return PlannedStage(
            index=stage.index,
            name=stage.name,
            origin=origin,
            platform=self._stage_platform(stage),
            header=Header(),
            steps=steps,
            copies=copies,
            needs=tuple(sorted(needs)),
            emits=False,
            stage=stage,
        )

    def _origin(self, stage: Stage) -> Origin:
        word = stage.source.image
        text = expand(self._layerfile, word, self._scope.global_values)
        if not text:
            raise error_at(
                self._layerfile,
                word,
                f"FROM {word.raw} comes to nothing",
                hint="give its ARG a default above the first FROM, or pass --build-arg",
            )
        below = [other for other in self._layerfile.stages[: stage.index] if other.name == text.lower()]
        if below:
            return Origin("stage", text, stage=below[-1].index)
        try:
            return parse_origin(text, self._contexts)
        except RefError as error:
            raise error_at(self._layerfile, word, error.message, hint=error.hint) from error

    def _stage_platform(self, stage: Stage) -> Platform:
        word = stage.source.platform
        if word is None:
            return self._platform
        try:
            return parse_platform(expand(self._layerfile, word, self._scope.global_values))
        except RefError as error:
            raise error_at(self._layerfile, word, error.message, hint=error.hint) from error

    def _copy_origin(self, stage: Stage, copy: Copy) -> Origin:
        text = copy.from_stage
        stages = self._layerfile.stages
        if text.isascii() and text.isdigit():
            if len(text) > 9 or int(text) >= len(stages):
                raise error_in(self._layerfile, copy, f"there is no stage {text[:20]}")
            return self._earlier(stage, copy, int(text))
        named = [other.index for other in stages if other.name == text.lower()]
        if named:
            earlier = [index for index in named if index < stage.index]
            return self._earlier(stage, copy, (earlier or named)[-1])
        if text == "scratch":
            raise error_in(self._layerfile, copy, "scratch holds nothing to copy")
        try:
            return parse_origin(text, self._contexts)
        except RefError as error:
            names = [other.name for other in stages[: stage.index] if other.name]
            hint = did_you_mean(text.lower(), names) or error.hint
            raise error_in(self._layerfile, copy, error.message, hint=hint) from error

    def _earlier(self, stage: Stage, copy: Copy, index: int) -> Origin:
        if index >= stage.index:
            which = "itself" if index == stage.index else f"the later {self._layerfile.stages[index].title}"
            raise error_in(
                self._layerfile, copy, f"{stage.title} copies from {which}", hint="a stage can copy from those above it"
            )
        return Origin("stage", copy.from_stage, stage=index)

    def _read_header(self, index: int) -> None:
        planned = self._planned[index]
        parent = None
        if planned.origin.kind == "stage":
            parent = self._scopes[planned.origin.stage]
            planned = replace(planned, platform=self._planned[planned.origin.stage].platform)
        scope = PlanScope(self._scope, parent, base_is_known=planned.origin.kind == "scratch")
        for node in planned.stage.instructions:
            scope.add(node)
        self._scopes[index] = scope
        self._planned[index] = replace(planned, header=scope.header)
