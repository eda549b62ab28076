"""Runs build steps in the container backend, on layers that the host mounts lazily.

Has the shape of build's `Executor`, which the command line hands it in for; `runtime` does not import `build`. An
executor may be used by several threads at once: every run has a sandbox and a lease of its own.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, get_args

from layerkit._util.processes import Owner
from layerkit.errors import InputError, NotRunnableError
from layerkit.runtime.bundle import Network
from layerkit.runtime.container import Container
from layerkit.runtime.limits import Limits
from layerkit.runtime.provided import scrub
from layerkit.runtime.spec import ContainerSpec, Mount, UserNamespace
from layerkit.runtime.stack import MountedLayer, StackLayer
from layerkit.runtime.stack_environment import path_additions

Output = Callable[[str, bytes], None]


class MountedStack(Protocol):
    """What the host answers to `mount_layers`."""

    @property
    def lease(self) -> str:
        """To be released."""

    @property
    def layers(self) -> Sequence[MountedLayer]:
        """In the order asked for."""


class LayerHost(Protocol):
    """The part of the host's client that a build step needs."""

    def mount_layers(self, layers: Sequence[str], *, owner: Owner, prefetch: str) -> MountedStack:
        """Mount layers and hold a lease on them for a process."""

    def release(self, lease: str) -> None:
        """Give a lease back."""


class Request(Protocol):
    """A RUN step, as build describes it: digests bottom first, what to run, and in what surroundings."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def toolkits(self) -> tuple[str, ...]: ...
    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def workdir(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def network(self) -> str: ...
    @property
    def host_trust(self) -> bool: ...
    @property
    def script(self) -> tuple[str, bytes] | None: ...
    @property
    def hostname(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended.

    Args:
        exit_code: the command's, 126 or 127 when it could not be run, 128 + signal when a signal ended it.
        upper: what it changed, an overlay upper with the sandbox's own owners; nothing of the runtime's is in it.
        signal: None when it ended by itself.
        oom_killed: the kernel killed something of it for lack of memory.
    """

    exit_code: int
    upper: Path
    signal: int | None = None
    oom_killed: bool = False


class ContainerExecutor:
    """Runs steps in containers.

    Args:
        host: mounts layers; asked by one thread at a time.
        limits: of each step.
        userns: of each step; with `require` a step cannot make device files.
        run, home: the instance's folders; those of the settings when None.
    """

    def __init__(
        self,
        host: LayerHost,
        *,
        limits: Limits | None = None,
        userns: UserNamespace = "require",
        run: Path | None = None,
        home: Path | None = None,
    ) -> None:
        self._host = host
        self._limits = limits or Limits(pids=4096)
        self._userns = userns
        self._run = run
        self._home = home
        self._lock = threading.Lock()

    @contextmanager
    def run(self, request: Request, output: Output) -> Iterator[Outcome]:
        """Run a step; inside the `with` block its upper directory can be read, afterwards everything is gone.

        Args:
            request: what to run.
            output: called with "stdout" or "stderr" and each piece, in the caller's thread.

        Raises:
            UnsupportedError, HostError, SandboxError: the step could not be run; a step that ran and failed has its
                exit code in the outcome.
        """
        with self._lock:
            stack = self._host.mount_layers(
                [*request.layers, *request.toolkits], owner=Owner.current(), prefetch="none"
            )
        try:
            with (
                _script_file(request.script) as script,
                Container.start(self._spec(request, stack, script), run=self._run, home=self._home) as sandbox,
            ):
                code, signal, oom_killed = _execute(sandbox, request, output)
                upper, provided = sandbox.upper, sandbox.assembly.provided
                sandbox.halt()
                scrub(upper, provided)
                yield Outcome(code, upper, signal, oom_killed)
        finally:
            with self._lock:
                self._host.release(stack.lease)

    def _spec(self, request: Request, stack: MountedStack, script: Sequence[Mount]) -> ContainerSpec:
        configs = [StackLayer.of(layer).config for layer in stack.layers]
        return ContainerSpec(
            lowers=[layer.path for layer in reversed(stack.layers)],
            env=request.env,
            workdir=request.workdir or "/",
            user=request.user,
            path_additions=path_additions(configs),
            limits=self._limits,
            network=_network(request.network),
            mounts=[*script, *_toolkit_mounts(stack.layers[len(request.layers) :])],
            hostname=request.hostname,
            userns=self._userns,
            host_trust=request.host_trust,
        )


def _network(name: str) -> Network:
    for known in get_args(Network):
        if name == known:
            return cast("Network", known)
    raise InputError(f"not a network: {name!r}", hint="there are none, nat and host")


def _toolkit_mounts(toolkits: Sequence[MountedLayer]) -> list[Mount]:
    """The prefixes of required toolkits over themselves, read-only: what is in the overlay could be written to."""
    mounts = []
    for toolkit in toolkits:
        for prefix in StackLayer.of(toolkit).config.prefixes:
            mounts.append(Mount(toolkit.path / prefix.lstrip("/"), prefix, readonly=True))
    return mounts


@contextmanager
def _script_file(script: tuple[str, bytes] | None) -> Iterator[list[Mount]]:
    """A script as a read-only file of mode 0755, mounted where the command expects it."""
    if script is None:
        yield []
        return
    path, content = script
    with tempfile.TemporaryDirectory(prefix="layerkit-script-") as folder:
        host = Path(folder) / "script"
        host.write_bytes(content)
        host.chmod(0o755)
        Path(folder).chmod(0o755)
        yield [Mount(host, path, readonly=True)]


def _execute(sandbox: Container, request: Request, output: Output) -> tuple[int, int | None, bool]:
    """Run the step's command; one that cannot be run has a shell's exit code and message."""
    try:
        done = sandbox.exec(
            request.argv,
            stdout=lambda piece: output("stdout", piece),
            stderr=lambda piece: output("stderr", piece),
        )
    except NotRunnableError as error:
        output("stderr", os.fsencode(f"{error}\n"))
        return error.exit_code, None, False
    return done.exit_code, done.signal, done.oom_killed
