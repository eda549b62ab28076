"""How hostd and the FUSE server become processes of their own; standard library only; any thread.

Imported by `fuse.client` (only when nothing runs yet), hostd and the FUSE server. A started process has a scrubbed
environment, cwd `/`, a session and cgroups of its own, and reports through a pipe that it is ready or why not.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerkit._util.files import locked, make_dirs
from layerkit._util.unix_sockets import socket_address
from layerkit.errors import HostError
from layerkit.fuse.cgroup_home import enter_own_cgroups
from layerkit.fuse.paths import HostPaths

START_DEADLINE_S = 30.0
_PROBE_S = 5.0
_LOG_BYTES, _LOG_FILES = 4 << 20, 3
_KEPT_VARIABLES = ("HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSL_CERT_FILE")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READY_OPTION = "--ready-fd"


def scrubbed_environment(paths: HostPaths) -> dict[str, str]:
    """What a daemon inherits: nothing that belongs to whoever happened to start it, such as credentials."""
    kept = {
        name: value for name, value in os.environ.items() if name.startswith("LAYERKIT_") or name in _KEPT_VARIABLES
    }
    kept.pop("LAYERKIT_STORE", None)  # every request names its store
    # Absolute, because the daemon's cwd is another.
    return {**kept, "PATH": _PATH, "LAYERKIT_HOME": str(paths.home), "LAYERKIT_RUN": str(paths.run)}


def is_listening(path: Path) -> bool:
    """Whether somebody accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)  # a full backlog makes connect(2) wait
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


def prepare_run_dir(paths: HostPaths) -> None:
    """Create `run`, for its owner only.

    Raises:
        HostError: it belongs to somebody else.
    """
    make_dirs(paths.run, 0o700)
    status = paths.run.stat()
    if status.st_uid != os.geteuid():
        raise HostError(f"{paths.run} belongs to uid {status.st_uid}", hint="set LAYERKIT_RUN to a folder of your own")
    if status.st_mode & 0o077:
        paths.run.chmod(0o700)


def start_hostd(paths: HostPaths) -> None:
    """Start hostd unless one runs; return when it answers.

    Raises:
        HostError: it did not start, with the end of its error output.
    """
    prepare_run_dir(paths)
    with locked(paths.start_lock):
        if not is_listening(paths.api_socket):
            start_process("layerkit.fuse.hostd", paths)


def start_process(module: str, paths: HostPaths, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Start `python -m MODULE` detached; what it reported when it was ready.

    Raises:
        HostError: it ended or said nothing within START_DEADLINE_S.
    """
    make_dirs(paths.log.parent)
    errors = paths.log.with_name(module.rpartition(".")[2] + ".err")
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb", buffering=0) as ready, errors.open("wb") as stderr:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, _READY_OPTION, str(write_fd)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, cwd="/",
                env=scrubbed_environment(paths), start_new_session=True, pass_fds=[write_fd],
            )  # fmt: skip
        finally:
            os.close(write_fd)
        report = _read_report(ready.fileno())
        if "pid" not in report and child.poll() is None:
            child.kill()
        # The child itself has forked the daemon and ended: nobody is left a zombie.
        child.wait()
    if "pid" not in report:
        tail = errors.read_bytes()[-2000:].decode("utf-8", "replace").strip()
        reason = report.get("error") or tail or f"it said nothing within {START_DEADLINE_S:g} s"
        raise HostError(f"{module} did not start: {reason}", hint=f"see {paths.log.parent}")
    return report


def _read_report(fd: int) -> dict[str, Any]:
    deadline = time.monotonic() + START_DEADLINE_S
    data = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([fd], [], [], left)[0]:
        part = os.read(fd, 4096)
        if not part:
            break
        data += part
    with suppress(ValueError):
        report = json.loads(data)
        if isinstance(report, dict):
            return report
    return {}


def take_ready_fd(arguments: Sequence[str]) -> int | None:
    """The pipe that `start_process` passed, None when started by hand."""
    return int(arguments[arguments.index(_READY_OPTION) + 1]) if _READY_OPTION in arguments else None


def report_ready(fd: int | None, report: Mapping[str, Any]) -> None:
    """Tell whoever started this process: {"pid": …} or {"error": …}."""
    if fd is not None:
        with suppress(OSError):  # who started us may be gone
            os.write(fd, json.dumps(report).encode())
        os.close(fd)


def detach(name: str) -> None:
    """Fork, so that the starter has no child to wait for, and move to cgroups of this process's own."""
    if os.fork():
        os._exit(0)
    os.umask(0o022)
    enter_own_cgroups(HostPaths.from_settings().run, name)


def set_up_logging(path: Path) -> None:
    """Log to a file that is rotated at 4 MiB."""
    make_dirs(path.parent)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
