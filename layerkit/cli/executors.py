"""Hands the compiler what runs its steps: the container backend, loaded when the first step runs. `cli` only."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from layerkit.build.executor import Output, RunOutcome, RunRequest
from layerkit.cli.stacks import remove_dead_sandboxes
from layerkit.errors import UnsupportedError


class LazyExecutor:
    """An executor that costs nothing while every step comes from the cache."""

    def run(self, request: RunRequest, output: Output) -> AbstractContextManager[RunOutcome]:
        """Run a step in a container on lazily mounted layers.

        Raises:
            UnsupportedError: this process may not mount.
        """
        if os.geteuid() != 0:
            raise UnsupportedError(
                "RUN needs root: it mounts the layers below and runs in a container",
                hint="build as root, or leave RUN to a host that can; COPY, ENV and the like need nothing",
            )
        from layerkit.fuse.client import HostClient
        from layerkit.runtime.executor import ContainerExecutor

        remove_dead_sandboxes()
        return ContainerExecutor(HostClient.connect()).run(request, output)
