"""RUN: looked up, or executed on the stage's layers and its upper directory kept. `build` only; one thread."""

from __future__ import annotations

from dataclasses import replace

from layerkit.build.events import Report, StepOutput
from layerkit.build.executor import Executor, RunOutcome, RunRequest
from layerkit.build.knowledge import StepResult
from layerkit.build.resolve import ResolvedRun
from layerkit.build.stage_files import StageFiles
from layerkit.build.step_kit import Outcome, StepKit
from layerkit.errors import BuildError, InputError, UnsupportedError


class RunSteps:
    """The RUNs of one build.

    Args:
        kit: of the build.
        executor: None where nothing can run them.
        report: hears of their output.
    """

    def __init__(self, kit: StepKit, executor: Executor | None, report: Report) -> None:
        self._kit = kit
        self._executor = executor
        self._report = report

    def run(self, files: StageFiles, run: ResolvedRun, toolkits: tuple[str, ...], network: str) -> Outcome:
        """Carry a RUN out.

        The key holds neither proxies nor the host's trust nor its name: they change no layer.

        Args:
            files: what the stage holds.
            run: the command, the toolkits' exports in its environment.
            toolkits: digests of the required toolkits, mounted on top, read-only.
            network: what the stage asks for when the instruction does not.

        Raises:
            BuildError: the command failed.
            UnsupportedError: nothing here can run it.
        """
        network = run.network or network or "nat"
        script = (run.script.name, run.script.content) if run.script else None
        key = self._kit.key(
            "run", files.layers, toolkits, run.argv, run.env, run.user, run.workdir, network, script
        )  # fmt: skip
        request = RunRequest(
            layers=files.layers, toolkits=toolkits, argv=run.argv,
            env={**(self._kit.options.extra_env or {}), **run.env}, workdir=run.workdir, user=run.user,
            network=network, host_trust=self._kit.options.host_trust, script=script,
        )  # fmt: skip
        return self._kit.cached(key, lambda: self._execute(files, request))

    def _execute(self, files: StageFiles, request: RunRequest) -> StepResult:
        if self._executor is None:
            raise UnsupportedError("RUN needs root and mounts, which this process does not have")
        if not files.layers:
            raise InputError("nothing is there to run in yet", hint="begin FROM a base, or COPY a root file system")
        if request.network == "host" and not self._kit.options.host_network:
            raise InputError("RUN --network=host is not allowed", hint="pass --allow host-network")
        with self._executor.run(request, lambda stream, data: self._report(StepOutput(stream, data))) as outcome:
            _check(outcome)
            with self._kit.making(files.find_place) as making:
                # The root's time is when the sandbox was made, or whatever was put beside its mount points.
                time_ns = files.root.mtime_ns if files.layers else self._kit.options.mtime_ns
                tree = replace(making.read_upper(outcome.upper), mtime_ns=time_ns)
                return self._kit.keep(making, files, tree)


def _check(outcome: RunOutcome) -> None:
    if outcome.exit_code or outcome.signal:
        ended = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        raise BuildError(f"the command ended with {ended}", hint="the steps before it are kept in the cache")
