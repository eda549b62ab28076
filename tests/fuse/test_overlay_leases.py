"""A lease on its way from a process to the overlay that the process asked for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerkit._util.processes import Owner, start_time
from layerkit.errors import InputError
from layerkit.fuse.overlay_table import OverlayTable
from layerkit.fuse.requests import OverlayRequest
from tests.fuse.conftest import HostThread
from tests.fuse.host_support import MadeLayer, make_store, publish, sample_files

pytestmark = pytest.mark.privileged

StartHost = Callable[..., HostThread]


@pytest.fixture
def layer(clean_instance: Path) -> MadeLayer:
    return publish(make_store(), "a", sample_files(41, count=3))


def request_for(mounted: dict[str, Any], target: Path) -> OverlayRequest:
    return OverlayRequest([mounted["layers"][0]["path"]], target, mounted["lease"], False, "", "", False)


def test_r35_a_client_that_dies_while_its_overlay_is_mounted_takes_no_layer_away(
    start_host: StartHost, layer: MadeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start_host()
    client = subprocess.Popen(["sleep", "100"])
    mounted = host.mount(layer.ref, owner=Owner(client.pid, start_time(client.pid) or 0))
    add = OverlayTable.add

    def slow_add(*arguments: Any, **options: Any) -> Any:
        client.kill()
        client.wait()
        time.sleep(1.5)  # longer than the reaper's pause
        return add(*arguments, **options)

    monkeypatch.setattr(OverlayTable, "add", slow_add)
    target = tmp_path / "m"
    target.mkdir()
    host.run(host.host.overlay(request_for(mounted, target)))
    found = host.host.mounts.find(layer.digest)
    assert found is not None
    assert found.leases == {mounted["lease"]}
    layer.check(target)


def test_a_refused_overlay_leaves_the_lease_with_its_process(
    start_host: StartHost, layer: MadeLayer, tmp_path: Path
) -> None:
    host = start_host()
    mounted = host.mount(layer.ref)
    with pytest.raises(InputError):
        host.run(host.host.overlay(request_for(mounted, tmp_path / "missing")))
    lease = host.host.leases.get(mounted["lease"])
    assert (lease.owner, lease.mount) == (Owner.current(), "")


def test_a_lease_of_an_overlay_that_never_came_ends_with_the_next_hostd(
    start_host: StartHost, layer: MadeLayer
) -> None:
    host = start_host()
    lease = host.host.leases.get(host.mount(layer.ref)["lease"])
    lease.owner, lease.mount = None, "/nowhere"
    host.host.leases.save(lease)
    host.stop(unmount=False)
    host = start_host()
    assert host.host.leases.all() == []
