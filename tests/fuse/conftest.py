"""A private instance for host tests: hostd inside the test (with scripted faults) or as the real daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from layerkit._util import syscalls
from layerkit._util.processes import Owner
from layerkit.fuse.cgroup_home import remove_cgroups
from layerkit.fuse.client import HostClient
from layerkit.fuse.frontends import Frontend
from layerkit.fuse.fuse_process import FuseProcess
from layerkit.fuse.host import Host, HostOptions
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.requests import MountRequest
from layerkit.fuse.stores import Stores
from tests.fuse.host_support import mounts_of, processes_of, wait_until

T = TypeVar("T")


class HostThread:
    """A Host whose event loop runs in a thread of its own, so that the test may read from its mounts."""

    def __init__(self, host_of: Callable[[], Host]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.host = self.run(self._make(host_of))

    async def _make(self, host_of: Callable[[], Host]) -> Host:
        host = host_of()
        await host.start()
        return host

    def run(self, work: Awaitable[T], timeout_s: float = 60.0) -> T:
        """The result of a coroutine in the host's loop."""

        async def wrapped() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop).result(timeout_s)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """A plain function in the host's loop."""

        async def wrapped() -> T:
            return function(*arguments)

        return self.run(wrapped())

    def mount(
        self, *layers: str, store: str = "", frontend: str = "auto", prefetch: bool = False, owner: Owner | None = None
    ) -> dict[str, Any]:
        """mount_layers for this process."""
        store = store or os.environ["LAYERKIT_STORE"]
        request = MountRequest(list(layers), store, owner or Owner.current(), prefetch, frontend)
        return self.run(self.host.mount_layers(request))

    def mount_one(self, layer: str, **options: Any) -> Path:
        """Mount one layer; its mount point."""
        return Path(self.mount(layer, **options)["layers"][0]["path"])

    def release_all(self) -> None:
        """End every lease."""
        for lease in self.host.leases.all():
            self.call(self.host.release, lease.id)

    def stop(self, *, unmount: bool = True) -> None:
        """End the host; with `unmount` nothing of it is left."""
        if unmount:
            self.run(self.host.umount_all())
        self.run(self.host.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def clean_up(folder: Path) -> list[str]:
    """Undo whatever is left of an instance; what that was."""
    left = [f"process {pid}" for pid in processes_of(folder)] + [f"mount {os.fsdecode(m)}" for m in mounts_of(folder)]
    for point in reversed(mounts_of(folder)):
        syscalls.umount2(point, syscalls.MNT_DETACH)
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(folder))
    for name in ("hostd", "fuse"):
        remove_cgroups(folder / "run", name)
    return left


@pytest.fixture
def clean_instance(instance: Path) -> Iterator[Path]:
    """An instance of which nothing may be left at the end."""
    yield instance
    left = clean_up(instance)
    assert not left, left


@pytest.fixture
def options() -> HostOptions:
    return HostOptions(linger_s=0.05, deadline_s=10.0, budget_bytes=1 << 30)


@pytest.fixture
def start_host(clean_instance: Path, options: HostOptions) -> Iterator[Callable[..., HostThread]]:
    """Start a Host in a thread; keyword arguments as of Host. All are stopped at the end."""
    started: list[HostThread] = []

    def start(
        *,
        stores: Stores | None = None,
        frontends: Callable[[HostPaths, FuseProcess], Sequence[Frontend]] | None = None,
        options: HostOptions = options,
    ) -> HostThread:
        paths = HostPaths.from_settings()
        paths.run.mkdir(mode=0o700, exist_ok=True)
        thread = HostThread(lambda: Host(paths, options, stores=stores, frontends=frontends))
        started.append(thread)
        return thread

    yield start
    for thread in started:
        if thread._thread.is_alive():
            thread.stop()


@pytest.fixture
def hostd(clean_instance: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], HostClient]]:
    """Connect to the instance's real hostd, which is started; it is shut down at the end."""
    monkeypatch.setenv("LAYERKIT_LINGER", "0.1")
    monkeypatch.setenv("LAYERKIT_FETCH_DEADLINE", "10")
    clients: list[HostClient] = []

    def connect() -> HostClient:
        clients.append(HostClient.connect())
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
    if processes_of(clean_instance) or mounts_of(clean_instance):
        with HostClient.connect() as client:
            client.shutdown()
    wait_until(lambda: not processes_of(clean_instance))
