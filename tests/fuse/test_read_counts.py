"""What hostd says that it has read of stores: everything, metadata included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from layerkit.fuse.status import describe
from tests.fuse.conftest import HostThread
from tests.fuse.host_support import MadeLayer, make_store, publish, sample_files

pytestmark = pytest.mark.privileged


@pytest.fixture
def layer(clean_instance: Path) -> MadeLayer:
    return publish(make_store(), "a", sample_files(41, count=6))


def test_reads_are_counted_before_and_after_the_mount(start_host: Callable[..., HostThread], layer: MadeLayer) -> None:
    host = start_host()

    def counts() -> dict[str, float]:
        found = host.run(describe(host.host))["counts"]
        assert isinstance(found, dict)
        return found

    folder = host.mount_one(layer.ref)
    mounted = counts()
    assert mounted["store_reads"] > 0
    assert mounted["store_read_bytes"] > 0
    assert mounted["fetched_bytes"] == 0
    layer.check(folder)
    read = counts()
    assert read["store_read_bytes"] - mounted["store_read_bytes"] == read["fetched_bytes"] > 0
    layer.check(folder)
    assert counts()["store_read_bytes"] == read["store_read_bytes"], "what is here is not read again"
