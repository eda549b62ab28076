"""The compiler: carries out a plan, stage by stage and step by step, and makes the layers. `build` only; one thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from layerkit.build.config_effect import ImageConfig, StageState, apply, begin_child, begin_stage
from layerkit.build.context import BuildContext
from layerkit.build.copy_step import CopySteps
from layerkit.build.emission import image_config
from layerkit.build.emitter import BuiltLayer, EmissionOptions, Emitter, layer_refs
from layerkit.build.events import Note, Report, StageStarted, StepDone, StepStarted
from layerkit.build.executor import Executor
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.layerfile.nodes import Copy, Instruction, Layerfile, Run, Workdir
from layerkit.build.origins import Origin
from layerkit.build.resolve import resolve_copy, resolve_run
from layerkit.build.run_step import RunSteps
from layerkit.build.stage_files import StageFiles
from layerkit.build.stage_inputs import StageInputs, located
from layerkit.build.stages import BuildPlan, PlannedStage
from layerkit.build.step_kit import Outcome, StepKit, StepOptions
from layerkit.build.stored import StoredLayers
from layerkit.build.workdir_step import make_workdir
from layerkit.layer.environment import apply_exports
from layerkit.store.store import Store

STEP_KINDS = (Run, Copy, Workdir)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What the caller chooses: for every step, and for the layers."""

    steps: StepOptions
    emission: EmissionOptions = field(default_factory=EmissionOptions)


@dataclass(slots=True)
class BuildResult:
    """The layers in the order they were made, the target's last, and what it took."""

    layers: list[BuiltLayer] = field(default_factory=list)
    steps: int = 0
    cached_steps: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Finished:
    """A stage that later ones may begin from or copy from; `below` is what it stands on outside the file."""

    state: StageState
    files: StageFiles
    below: StageFiles


class Compiler:
    """One build.

    Args:
        store: where layers go.
        knowledge: the caches of this machine.
        layerfile: the parsed file.
        context: the build context's folder.
        layerfile_path: where the file lies, for its .dockerignore.
        executor: runs RUN; None where nothing can.
        options: the caller's choices.
        report: hears of every step.
    """

    def __init__(
        self,
        store: Store,
        knowledge: BuildKnowledge,
        *,
        layerfile: Layerfile,
        context: Path,
        layerfile_path: Path,
        executor: Executor | None,
        options: BuildOptions,
        report: Report,
    ) -> None:
        self._knowledge = knowledge
        self._layerfile = layerfile
        self._library = StoredLayers(store)
        self._options = options
        self._report = report
        self._context = context
        self._inputs = StageInputs(store, self._library, layerfile)
        self._kit = StepKit(store, knowledge, options.steps)
        self._runs = RunSteps(self._kit, executor, report)
        self._copies = CopySteps(self._kit, BuildContext(context, layerfile_path))
        self._emitter = Emitter(store, knowledge, self._kit, options.emission, report)
        self._finished: dict[int, _Finished] = {}
        self._result = BuildResult()

    def run(self, plan: BuildPlan) -> BuildResult:
        """Build every stage of the plan.

        Raises:
            LayerkitError: with the Layerfile's line as its place where a step is to blame. What can be refused is
                refused before the first step runs.
        """
        refs = layer_refs(plan, self._options.emission.tag, self._context)
        self._inputs.check(plan)
        for name in plan.unused_build_args:
            self._report(Note(f"no ARG declares the build argument {name}"))
        for planned in plan.stages:
            finished = self._stage(planned, plan)
            if planned.emits:
                with located(self._layerfile, _line_of_layer(planned)):
                    built = self._emitter.emit(
                        planned, refs[planned.index], finished.state.image, finished.below, finished.files
                    )
                self._result.layers.append(built)
                self._result.stored_bytes += built.stored_bytes
                finished = self._standing_on(planned, finished, built)
            self._finished[planned.index] = finished
        self._result.layers.sort(key=lambda layer: layer.ref == refs[plan.target])
        return self._result

    def _standing_on(self, planned: PlannedStage, done: _Finished, built: BuiltLayer) -> _Finished:
        """The stage for those that are FROM it: they stand on the emitted layer, so that the two stack."""
        header = planned.header
        if header.kind == "toolkit" and not header.bound:
            return done
        stack = (built.digest,) if header.kind == "base" else (*done.below.layers, built.digest)
        files = StageFiles(self._library, stack)
        return _Finished(done.state, files, files)

    def _stage(self, planned: PlannedStage, plan: BuildPlan) -> _Finished:
        now = self._begin(planned)
        self._report(StageStarted(planned.stage.title, planned.origin.text, len(planned.steps)))
        toolkits = self._inputs.toolkits(planned, now.below.layers)
        for number, step in enumerate(planned.steps, 1):
            with located(self._layerfile, step.span.first):
                now = self._step(planned, plan, number, step, now, toolkits)
        return now

    def _begin(self, planned: PlannedStage) -> _Finished:
        origin = planned.origin
        if origin.kind == "stage":
            parent = self._finished[origin.stage]
            return replace(parent, state=begin_child(parent.state))
        if origin.kind == "scratch":
            empty = StageFiles(self._library, ())
            return _Finished(begin_stage(ImageConfig()), empty, empty)
        with located(self._layerfile, planned.stage.source.span.first):
            files = self._origin_files(origin, planned)
            config = self._library.get(files.layers[-1]).config
        return _Finished(begin_stage(image_config(config)), files, files)

    def _step(
        self,
        planned: PlannedStage,
        plan: BuildPlan,
        number: int,
        step: Instruction,
        now: _Finished,
        toolkits: tuple[str, ...],
    ) -> _Finished:
        state = apply(now.state, step, plan.scope)
        if not isinstance(step, STEP_KINDS):
            return replace(now, state=state)
        title, start = planned.stage.title, time.monotonic()
        self._report(StepStarted(title, number, len(planned.steps), step.text))
        result, cached = self._carry_out(planned, number, step, now, state, toolkits)
        self._result.steps += 1
        self._result.cached_steps += cached
        self._result.stored_bytes += 0 if cached else result.new_bytes
        self._report(StepDone(title, number, cached, time.monotonic() - start, 0 if cached else result.new_bytes))
        return replace(now, state=state, files=now.files.with_layer(result.layer))

    def _carry_out(
        self,
        planned: PlannedStage,
        number: int,
        step: Instruction,
        now: _Finished,
        after: StageState,
        toolkits: tuple[str, ...],
    ) -> Outcome:
        if isinstance(step, Run):
            run = resolve_run(step, now.state)
            env = dict(run.env)
            for digest in toolkits:
                env = apply_exports(env, self._library.get(digest).config.exports)
            network = planned.header.settings.get("network", "")
            return self._runs.run(now.files, replace(run, env=env), toolkits, network)
        if isinstance(step, Copy):
            copy = resolve_copy(self._layerfile, step, now.state)
            origin = planned.copies.get(number - 1)
            if origin is not None:
                return self._copies.copy_from(now.files, copy, self._origin_files(origin, planned))
            return self._copies.copy(now.files, copy)
        return make_workdir(self._kit, now.files, after)

    def _origin_files(self, origin: Origin, planned: PlannedStage) -> StageFiles:
        if origin.kind == "stage":
            return self._finished[origin.stage].files
        return StageFiles(self._library, self._inputs.stack(origin, planned.platform))


def _line_of_layer(planned: PlannedStage) -> int:
    word = planned.header.words.get("LAYER")
    return word.line if word is not None else planned.stage.source.span.first
