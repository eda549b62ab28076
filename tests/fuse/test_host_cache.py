"""What survives, what goes: durable maps over boots, replaced data files, the cache's budget, dedupe between layers."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layerkit.fuse.erofs_mount import mounts_below
from layerkit.fuse.host import HostOptions
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.paths import HostPaths, LayerPaths
from layerkit.fuse.stores import Stores
from layerkit.store.store import Store, open_store
from tests.fuse.conftest import HostThread
from tests.fuse.host_support import MadeLayer, make_store, publish, sample_files, wait_until

pytestmark = pytest.mark.privileged

FRAME = 600_000  # the new chunk brings its frame

StartHost = Callable[..., HostThread]


@pytest.fixture
def layer(clean_instance: Path) -> MadeLayer:
    return publish(make_store(), "a", sample_files(31, count=6))


def files_of(layer: MadeLayer) -> LayerPaths:
    return HostPaths.from_settings().layer(layer.digest)


def opened(host: HostThread, layer: MadeLayer) -> HostLayer:
    found = host.host.layers.find(layer.digest)
    assert found is not None
    return found.layer


def forget_boot() -> None:
    """What a boot does to an instance: the run folder is gone."""
    shutil.rmtree(HostPaths.from_settings().run)


def fill(host: HostThread, layer: MadeLayer) -> None:
    folder = host.mount_one(layer.ref)
    layer.check(folder)
    assert opened(host, layer).is_complete


def test_l10_after_a_boot_chunks_are_checked_once_and_not_fetched(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.stop()
    forget_boot()
    shutil.rmtree(Path(os.environ["LAYERKIT_STORE"]) / "packs")
    host = start_host()
    folder = host.mount_one(layer.ref)
    assert not opened(host, layer).is_complete, "present, unverified"
    layer.check(folder)
    assert opened(host, layer).is_complete
    assert host.host.counts.get("checked_bytes") > 0
    assert host.host.counts.get("fetched_bytes") == 0


def test_l10_data_lost_between_data_and_map_is_fetched_anew(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.stop()
    forget_boot()
    # As if the machine had lost power before the data was on disk, but after the map was.
    with files_of(layer).data.open("r+b") as data:
        data.seek(4096 * 3)
        data.write(bytes(600_000))
    host = start_host()
    layer.check(host.mount_one(layer.ref))
    assert host.host.counts.get("damaged_chunks") > 0
    assert host.host.counts.get("fetched_bytes") > 0


def test_l11_one_flipped_byte_in_the_cache_is_found(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.stop()
    forget_boot()
    with files_of(layer).data.open("r+b") as data:
        data.seek(5000)
        byte = data.read(1)
        data.seek(5000)
        data.write(bytes([byte[0] ^ 1]))
    host = start_host()
    layer.check(host.mount_one(layer.ref))
    assert host.host.counts.get("damaged_chunks") == 1


def test_l11_a_check_of_the_cache_finds_it_without_a_boot(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.release_all()
    wait_until(lambda: not mounts_below(host.host.paths.mounts))
    with files_of(layer).data.open("r+b") as data:
        data.seek(5000)
        data.write(b"damaged")
    (found,) = host.run(host.host.check_cache())
    assert found.digest == layer.digest
    assert found.checked == opened(host, layer).present.bits
    assert len(found.damaged) == 1
    assert any("damaged" in error["message"] for error in host.host.errors.listing())
    assert not opened(host, layer).is_complete
    host.stop()
    host = start_host()
    layer.check(host.mount_one(layer.ref))
    assert host.run(host.host.check_cache())[0].damaged == []


@pytest.mark.parametrize("boot", [False, True])
@pytest.mark.parametrize("how", ["deleted", "replaced", "cut", "map deleted", "all maps deleted"])
def test_l14_data_and_maps_that_do_not_belong_together(
    start_host: StartHost, layer: MadeLayer, how: str, boot: bool
) -> None:
    host = start_host()
    fill(host, layer)
    host.stop()
    if boot:
        forget_boot()
    files = files_of(layer)
    size = files.data.stat().st_size
    if how == "deleted":
        files.data.unlink()
    elif how == "replaced":
        files.data.unlink()
        with files.data.open("wb") as data:
            data.truncate(size)
    elif how == "cut":
        os.truncate(files.data, size // 2)
    elif how == "map deleted":
        files.presence.unlink()
    else:
        files.presence.unlink()
        shutil.rmtree(HostPaths.from_settings().presence, ignore_errors=True)
    host = start_host()
    layer.check(host.mount_one(layer.ref))


def test_l14_data_replaced_under_a_running_hostd(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.release_all()
    # The kernel has let go a moment before hostd knows; what is replaced in between is a typed error.
    wait_until(lambda: host.host.mounts.find(layer.digest) is None)
    assert not mounts_below(host.host.paths.mounts)
    files_of(layer).data.unlink()
    layer.check(host.mount_one(layer.ref))


def test_l14_data_deleted_under_a_mount_and_a_new_hostd(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    folder = host.mount_one(layer.ref)
    assert (folder / "d0/f0").read_bytes() == layer.files["d0/f0"]
    files_of(layer).data.unlink()
    assert (folder / "d1/f1").read_bytes() == layer.files["d1/f1"], "the open file lives on"
    host.stop(unmount=False)
    host = start_host()
    layer.check(folder)
    assert opened(host, layer).data.is_in_place


@pytest.mark.parametrize("what", ["map", "run/presence and data", "durable"])
def test_l14_maps_deleted_under_a_mount_and_a_new_hostd(start_host: StartHost, layer: MadeLayer, what: str) -> None:
    host = start_host()
    folder = host.mount_one(layer.ref)
    assert (folder / "d0/f0").read_bytes() == layer.files["d0/f0"]
    host.stop(unmount=False)
    if what != "durable":
        shutil.rmtree(HostPaths.from_settings().presence)
    if what.endswith("data"):
        files_of(layer).data.unlink()
    files_of(layer).presence.unlink(missing_ok=True)
    host = start_host()
    layer.check(folder)


def test_chunks_come_from_other_layers_of_this_host(start_host: StartHost, layer: MadeLayer) -> None:
    second = publish(make_store(), "b", {**layer.files, "new": b"n" * 3000})
    host = start_host()
    fill(host, layer)
    before = host.host.counts.get("fetched_bytes")
    second.check(host.mount_one(second.ref))
    assert host.host.counts.get("fetched_bytes") - before < FRAME
    assert host.host.counts.get("copied_bytes") > 1_000_000


def test_chunks_come_from_cached_layers_that_nobody_opened(start_host: StartHost, layer: MadeLayer) -> None:
    second = publish(make_store(), "b", {**layer.files, "new": b"n" * 3000})
    host = start_host()
    fill(host, layer)
    host.stop()
    host = start_host()
    second.check(host.mount_one(second.ref))
    assert host.host.counts.get("fetched_bytes") < FRAME


def test_a_damaged_copy_is_not_taken(start_host: StartHost, layer: MadeLayer) -> None:
    second = publish(make_store(), "b", {**layer.files, "new": b"n" * 3000})
    host = start_host()
    fill(host, layer)
    with files_of(layer).data.open("r+b") as data:
        data.write(b"\0" * 1_000_000)
    second.check(host.mount_one(second.ref))


def test_prefetch_brings_everything(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    host.mount(layer.ref, prefetch=True)
    wait_until(lambda: opened(host, layer).is_complete)
    wait_until(lambda: not host.host.prefetcher.is_running(layer.digest))


def test_budget_evicts_what_was_mounted_longest_ago(start_host: StartHost, clean_instance: Path) -> None:
    store = make_store()
    layers = [publish(store, f"n{n}", sample_files(40 + n, count=3)) for n in range(3)]
    host = start_host(options=HostOptions(linger_s=0.02, deadline_s=10.0, budget_bytes=1 << 30))
    for layer in layers:
        fill(host, layer)
        os.utime(files_of(layer).record, (time.time() + layers.index(layer), time.time() + layers.index(layer)))
    freed = host.run(host.host.prune(0))
    assert freed["evicted"] == [], "all are in use"
    assert host.run(host.host.cache.describe())["over_budget"] is False
    host.release_all()
    wait_until(lambda: not mounts_below(host.host.paths.mounts))
    usage = host.run(host.host.cache.describe())
    one = usage["layers"][0]["allocated_bytes"]
    done = host.run(host.host.prune(usage["used_bytes"] - one // 2))
    assert done["evicted"] == [layers[0].digest]
    assert not files_of(layers[0]).folder.exists()
    assert done["used_bytes"] == host.run(host.host.cache.describe())["used_bytes"]
    layers[0].check(host.mount_one(layers[0].ref))


def test_l35_a_budget_below_the_working_set(start_host: StartHost, clean_instance: Path) -> None:
    store = make_store()
    layers = [publish(store, f"n{n}", sample_files(50 + n, count=3)) for n in range(4)]
    budget = 4 << 20
    host = start_host(options=HostOptions(linger_s=0.0, deadline_s=10.0, budget_bytes=budget))
    for _ in range(2):
        for layer in layers:
            lease = host.mount(layer.ref, prefetch=True)
            layer.check(Path(lease["layers"][0]["path"]))
            host.call(host.host.release, lease["lease"])
            wait_until(lambda: not mounts_below(host.host.paths.mounts))
            # A flush of a presence map may come between.
            wait_until(lambda: host.run(host.host.prune(budget))["used_bytes"] <= budget)
            assert not host.host.cache.is_over


def test_l40_a_layer_that_an_invisible_mount_reads_stays(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    lease = host.mount(layer.ref)
    folder = Path(lease["layers"][0]["path"])
    with (folder / "big").open("rb", buffering=0) as file:
        host.call(host.host.release, lease["lease"])
        wait_until(lambda: not mounts_below(host.host.paths.mounts))
        assert host.run(host.host.prune(0))["evicted"] == []
        assert files_of(layer).data.exists()
        assert file.read() == layer.files["big"], "read through the detached mount"
    wait_until(lambda: host.run(host.host.prune(0))["evicted"] == [layer.digest])


class GatedStores(Stores):
    """Stores whose reads of locators wait for a gate: a mount that is being set up."""

    def __init__(self) -> None:
        super().__init__(self._gated)
        self.gate = threading.Event()
        self.waits = threading.Event()

    def _gated(self, url: str) -> Store:
        store = open_store(url)
        get_locator = store.get_locator

        def slow(digest: str) -> object:
            self.waits.set()
            assert self.gate.wait(20)
            return get_locator(digest)

        store.get_locator = slow  # type: ignore[method-assign, assignment]
        return store


def test_l08_a_mount_that_is_being_set_up_is_not_evicted(start_host: StartHost, layer: MadeLayer) -> None:
    stores = GatedStores()
    host = start_host(stores=stores)
    mounted: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: mounted.append(host.mount(layer.ref)))
    thread.start()
    assert stores.waits.wait(10)
    wait_until(lambda: bool(host.host.leases.all()))
    assert host.run(host.host.prune(0))["evicted"] == []
    stores.gate.set()
    thread.join(20)
    folder = Path(mounted[0]["layers"][0]["path"])  # type: ignore[index]
    layer.check(folder)
    assert host.run(host.host.prune(0))["evicted"] == []
    layer.check(folder)


def test_l09_disk_use_is_flat_over_unclean_restarts(start_host: StartHost, layer: MadeLayer) -> None:
    paths = HostPaths.from_settings()

    def files() -> list[str]:
        return sorted(
            str(entry.relative_to(root))
            for root in (paths.home / "host", paths.run)
            for entry in root.rglob("*")
            if entry.parent.name != "fuse" and not str(entry).startswith(str(paths.mounts))
        )

    seen = []
    for _ in range(6):
        host = start_host()
        layer.check(host.mount_one(layer.ref))
        host.run(host.host.layers.flush())
        # What a kill leaves behind: half of an intake, temporary files, folders of writable mounts.
        (paths.layers / ("f" * 64)).mkdir(exist_ok=True)
        (paths.layers / ("f" * 64) / "meta").write_bytes(b"half")
        (files_of(layer).folder / ".tmp-0011223344556677").write_bytes(b"x" * 5000)
        (paths.layers / ".tmp-8899").mkdir(exist_ok=True)
        (paths.writables / "abc" / "upper").mkdir(parents=True, exist_ok=True)
        host.stop()
        host = start_host()
        seen.append(files())
        host.stop()
    assert seen[0] == seen[-1]
    assert not any(".tmp-" in name or "ffff" in name or "abc" in name for name in seen[-1])


def test_l14_home_removed_under_a_running_host(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    fill(host, layer)
    host.release_all()
    wait_until(lambda: not mounts_below(HostPaths.from_settings().mounts))
    shutil.rmtree(files_of(layer).folder.parent)
    layer.check(host.mount_one(layer.ref))
