"""Publishers that die at any step, power loss that drops what was not synced, publishers at the same time."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from store_samples import AMD64, make_sample, make_store, publish_sample, stored_chunks

from layerkit._util.files import TEMP_PREFIX
from layerkit.errors import ConflictError, MissingError, NoSpaceError, UnavailableError
from layerkit.ids import Ref
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.store import Store
from layerkit.store.verify import verify_store

PUBLISHER = [sys.executable, str(Path(__file__).with_name("crash_publisher.py"))]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
REF = Ref.parse("base/x:1")


def assert_sound(store: Store, expected: set[str], *, ref: Ref = REF) -> None:
    assert list(verify_store(store.objects, stored_chunks=stored_chunks)) == []
    try:
        assert store.resolve(ref, AMD64).digest in expected
    except MissingError:
        assert ref.version


def test_kill_at_every_system_call_of_publishing(tmp_path: Path) -> None:
    done = subprocess.run([*PUBLISHER, tmp_path], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    *steps, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(steps) > 60
    assert steps == [[-9, 0, 0, 0]] * len(steps), done.stderr
    assert last == [0, 0, 0, 0], done.stderr


def test_kill_at_random_times(tmp_path: Path) -> None:
    draw = random.Random(1)
    store = make_store(tmp_path)
    for trial in range(4):
        publisher = subprocess.Popen(
            [*PUBLISHER, tmp_path, "1", f"base/x:{trial}"], env=ENVIRONMENT, stdout=subprocess.DEVNULL
        )
        time.sleep(0.25 + draw.random() * 0.4)
        publisher.kill()
        publisher.wait()
        assert_sound(store, {make_sample(1).digest}, ref=REF.with_version(str(trial)))
    publish_sample(store, 1, "base/x:9")
    assert_sound(store, {make_sample(1).digest}, ref=REF.with_version("9"))
    store.sweep_stale(min_age_s=0)
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(TEMP_PREFIX)] == []


@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.NO_SPACE, FaultKind.LOST_ANSWER])
def test_failure_at_each_object_leaves_nothing_broken(tmp_path: Path, kind: FaultKind) -> None:
    step = 0
    failure = "scripted"
    while failure:
        store = make_store(tmp_path / str(step))
        faulty = Store(store.url, ScriptedFaults(store.objects, [Fault(kind, "put*", after=step)]), store.params,
                       store.local_refs)  # fmt: skip
        failure = ""
        try:
            publish_sample(faulty, 1, str(REF))
        except (UnavailableError, NoSpaceError) as error:
            failure = str(error)
        assert not failure or "scripted" in failure
        assert_sound(store, {make_sample(1).digest})
        publish_sample(store, 1, str(REF))
        assert store.resolve(REF, AMD64).digest == make_sample(1).digest
        step += 1
    assert step > 7


class UnsyncedDisk:
    """What a disk still holds after a power loss when nothing that was not synced has reached it.

    Watches the system calls of this process below `root`. `survivors` writes two worst cases: entries of folders
    that were not synced are lost; or they are there, but data that was not synced is empty.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, after_each: Callable[[UnsyncedDisk], None]) -> None:
        self.root = root
        self.synced: dict[int, bytes] = {}
        self.entries: dict[Path, dict[str, Path | int]] = {}
        self.calls = 0
        self._after_each = after_each
        self._lock = threading.RLock()
        self._inside = False
        self._sync_folder(root)
        for name in ("fsync", "link", "rename", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), name))

    def _watched(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._inside:
                    return real(*args, **kwargs)
                result = real(*args, **kwargs)
                if name == "fsync":
                    self._sync(args[0])
                self.calls += 1
                self._inside = True
                try:
                    self._after_each(self)
                finally:
                    self._inside = False
                return result

        return call

    def _sync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            self._sync_folder(path)
        else:
            self.synced[os.fstat(fd).st_ino] = path.read_bytes()

    def _sync_folder(self, folder: Path) -> None:
        self.entries[folder] = {path.name: path if path.is_dir() else path.stat().st_ino for path in folder.iterdir()}

    def survivors(self, target: Path) -> list[Path]:
        strict, lax = target / "strict", target / "lax"
        shutil.rmtree(target, ignore_errors=True)
        self._copy(self.root, strict)
        for path in [self.root, *self.root.rglob("*")]:
            place = lax / path.relative_to(self.root)
            if path.is_dir():
                place.mkdir(parents=True)
            else:
                place.write_bytes(self.synced.get(path.stat().st_ino, b""))
        return [strict, lax]

    def _copy(self, folder: Path, target: Path) -> None:
        target.mkdir(parents=True)
        for name, entry in self.entries.get(folder, {}).items():
            if isinstance(entry, Path):
                self._copy(entry, target / name)
            else:
                (target / name).write_bytes(self.synced.get(entry, b""))


def test_l10_power_loss_at_any_moment_shows_no_broken_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "real"
    make_store(root)
    store = make_store(root)
    seen = set()

    def check(disk: UnsyncedDisk) -> None:
        for survivor in disk.survivors(tmp_path / "after"):
            left = make_store(survivor)
            assert list(verify_store(left.objects, stored_chunks=stored_chunks)) == []
            try:
                seen.add(left.resolve(REF, AMD64).digest)
            except MissingError:
                seen.add("")

    with monkeypatch.context() as watched:
        disk = UnsyncedDisk(root, watched, check)
        # The store's own folders were made before the watch began.
        for folder in [path for path in root.rglob("*") if path.is_dir()]:
            disk._sync_folder(folder)
        for file in [path for path in root.rglob("*") if path.is_file()]:
            disk.synced[file.stat().st_ino] = file.read_bytes()
        digest = publish_sample(store, 1, str(REF))
    assert seen == {"", digest}
    assert disk.calls > 50
    [strict, _] = disk.survivors(tmp_path / "end")
    assert make_store(strict).resolve(REF, AMD64).digest == digest, "what was published is durable"


def test_the_model_of_power_loss_notices_a_missing_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    found = []
    with monkeypatch.context() as watched:
        disk = UnsyncedDisk(tmp_path / "real", watched, lambda _: None)
        (tmp_path / "real/unsynced").write_bytes(b"data")
        found = [sorted(path.name for path in folder.iterdir()) for folder in disk.survivors(tmp_path / "a")]
    assert found == [[], ["unsynced"]]
    assert (tmp_path / "a/lax/unsynced").read_bytes() == b""


def test_two_processes_publish_at_once(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    publishers = [
        subprocess.Popen([*PUBLISHER, tmp_path, str(seed), ref], env=ENVIRONMENT, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for seed, ref in ((1, "base/x:1"), (1, "base/x:1"), (2, "base/x:1"), (3, "base/y:1"))
    ]  # fmt: skip
    # A line when it has published, the end of the file when it has failed.
    published = [bool(publisher.stdout and publisher.stdout.readline()) for publisher in publishers]
    for publisher in publishers:
        publisher.kill()
    conflicts = [ConflictError.__name__ in publisher.communicate()[1] for publisher in publishers]
    winner = 2 if published[2] else 1
    assert store.resolve(REF, AMD64).digest == make_sample(winner).digest
    assert conflicts == [winner == 2, winner == 2, winner == 1, False]
    assert published == [winner == 1, winner == 1, winner == 2, True]
    assert_sound(store, {make_sample(winner).digest})


def test_threads_publish_the_same_layer_at_once(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    start = threading.Barrier(4)

    def publish(_: int) -> str:
        start.wait()
        return publish_sample(store, 1, str(REF))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(publish, range(4)))) == 1
    assert_sound(store, {make_sample(1).digest})
