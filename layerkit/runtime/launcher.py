"""Starts `layerkit-launch`, the static program between Python and the OCI runtime; any thread.

Used by the container backend. Python itself never unshares: it has threads, and a mount namespace is per process.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import SandboxError, UnsupportedError

_LAUNCHER = Path(__file__).parent / "_bin" / "layerkit-launch"
LOG_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Attach:
    """A detached mount and the path that it gets in the launcher's mount namespace."""

    fd: int
    path: str


def launcher_program() -> Path:
    """The static launcher that belongs to this installation.

    Raises:
        UnsupportedError: it has not been built.
    """
    if not os.access(_LAUNCHER, os.X_OK):
        hint = "install layerkit on a machine with a C compiler"
        raise UnsupportedError("layerkit-launch has not been built", where=str(_LAUNCHER), hint=hint)
    return _LAUNCHER


class Launch:
    """A program under way in a mount namespace of its own, in which mounts are attached and others hidden.

    May be used by any thread, one at a time.

    Args:
        command: absolute path and arguments.
        attach: in this order.
        hide: mount points to put something empty over first.
        inherit: fds that stay open under their numbers.
        log: gets what it says, also what processes say that it leaves behind.
        third: an fd that becomes number 3 of the program.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        attach: Sequence[Attach],
        hide: Sequence[Path],
        inherit: Sequence[int],
        log: Path,
        third: int,
    ) -> None:
        argv = [str(launcher_program()), "--run"]
        for path in hide:
            argv += ["--hide", str(path)]
        for item in attach:
            argv += ["--attach", str(item.fd), item.path]
        self._command = command
        self._log = log
        with open(log, "ab") as said:
            # No /dev/null among the three: crun gives its standard streams to the sandbox's root, also the host's
            # one null device.
            self._process = subprocess.Popen(
                [*argv, "--third", str(third), "--", *command],
                stdin=said,
                stdout=said,
                stderr=said,
                pass_fds=[*(item.fd for item in attach), *inherit, third],
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )

    def finish(self, timeout_s: float = 30.0) -> None:
        """Wait for its end; safe to repeat.

        Raises:
            SandboxError: it failed, or did not end in time and was killed; with the end of the log.
        """
        if self._process.poll() is None and not _has_ended(self._process.pid, timeout_s):
            self._process.kill()
            self._process.wait()
            raise SandboxError(f"no end after {timeout_s} s: {' '.join(self._command)}")
        if code := self._process.wait():
            raise SandboxError(f"exit code {code} from {' '.join(self._command)}\n{log_tail(self._log)}")

    def abandon(self) -> None:
        """Kill it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _has_ended(pid: int, timeout_s: float) -> bool:
    """Whether a child ends in time; `Popen.wait` with a time limit sleeps up to 50 ms too long."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)


def log_tail(log: Path) -> str:
    """The end of what programs said into a log."""
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
