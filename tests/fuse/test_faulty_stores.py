"""Stores that fail, as scripted: right bytes or an error, never zeros, and the cause is told."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layerkit._util.files import write_durable
from layerkit.errors import CorruptError, UnavailableError
from layerkit.fuse.host import HostOptions
from layerkit.fuse.stores import Stores
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.locator import Locator
from layerkit.store.store import Store, open_store
from layerkit.store.wrappers import Retrying, RetryPolicy, Verifying
from tests.fuse.conftest import HostThread
from tests.fuse.host_support import MadeLayer, make_store, publish, sample_files, wait_until

pytestmark = pytest.mark.privileged

StartHost = Callable[..., HostThread]


class FaultyStores(Stores):
    """Stores whose directories fail as `script` says, below retry and verification as in real ones."""

    def __init__(self, *script: Fault) -> None:
        super().__init__(self._faulty)
        self.script = list(script)
        self.only = ""

    def _faulty(self, url: str) -> Store:
        store = open_store(url)
        if self.only in url:
            retrying = store.objects
            assert isinstance(retrying, Retrying)
            assert isinstance(retrying.inner, Verifying)
            faults = ScriptedFaults(retrying.inner.inner, [])
            faults.script = self.script
            store.objects = Retrying(Verifying(faults), RetryPolicy(first_s=0.01, most_s=0.05, deadline_s=0.3))
        return store


def packs(kind: FaultKind, **options: int | float | None) -> Fault:
    return Fault(kind, "get_range", "packs/*", **options)  # type: ignore[arg-type]


def read(path: Path) -> bytes | int:
    """The file's bytes, or the errno."""
    try:
        return path.read_bytes()
    except OSError as error:
        return error.errno or 0


@pytest.fixture
def layer(clean_instance: Path) -> MadeLayer:
    return publish(make_store(), "a", sample_files(11, count=4))


@pytest.mark.parametrize(
    "kind",
    [FaultKind.EMPTY, FaultKind.SHORT, FaultKind.LONG, FaultKind.WRONG_RANGE, FaultKind.HTML, FaultKind.WHOLE_OBJECT,
     FaultKind.FLIPPED],
    ids=lambda kind: kind.value,
)  # fmt: skip
def test_l13_wrong_bodies_are_never_data(start_host: StartHost, layer: MadeLayer, kind: FaultKind) -> None:
    stores = FaultyStores(packs(kind, times=None))
    host = start_host(stores=stores)
    folder = host.mount_one(layer.ref)
    for name in ("big", "hole", "block"):
        assert read(folder / name) in (errno.EIO, layer.files[name]), name
    assert read(folder / "big") == errno.EIO
    errors = host.host.errors.listing()
    assert {error["code"] for error in errors} <= {"corrupt", "unavailable"}
    assert any(error["where"] in layer.packs or error["where"].startswith("packs/") for error in errors), errors
    stores.script.clear()
    wait_until(lambda: read(folder / "big") == layer.files["big"])
    layer.check(folder)


def test_l15_a_failed_fetch_is_not_done(start_host: StartHost, layer: MadeLayer) -> None:
    stores = FaultyStores(packs(FaultKind.DENIED, times=1))
    host = start_host(stores=stores)
    folder = host.mount_one(layer.ref)
    # The kernel may ask again by itself.
    assert read(folder / "big") in (errno.EIO, layer.files["big"])
    assert any(error["code"] == "denied" for error in host.host.errors.listing())
    layer.check(folder)


def test_l16_unavailable_thrice_at_mount_time_then_well(start_host: StartHost, layer: MadeLayer) -> None:
    stores = FaultyStores(Fault(FaultKind.UNAVAILABLE, "get*", "*", times=3), packs(FaultKind.UNAVAILABLE, times=3))
    layer.check(start_host(stores=stores).mount_one(layer.ref))


def test_l16_a_failed_mount_can_be_tried_again(start_host: StartHost, layer: MadeLayer) -> None:
    stores = FaultyStores(Fault(FaultKind.UNAVAILABLE, "get*", "*", times=None))
    host = start_host(stores=stores)
    with pytest.raises(UnavailableError):
        host.mount(layer.ref)
    assert not host.host.leases.all()
    stores.script.clear()
    layer.check(host.mount_one(layer.ref))


def test_l12_bounded_time_to_eio_and_the_cause_is_told(start_host: StartHost, layer: MadeLayer) -> None:
    options = HostOptions(linger_s=0.05, deadline_s=0.5, budget_bytes=1 << 30)
    stores = FaultyStores(packs(FaultKind.DELAY, times=None, delay_s=3.0))
    host = start_host(stores=stores, options=options)
    folder = host.mount_one(layer.ref)
    began = time.monotonic()
    with (folder / "block").open("rb", buffering=0) as file, pytest.raises(OSError, match="Input/output"):
        os.pread(file.fileno(), 4096, 0)
    assert time.monotonic() - began < 2.5
    assert any("did not deliver within" in error["message"] for error in host.host.errors.listing())
    stores.script.clear()
    wait_until(lambda: read(folder / "block") == layer.files["block"])


def test_store_away_and_back(start_host: StartHost, layer: MadeLayer) -> None:
    root = Path(os.environ["LAYERKIT_STORE"])
    host = start_host(options=HostOptions(linger_s=0.05, deadline_s=2.0, budget_bytes=1 << 30))
    folder = host.mount_one(layer.ref)
    assert read(folder / "small") == layer.files["small"]
    assert read(folder / "d0/f0") == layer.files["d0/f0"]
    root.rename(root.with_name("away"))
    assert read(folder / "d0/f0") == layer.files["d0/f0"], "what is cached reads"
    assert read(folder / "big") == errno.EIO
    assert host.host.errors.listing()
    root.with_name("away").rename(root)
    wait_until(lambda: read(folder / "big") == layer.files["big"], 3.0)
    layer.check(folder)


def test_corrupt_pack_is_eio_and_named(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    folder = host.mount_one(layer.ref)
    pack = Path(os.environ["LAYERKIT_STORE"]) / layer.packs[0]
    good = pack.read_bytes()
    pack.chmod(0o644)
    pack.write_bytes(good[:2000] + bytes(len(good) - 4000) + good[-2000:])
    assert read(folder / "big") == errno.EIO
    errors = host.host.errors.listing()
    assert any(error["code"] == "corrupt" and error["where"] == layer.packs[0] for error in errors), errors
    assert all(error["layer"] == layer.digest for error in errors)
    pack.write_bytes(good)
    layer.check(folder)


def test_a_missing_pack_makes_the_locator_be_read_anew(start_host: StartHost, layer: MadeLayer) -> None:
    store = make_store()
    host = start_host()
    folder = host.mount_one(layer.ref)
    # As a rewrite of packs does it: other packs, a new locator, the old ones gone.
    old = store.get_locator(layer.digest)
    twin = publish(store, "twin", {"other": b"x" * 5000, **layer.files})
    assert set(twin.packs) != set(layer.packs)
    by_id = _places(store, twin.digest)
    index = host.host.layers.find(layer.digest)
    assert index is not None
    ids = [index.layer.chunk_index.stored_id(number) for number in range(len(old))]
    moved = Locator.build(by_id[identity] for identity in ids)
    store.objects.put(f"locators/{layer.digest[7:9]}/{layer.digest[7:]}", moved.to_bytes())
    for pack in set(layer.packs) - set(twin.packs):
        store.objects.delete(pack)
    layer.check(folder)
    assert index.layer.locator[0] == 1, "read anew once"


def _places(store: Store, digest: str) -> dict[bytes, object]:
    from layerkit.layer.chunk_index import ChunkIndex
    from layerkit.layer.manifest import Manifest

    part = Manifest.parse(store.get_manifest(digest)).chunk_index
    index = ChunkIndex.from_bytes(store.get_part(digest, "chunk_index", part.digest, part.size))
    locator = store.get_locator(digest)
    return {index.stored_id(number): locator.place(number) for number in range(len(locator))}


def test_missing_pack_for_good_is_eio(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    folder = host.mount_one(layer.ref)
    make_store().objects.delete(layer.packs[0])
    assert read(folder / "big") == errno.EIO
    assert any(error["code"] == "missing" for error in host.host.errors.listing())


def test_l27_l04_one_stalled_store_stops_nobody_else(start_host: StartHost, layer: MadeLayer, tmp_path: Path) -> None:
    bad = str(tmp_path / "bad-store")
    stuck = publish(open_store(bad, create=True), "stuck", sample_files(12, count=3))
    stores = FaultyStores()
    stores.only = "bad-store"
    host = start_host(stores=stores, options=HostOptions(linger_s=0.05, deadline_s=4.0, budget_bytes=1 << 30))
    stuck_folder = host.mount_one(stuck.ref, store=bad)
    stores.script.append(Fault(FaultKind.DELAY, "*", "*", times=None, delay_s=6.0))
    import threading

    results: list[bytes | int] = []
    readers = [
        threading.Thread(target=lambda name=name: results.append(read(stuck_folder / name)))
        for name in stuck.files
        if len(stuck.files[name]) > 4096
    ]
    for reader in readers:
        reader.start()
    wait_until(lambda: host.host.ensure_server.waiting > 0)
    began = time.monotonic()
    layer.check(host.mount_one(layer.ref))
    assert time.monotonic() - began < 2.0
    with pytest.raises(UnavailableError):
        host.mount("base/other", store=bad)
    for reader in readers:
        reader.join(30)
    assert errno.EIO in results
    assert any(error["store"] == bad for error in host.host.errors.listing())
    stores.script.clear()


def test_damaged_parts_never_reach_the_kernel(start_host: StartHost, layer: MadeLayer) -> None:
    store = make_store()
    host = start_host()
    for name in ("meta.zst", "index.zst", "manifest.json", "config.json"):
        path = Path(os.environ["LAYERKIT_STORE"]) / "layers" / layer.digest[7:9] / layer.digest[7:] / name
        good = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(good[:-10] + bytes([good[-10] ^ 1]) + good[-9:])
        with pytest.raises(CorruptError):
            host.mount(layer.ref)
        path.write_bytes(good)
    assert store.has_layer(layer.digest)
    layer.check(host.mount_one(layer.ref))


def test_l11_flipped_bits_in_this_hosts_files_are_fetched_anew(start_host: StartHost, layer: MadeLayer) -> None:
    host = start_host()
    host.mount_one(layer.ref)
    host.stop()
    files = Path(os.environ["LAYERKIT_HOME"]) / "host" / "layers" / layer.digest[7:]
    for name in ("meta", "index", "config", "manifest", "locator", "layer.json"):
        good = (files / name).read_bytes()
        write_durable(files / name, good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
        host = start_host()
        layer.check(host.mount_one(layer.ref))
        assert (files / name).read_bytes() == good or name in ("locator", "layer.json"), name
        host.stop()
