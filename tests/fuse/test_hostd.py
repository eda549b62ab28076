"""The real daemon: started on demand, killed, restarted, stopped; mounts and readers live on."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layerkit._util.processes import Owner, start_time
from layerkit.errors import ConflictError, HostError, InputError, MissingError
from layerkit.fuse.client import HostClient
from layerkit.fuse.erofs_mount import mounts_below
from layerkit.fuse.paths import HostPaths
from tests.fuse.host_support import (
    MadeLayer,
    make_store,
    mounts_of,
    processes_of,
    publish,
    sample_files,
    wait_until,
)

pytestmark = pytest.mark.privileged

Connect = Callable[[], HostClient]


@pytest.fixture
def layer(clean_instance: Path) -> MadeLayer:
    return publish(make_store(), "a", sample_files(21, count=10))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_time(pid) is None)


def read_all(layer: MadeLayer, folder: Path, wrong: list[str], stop: threading.Event) -> None:
    rng = random.Random(threading.get_ident())
    while not stop.is_set():
        path = rng.choice(sorted(layer.files))
        data = layer.files[path]
        at = rng.randrange(len(data) + 1)
        try:
            with (folder / path).open("rb", buffering=0) as file:
                found = os.pread(file.fileno(), 50_000, at)
        except OSError as error:
            wrong.append(f"{path} {at}: {error}")
        else:
            if found != data[at : at + len(found)] or (not found and at < len(data)):
                wrong.append(f"{path} {at}: other bytes")


def test_status_and_a_warm_round_trip(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    stack = client.mount_layers([layer.ref], prefetch="none")
    status = client.status()
    assert status["hostd"]["pid"] in processes_of(Path(os.environ["LAYERKIT_RUN"]).parent)
    assert status["holder"] == {"pid": None}
    assert status["fuse_server"]["pid"] > 0
    assert status["health"] == "ok"
    assert [mount["digest"] for mount in status["mounts"]] == [layer.digest]
    assert client.cache()["layers"][0]["in_use"]
    samples = []
    for _ in range(20):
        began = time.monotonic()
        with HostClient.connect(start=False) as warm:
            warm.release(warm.mount_layers([layer.ref]).lease)
        samples.append(time.monotonic() - began)
    assert sorted(samples)[10] < 0.03, samples
    client.release(stack.lease)
    client.release(stack.lease)


def test_the_client_needs_few_imports() -> None:
    script = "import sys, layerkit.fuse.client; print(*sys.modules)"
    names = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    )
    assert not names & {"asyncio", "aiohttp", "http.client", "subprocess", "boto3", "trio", "logging", "cffi", "blake3"}


def test_metrics_and_bad_requests(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    client.mount_layers([layer.ref], prefetch="all")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(HostPaths.from_settings().api_socket))
        raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b""
        while part := raw.recv(65536):
            text += part
    assert b"layerkit_mounts 1.0" in text
    assert b"layerkit_fetched_bytes_total" in text
    for path, body in (
        ("/v1/mount-layers", {}),
        ("/v1/mount-layers", {"layers": [], "store": "x"}),
        ("/v1/mount-layers", {"layers": ["a\0b"], "store": "x"}),
        ("/v1/mount-layers", {"layers": ["base/a"], "store": "x", "owner": 5}),
        ("/v1/mount-layers", {"layers": ["base/a"], "store": "x", "prefetch": "some"}),
        ("/v1/overlay", {"lowers": ["relative"], "target": "/x", "lease": "y"}),
        ("/v1/umount", {"target": "relative"}),
        ("/v1/prune", {"budget_bytes": -1}),
    ):
        with pytest.raises(InputError):
            client.call("POST", path, body)
    with pytest.raises(MissingError, match="no lease"):
        client.overlay(["/usr"], Path("/tmp"), lease="nope")
    with pytest.raises(MissingError):
        client.umount(Path("/tmp"))


def test_l01_kill_9_of_hostd_under_readers(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    folder = client.mount_layers([layer.ref], prefetch="none").layers[0].path
    server = client.status()["fuse_server"]["pid"]
    wrong: list[str] = []
    stop = threading.Event()
    readers = [threading.Thread(target=read_all, args=(layer, folder, wrong, stop)) for _ in range(4)]
    with (folder / "big").open("rb", buffering=0) as file:
        for reader in readers:
            reader.start()
        for _ in range(4):
            kill(hostd().status()["hostd"]["pid"])
            time.sleep(0.05)
            assert os.pread(file.fileno(), 5000, 900_000) == layer.files["big"][900_000:905_000]
        again = hostd()
        layer.check(folder)
        assert again.mount_layers([layer.ref]).layers[0].path == folder
        stop.set()
        for reader in readers:
            reader.join(30)
    assert not wrong, wrong[:5]
    assert again.status()["fuse_server"]["pid"] == server
    assert again.status()["errors"] == []


def test_l01_waiting_readers_get_a_hostd_without_any_command(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    folder = client.mount_layers([layer.ref], prefetch="none").layers[0].path
    pid = client.status()["hostd"]["pid"]
    kill(pid)
    layer.check(folder)
    with HostClient.connect(start=False) as other:
        assert other.status()["hostd"]["pid"] != pid


def test_l02_the_daemons_group_and_cgroup_die_mounts_live(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    folder = client.mount_layers([layer.ref], prefetch="none").layers[0].path
    status = client.status()
    pid, server = status["hostd"]["pid"], status["fuse_server"]["pid"]
    assert os.getpgid(pid) != os.getpgid(server)
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(server))
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")

    def groups(of: int | str) -> dict[str, str]:
        lines = Path(f"/proc/{of}/cgroup").read_text().split()
        return {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines}

    mine, daemon, serving = groups("self"), groups(pid), groups(server)
    own = [name for name in daemon if "layerkit-" in daemon[name]]
    for name in own:
        assert len({mine[name], daemon[name], serving[name]}) == 3
    os.killpg(os.getpgid(pid), signal.SIGKILL)
    for name in own:
        group = (
            Path("/sys/fs/cgroup") / ("unified" if not name else name.removeprefix("name=")) / daemon[name].lstrip("/")
        )
        for member in (group / "cgroup.procs").read_text().split():
            os.kill(int(member), signal.SIGKILL)
    wait_until(lambda: start_time(pid) is None)
    layer.check(folder)


def test_l03_stop_and_start_in_every_order(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    stack = client.mount_layers([layer.ref], prefetch="none")
    folder = stack.layers[0].path
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        pid = hostd().status()["hostd"]["pid"]
        os.kill(pid, number)
        wait_until(lambda pid=pid: start_time(pid) is None)
        assert (folder / "small").read_bytes() == layer.files["small"]
        status = hostd().status()
        assert [mount["digest"] for mount in status["mounts"]] == [layer.digest]
        assert [lease["id"] for lease in status["leases"]] == [stack.lease]
        assert status["errors"] == []
    layer.check(folder)
    hostd().release(stack.lease)
    wait_until(lambda: not mounts_below(HostPaths.from_settings().mounts))


def test_death_of_the_fuse_server_is_told_and_healed(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    folder = client.mount_layers([layer.ref], prefetch="none").layers[0].path
    kill(client.status()["fuse_server"]["pid"])
    with pytest.raises(OSError, match=r"Input/output|not connected"):
        (folder / "big").read_bytes()
    status = client.status()
    assert status["health"] == "degraded"
    assert any("FUSE server" in problem for problem in status["problems"])
    again = client.mount_layers([layer.ref], prefetch="none")
    layer.check(again.layers[0].path)
    assert client.status()["health"] == "ok"


def test_leases_end_with_their_processes(hostd: Connect, layer: MadeLayer) -> None:
    client = hostd()
    child = subprocess.Popen(["sleep", "60"])
    owner = Owner(child.pid, start_time(child.pid) or 0)
    client.mount_layers([layer.ref], owner=owner)
    assert len(client.status()["leases"]) == 1
    child.kill()
    wait_until(lambda: not client.status()["leases"])
    wait_until(lambda: not mounts_below(HostPaths.from_settings().mounts))
    child.wait()
    kill(client.status()["hostd"]["pid"])
    with pytest.raises(HostError, match="connection to hostd broke"):
        client.status()


@pytest.mark.parametrize("rw", [False, True])
def test_overlay_with_nosuid_and_its_end(hostd: Connect, layer: MadeLayer, tmp_path: Path, rw: bool) -> None:
    other = publish(make_store(), "b", {"small": b"from b", "only-b": b"b"})
    client = hostd()
    stack = client.mount_layers([layer.ref, other.ref])
    target = tmp_path / "m"
    target.mkdir()
    record = client.overlay([entry.path for entry in reversed(stack.layers)], target, lease=stack.lease, rw=rw)
    assert (target / "small").read_bytes() == b"from b"
    assert (target / "big").read_bytes() == layer.files["big"]
    assert os.statvfs(target).f_flag & (os.ST_NOSUID | os.ST_NODEV) == os.ST_NOSUID | os.ST_NODEV
    if rw:
        (target / "new").write_text("x")
        assert (Path(record["upper"]) / "new").exists()
    else:
        with pytest.raises(OSError) as caught:
            (target / "new").write_text("x")
        assert caught.value.errno == errno.EROFS
    with pytest.raises(ConflictError):
        client.overlay(["/usr", "/etc"], target, lease=stack.lease)
    kill(client.status()["hostd"]["pid"])
    client = hostd()
    assert [entry["target"] for entry in client.status()["overlays"]] == [str(target)]
    assert [lease["owner"] for lease in client.status()["leases"]] == [None]
    client.umount(target)
    assert list(target.iterdir()) == []
    assert not rw or not Path(record["scratch"]).exists()
    wait_until(lambda: not client.status()["mounts"])


def test_an_overlay_unmounted_by_somebody_else_ends_its_lease(hostd: Connect, layer: MadeLayer, tmp_path: Path) -> None:
    client = hostd()
    stack = client.mount_layers([layer.ref])
    (tmp_path / "m").mkdir()
    client.overlay([stack.layers[0].path], tmp_path / "m", lease=stack.lease, rw=True)
    layer.check(tmp_path / "m")
    subprocess.run(["umount", str(tmp_path / "m")], check=True)
    wait_until(lambda: not client.status()["leases"])


@pytest.mark.parametrize("count", [1, 2, 40, 130])
def test_l29_stacks_of_many_layers(hostd: Connect, tmp_path: Path, count: int) -> None:
    store = make_store()
    layers = [publish(store, f"n{n}", {f"w{n}": str(n).encode(), "top": str(n).encode()}) for n in range(count)]
    client = hostd()
    stack = client.mount_layers([layer.digest for layer in layers])
    target = tmp_path / ("t" * 200) / ("u" * 200) / "m"
    target.mkdir(parents=True)
    client.overlay([entry.path for entry in reversed(stack.layers)], target, lease=stack.lease)
    assert [(target / f"w{n}").read_text() for n in range(count)] == [str(n) for n in range(count)]
    assert (target / "top").read_text() == str(count - 1)
    done = client.umount_all()
    assert done == {"overlays": 1, "layers": count, "busy": ""}
    assert mounts_of(tmp_path) == []


def test_l28_another_stack_at_the_same_place(hostd: Connect, layer: MadeLayer, tmp_path: Path) -> None:
    other = publish(make_store(), "b", {"big": b"small now", "x": b"y" * 5000})
    client = hostd()
    target = tmp_path / "m"
    target.mkdir()
    for one in (layer, other, layer):
        stack = client.mount_layers([one.ref])
        client.overlay([stack.layers[0].path], target, lease=stack.lease)
        assert (target / "big").stat().st_size == len(one.files["big"])
        one.check(target)
        client.umount(target)
        assert not (target / "big").exists()


def test_l37_parallel_mounts_and_ends(hostd: Connect, clean_instance: Path) -> None:
    hostd()
    store = make_store()
    layers = [publish(store, f"n{n}", sample_files(n, count=2, size=20_000)) for n in range(4)]
    failures: list[str] = []

    def loop(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with HostClient.connect(start=False) as client:
                for _ in range(12):
                    chosen = rng.sample(layers, 2)
                    stack = client.mount_layers([layer.digest for layer in chosen], prefetch="none")
                    for layer, entry in zip(chosen, stack.layers, strict=True):
                        for path in rng.sample(sorted(layer.files), 3):
                            if (entry.path / path).read_bytes() != layer.files[path]:
                                failures.append(path)
                    client.release(stack.lease)
                    time.sleep(rng.random() * 0.15)  # around the linger time
        except Exception as error:  # noqa: BLE001 - reported by the test
            failures.append(repr(error))

    threads = [threading.Thread(target=loop, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[:5]
    wait_until(lambda: not mounts_below(HostPaths.from_settings().mounts))
    with HostClient.connect(start=False) as client:
        assert client.status()["errors"] == []


def test_shutdown_leaves_nothing(hostd: Connect, layer: MadeLayer, clean_instance: Path) -> None:
    client = hostd()
    client.mount_layers([layer.ref])
    client.shutdown()
    wait_until(lambda: not processes_of(clean_instance))
    assert mounts_of(clean_instance) == []
    with pytest.raises(HostError, match="does not run"):
        HostClient.connect(start=False)


def test_one_home_one_hostd(hostd: Connect, layer: MadeLayer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = hostd().status()["hostd"]["pid"]
    monkeypatch.setenv("LAYERKIT_RUN", str(tmp_path / "run2"))
    with pytest.raises(HostError, match=f"pid {pid}"):
        HostClient.connect()
    monkeypatch.setenv("LAYERKIT_RUN", str(tmp_path / "run"))


def test_l27_a_hostd_that_hangs_is_told(hostd: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerkit.fuse.client.LOOK_TIMEOUT_S", 0.3)
    pid = hostd().status()["hostd"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(HostError, match="does not answer"):
            hostd().status()
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("name", ["hostd.sock", "ensure.sock"])
def test_l01_a_hostd_that_nobody_can_reach_gives_way(
    hostd: Connect, layer: MadeLayer, clean_instance: Path, name: str
) -> None:
    with hostd() as client:
        first = client.status()["hostd"]["pid"]
        stack = client.mount_layers([layer.digest], prefetch="none", frontend="fuse")
        (HostPaths.from_settings().run / name).unlink()
        wait_until(lambda: not Path(f"/proc/{first}").exists())
    with hostd() as client:
        assert client.status()["hostd"]["pid"] != first
        layer.check(stack.layers[0].path)
        client.release(stack.lease)


def test_many_clients_start_one_hostd(hostd: Connect, clean_instance: Path) -> None:
    pids: list[int] = []

    def connect() -> None:
        with HostClient.connect() as client:
            pids.append(client.status()["hostd"]["pid"])

    threads = [threading.Thread(target=connect) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(pids) == 6
    assert len(set(pids)) == 1


def test_environment_is_scrubbed(hostd: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sentinel")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    pid = hostd().status()["hostd"]["pid"]
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"sentinel" not in environment
    assert b"PYTHONPATH" not in environment
    assert b"LAYERKIT_STORE" not in environment


def test_status_is_json(hostd: Connect) -> None:
    assert json.loads(json.dumps(hostd().status()))["mounts"] == []
