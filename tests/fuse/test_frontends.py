"""The contract of frontends: whatever brings the data, the mount reads like the layer."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from layerkit._util.process import run_program
from layerkit.errors import HostError, MissingError, RefError, UnsupportedError
from layerkit.fuse.erofs_mount import mounts_below
from layerkit.fuse.frontends import Frontend, FuseFrontend, LocalFrontend
from layerkit.fuse.fuse_process import FuseProcess
from layerkit.fuse.paths import HostPaths
from tests.fuse.conftest import HostThread
from tests.fuse.host_support import make_store, mounts_of, publish, sample_files, wait_until

pytestmark = pytest.mark.privileged

StartHost = Callable[..., HostThread]
Maker = Callable[[HostPaths, FuseProcess], Sequence[Frontend]]

FRONTENDS: dict[str, Maker] = {
    "local": lambda paths, process: [LocalFrontend()],
    "local-loop": lambda paths, process: [LocalFrontend(loop=True)],
    "fuse": lambda paths, process: [FuseFrontend(paths, process)],
    "fuse-flat": lambda paths, process: [FuseFrontend(paths, process, view="flat")],
    "fuse-old": lambda paths, process: [FuseFrontend(paths, process, view="old")],
}


@pytest.fixture(params=sorted(FRONTENDS))
def host(request: pytest.FixtureRequest, start_host: StartHost) -> HostThread:
    return start_host(frontends=FRONTENDS[request.param])


def test_every_byte_is_right_cold_and_warm(host: HostThread) -> None:
    layer = publish(make_store(), "a", sample_files(1))
    mounted = host.mount(layer.ref)
    assert mounted["layers"][0]["digest"] == layer.digest
    assert mounted["layers"][0]["config"]["name"] == "a"
    folder = Path(mounted["layers"][0]["path"])
    layer.check(folder)
    layer.check(folder)
    found = {os.path.relpath(os.path.join(top, name), folder) for top, _, names in os.walk(folder) for name in names}
    assert found == set(layer.files)
    host.run(host.host.layers.flush())


def test_random_reads_by_many_threads(host: HostThread) -> None:
    layer = publish(make_store(), "a", sample_files(2, count=20))
    folder = host.mount_one(layer.ref)
    wrong: list[str] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            path = rng.choice(sorted(layer.files))
            data = layer.files[path]
            at, size = rng.randrange(len(data) + 1), rng.choice((1, 4096, 70_000, 1 << 20))
            with (folder / path).open("rb", buffering=0) as file:
                if os.pread(file.fileno(), size, at) != data[at : at + size]:
                    wrong.append(f"{path} {at} {size}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_page_faults_read_too(host: HostThread) -> None:
    layer = publish(make_store(), "a", sample_files(3))
    folder = host.mount_one(layer.ref)
    # In a process of its own: Python holds its lock during a page fault, and the host lives in this one.
    script = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);"
        "sys.stdout.buffer.write(bytes(mapped[at] for at in range(len(mapped) - 1, 0, -50_000)))"
    )
    done = run_program([sys.executable, "-c", script, folder / "big"], timeout_s=60)
    data = layer.files["big"]
    assert done.stdout == bytes(data[at] for at in range(len(data) - 1, 0, -50_000))


def test_l31_layers_without_data(host: HostThread) -> None:
    store = make_store()
    empty = publish(store, "empty", {})
    small = publish(store, "small", {"a": b"x", "d/zeros": bytes(1 << 20), "d/none": b""})
    mounted = host.mount(empty.ref, small.digest)
    assert list(Path(mounted["layers"][0]["path"]).iterdir()) == []
    small.check(Path(mounted["layers"][1]["path"]))


def test_l28_another_layer_after_a_remount_is_seen_at_once(host: HostThread) -> None:
    store = make_store()
    one, two = publish(store, "one", sample_files(4, count=3)), publish(store, "two", sample_files(5, count=4))
    for layer in (one, two, one):
        mounted = host.mount(layer.ref)
        path = Path(mounted["layers"][0]["path"])
        assert (path / "big").stat().st_size == len(layer.files["big"])
        layer.check(path)
        host.call(host.host.release, mounted["lease"])
        wait_until(lambda path=path: not path.exists())
    assert not mounts_below(host.host.paths.mounts)


def test_one_mount_for_many_leases_gone_after_the_last(host: HostThread) -> None:
    layer = publish(make_store(), "a", sample_files(6, count=3))
    leases = [host.mount(layer.ref, layer.digest) for _ in range(5)]
    assert len({entry["path"] for lease in leases for entry in lease["layers"]}) == 1
    path = Path(leases[0]["layers"][0]["path"])
    assert len(mounts_below(host.host.paths.mounts)) == 1
    for lease in leases[:-1]:
        host.call(host.host.release, lease["lease"])
    layer.check(path)
    host.call(host.host.release, leases[-1]["lease"])
    host.call(host.host.release, leases[-1]["lease"])
    wait_until(lambda: not mounts_below(host.host.paths.mounts))


def test_what_does_not_exist_holds_nothing(host: HostThread) -> None:
    layer = publish(make_store(), "a", sample_files(7, count=3))
    for wrong, error in (
        ("base/b", MissingError),
        ("base/a:7", MissingError),
        ("nonsense", RefError),
        ("sha256:12", RefError),
        ("sha256:" + "0" * 64, MissingError),
    ):
        with pytest.raises(error):
            host.mount(layer.ref, wrong)
    with pytest.raises(MissingError):
        host.mount(layer.ref, store=os.environ["LAYERKIT_HOME"] + "/none")
    assert not host.host.leases.all()
    wait_until(lambda: not mounts_below(host.host.paths.mounts))


def test_unknown_frontend_is_refused(host: HostThread) -> None:
    layer = publish(make_store(), "a", {"x": b"1"})
    with pytest.raises(UnsupportedError, match="no frontend"):
        host.mount(layer.ref, frontend="floppy")


def test_umount_all_leaves_nothing(host: HostThread, clean_instance: Path) -> None:
    layer = publish(make_store(), "a", sample_files(8, count=3))
    host.mount(layer.ref)
    done = host.run(host.host.umount_all())
    assert done == {"overlays": 0, "layers": 1, "busy": ""}
    assert mounts_of(clean_instance) == []
    assert host.host.leases.all() == []
    layer.check(host.mount_one(layer.ref))


def test_local_never_mounts_holes(start_host: StartHost) -> None:
    host = start_host(frontends=FRONTENDS["local"])
    layer = publish(make_store(), "a", sample_files(9, count=3))
    host.mount(layer.ref)
    found = host.host.layers.find(layer.digest)
    assert found is not None
    assert found.layer.is_complete, "local brings in everything first"
    found.layer.forget([0])
    with pytest.raises(HostError, match="not every chunk"):
        LocalFrontend().prepare(found.layer, found.facts)


def test_auto_is_local_when_all_is_there(start_host: StartHost) -> None:
    host = start_host()
    layer = publish(make_store(), "a", sample_files(10, count=3))
    first = host.mount(layer.ref)
    assert first["layers"][0]["frontend"] == "fuse"
    layer.check(Path(first["layers"][0]["path"]))
    found = host.host.layers.find(layer.digest)
    assert found is not None
    assert found.layer.is_complete
    host.release_all()
    wait_until(lambda: not mounts_below(host.host.paths.mounts))
    assert host.mount(layer.ref)["layers"][0]["frontend"] == "local"
