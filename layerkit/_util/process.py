"""Every external program is started from here; standard library only; safe from any thread."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from layerkit.errors import HostError, UnsupportedError


def find_program(name: str) -> str | None:
    """The program's path, also in the system folders that a user's PATH may lack; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")


def get_program(name: str, package: str = "") -> str:
    """The program's path.

    Raises:
        UnsupportedError: it is not installed; the hint names the package.
    """
    path = find_program(name)
    if path is None:
        raise UnsupportedError(f"{name} is not installed", hint=f"install the package {package or name}")
    return path


def run_program(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = 600.0,
    pass_fds: Sequence[int] = (),
    before_exec: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end and keep its output.

    Raises:
        HostError: it failed (when `check`) or took longer than `timeout_s`; the command stands in the message ready to
            be pasted into a shell, with the end of its stderr.
    """
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, env=env,
            cwd=cwd, timeout=timeout_s, pass_fds=pass_fds, preexec_fn=before_exec, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise HostError(f"no end after {timeout_s} s: {shlex.join(command)}") from error
    except FileNotFoundError as error:
        raise UnsupportedError(f"{command[0]} is not installed") from error
    if check and done.returncode:
        tail = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise HostError(f"exit code {done.returncode} from: {shlex.join(command)}\n{tail}")
    return done
