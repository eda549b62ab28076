"""hostd, the daemon of an instance: its process, locks, signals and sockets. `layerkit hostd` runs it in front.

`python -m layerkit.fuse.hostd` is how `fuse.starting` starts it. SIGTERM and SIGINT end it gracefully: what came is
made durable, mounts and the FUSE server stay for the next one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from layerkit._util.files import make_dirs
from layerkit._util.unix_sockets import socket_address
from layerkit.errors import HostError, LayerkitError
from layerkit.fuse.api import Api
from layerkit.fuse.cgroup_home import leave_own_cgroups
from layerkit.fuse.host import Host, HostOptions
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.starting import (
    detach,
    is_listening,
    prepare_run_dir,
    report_ready,
    set_up_logging,
    take_ready_fd,
)

log = logging.getLogger("layerkit.host")

_SHUTDOWN_S = 2.0
_LOOK_S = 1.0
"""How often hostd looks whether its socket is still in place."""

_ENDING_S = 5.0
"""How long a new hostd waits for one that ends: it looks, answers what it was asked, and syncs."""


def _lock_home(path: Path) -> int:
    """Hold the home for this process's life: one writer of data files. One that is just ending is waited for.

    Raises:
        HostError: another hostd holds it.
    """
    make_dirs(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _ENDING_S
    try:
        while not _try_lock(fd) and time.monotonic() < deadline:
            time.sleep(0.02)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise HostError(
            f"another hostd (pid {holder}) uses this home", where=str(path.parent),
            hint="two instances need a LAYERKIT_HOME each",
        ) from error  # fmt: skip
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with socket_address(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen(128)
    return listener


def _find_inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


async def _wait_for_end(stopped: asyncio.Event, paths: HostPaths) -> None:
    """Until told to end, or until nobody can reach this hostd: a socket was removed, or is another's by now."""
    sockets = {path: _find_inode(path) for path in (paths.api_socket, paths.ensure_socket)}
    while not stopped.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), _LOOK_S)
        lost = [path for path, inode in sockets.items() if inode is None or _find_inode(path) != inode]
        if lost and not stopped.is_set():
            log.error("%s was removed or replaced; the next hostd takes over", lost[0])
            stopped.set()
    if _find_inode(paths.api_socket) == sockets[paths.api_socket]:
        paths.api_socket.unlink(missing_ok=True)


async def _serve(paths: HostPaths, ready_fd: int | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    host = Host(paths, HostOptions.from_settings())
    await host.start()
    runner = web.AppRunner(Api(host, stopped.set).application(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    await web.SockSite(runner, _listen(paths.api_socket)).start()
    log.info("hostd %d serves %s", os.getpid(), paths.run)
    report_ready(ready_fd, {"pid": os.getpid()})
    await _wait_for_end(stopped, paths)
    log.info("hostd ends")
    await runner.shutdown()
    await host.close()
    await runner.cleanup()


def run_hostd(ready_fd: int | None = None) -> None:
    """Run hostd until it is told to end.

    Args:
        ready_fd: a pipe for one line of JSON: {"pid"} once it serves, {"error"} when it cannot.

    Raises:
        HostError: it cannot serve: another one does, or the folders are not ours.
    """
    paths = HostPaths.from_settings()
    try:
        prepare_run_dir(paths)
        set_up_logging(paths.log)
        lock = _lock_home(paths.lock)
        if is_listening(paths.api_socket):
            raise HostError("another hostd serves this run folder", where=str(paths.run))
    except (OSError, LayerkitError) as error:
        report_ready(ready_fd, {"error": str(error)})
        raise HostError(str(error)) from error
    try:
        asyncio.run(_serve(paths, ready_fd))
    except Exception:
        log.exception("hostd ends with an error")
        raise
    finally:
        os.close(lock)


def main() -> None:
    """Entry of the detached process."""
    ready_fd = take_ready_fd(sys.argv)
    detach("hostd")
    try:
        run_hostd(ready_fd)
    finally:
        leave_own_cgroups(HostPaths.from_settings().run, "hostd")
        logging.shutdown()
        sys.stderr.flush()
        # Threads that hang in a dead store must not hold the process; everything durable is written.
        os._exit(0)


if __name__ == "__main__":
    main()
