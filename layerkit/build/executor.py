"""What the compiler needs from whoever runs a step; the command line supplies it (`runtime.executor`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Output = Callable[[str, bytes], None]
"""Called with 'stdout' or 'stderr' and the bytes as they come."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One RUN.

    Attributes:
        layers: digests of the layers below, bottom first.
        toolkits: digests of required toolkits, in their order; mounted above the layers, their prefixes read-only.
        argv: the command; looked up in the sandbox's own PATH.
        env: the whole environment.
        workdir: absolute path in the sandbox.
        user: `name`, `uid` or `uid:gid`; '' is root.
        network: none, nat or host.
        host_trust: whether the host's CA bundle is shown inside.
        script: absolute path and content of a file shown read-only with mode 0755 while the command runs, or None.
        hostname: a fixed name, so that nothing of the host gets into the layer.
    """

    layers: tuple[str, ...]
    toolkits: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str
    network: str
    host_trust: bool
    script: tuple[str, bytes] | None = None
    hostname: str = "layerkit-build"


class RunOutcome(Protocol):
    """How it ended, and the overlay's upper directory with the owners as the sandbox saw them."""

    @property
    def exit_code(self) -> int:
        """The command's, 126 or 127 when it could not be run, 128 + signal when a signal ended it."""
        ...

    @property
    def signal(self) -> int | None:
        """What ended it, None when it ended by itself."""
        ...

    @property
    def upper(self) -> Path:
        """Exists until the context ends."""
        ...


class Executor(Protocol):
    """Runs steps in sandboxes. `run` cleans up when its context ends; the upper directory lives until then."""

    def run(self, request: RunRequest, output: Output) -> AbstractContextManager[RunOutcome]:
        """Run the command on the layers, in a network and mount namespace of its own."""
        ...
