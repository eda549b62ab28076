"""kill -9 at any moment of a build, stores that are full or read-only: nothing is lost, the next build succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from layerkit.layer.chunk_index import ChunkIndex
from layerkit.store.store import open_store
from layerkit.store.verify import verify_store
from tests.build.build_cli import Instance
from tests.build.engine import make_root

LAYERFILE = """\
FROM base/b:1
COPY one /one
COPY two /two
COPY --from=base/b:1 /usr /usr2
"""
KILLS = 20


def make_inputs(folder: Path) -> None:
    draw = random.Random(1)
    context = folder / "context"
    for name in ("one", "two"):
        (context / name).mkdir(parents=True)
        for number in range(40):
            (context / name / str(number)).write_bytes(draw.randbytes(draw.randrange(200_000)))
    (context / "Layerfile").write_text(LAYERFILE)
    make_root(folder / "root", **{f"usr__lib__{number}": draw.randbytes(9000) for number in range(50)})


def stored_chunks(index: bytes) -> Sequence[tuple[bytes, int]]:
    found = ChunkIndex.from_bytes(index)
    return [(found.stored_id(n), found.lengths[found.entry_of_stored(n)]) for n in range(found.stored_count)]


def findings(instance: Instance) -> list[str]:
    store = open_store(str(instance.folder / "store"), home=instance.folder / "home")
    return [f"{found.code} {found.where}: {found.message}" for found in
            verify_store(store.objects, stored_chunks=stored_chunks)]  # fmt: skip


def build(instance: Instance, inputs: Path) -> str:
    digest: str = instance.run("build", "-t", "workspace/w:1", inputs / "context")["digest"]
    return digest


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """The digest, and how many seconds a clean build takes."""
    instance = Instance(tmp_path_factory.mktemp("clean"))
    instance.run("import", inputs / "root", "-t", "base/b:1")
    start = time.monotonic()
    return build(instance, inputs), time.monotonic() - start


@pytest.mark.slow
def test_kill_9_at_any_moment_of_a_build(inputs: Path, expected: tuple[str, float], tmp_path: Path) -> None:
    digest, seconds = expected
    draw = random.Random(os.urandom(8))
    killed = turn = 0
    while killed < KILLS:
        turn += 1
        assert turn < 4 * KILLS, "the kills come too late to mean anything"
        instance = Instance(tmp_path / str(turn))
        instance.run("import", inputs / "root", "-t", "base/b:1")
        for _ in range(2):
            start = time.monotonic()
            process = instance.popen("build", "-t", "workspace/w:1", inputs / "context")
            with suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.1, 1.0) * seconds)
                # The machine is less busy than it was.
                seconds = min(seconds, time.monotonic() - start)
            process.kill()
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
            assert findings(instance) == []
        assert build(instance, inputs) == digest
        assert findings(instance) == []


@pytest.mark.slow
def test_kill_9_of_an_import(inputs: Path, tmp_path: Path) -> None:
    first = Instance(tmp_path / "first")
    start = time.monotonic()
    digest = first.run("import", inputs / "context", "-t", "base/c:1")["digest"]
    seconds = time.monotonic() - start
    draw = random.Random(os.urandom(8))
    instance = Instance(tmp_path / "second")
    for _ in range(8):
        process = instance.popen("import", inputs / "context", "-t", "base/c:1")
        time.sleep(draw.uniform(0.1, 0.9) * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (instance.folder / "store/layerkit-store.json").exists():
            assert findings(instance) == []
    assert instance.run("import", inputs / "context", "-t", "base/c:1")["digest"] == digest


@pytest.mark.privileged
def test_a_full_store_is_a_typed_error_and_loses_nothing(
    inputs: Path, expected: tuple[str, float], tmp_path: Path
) -> None:
    instance = Instance(tmp_path / "instance")
    (tmp_path / "instance/store").mkdir(parents=True)
    with small_disk(tmp_path / "instance/store", "3m"):
        instance.run("import", inputs / "root", "-t", "base/b:1")
        code, error, errors = instance.fail("build", "-t", "workspace/w:1", inputs / "context")
        assert (code, error["code"]) == (10, "no-space")
        assert "Traceback" not in errors
        assert error["where"].endswith("Layerfile:2")
        assert findings(instance) == []
        subprocess.run(["mount", "-o", "remount,size=200m", instance.folder / "store"], check=True)
        assert build(instance, inputs) == expected[0]
        assert findings(instance) == []


@pytest.mark.privileged
def test_a_read_only_store_is_a_typed_error_and_loses_nothing(
    inputs: Path, expected: tuple[str, float], tmp_path: Path
) -> None:
    instance = Instance(tmp_path / "instance")
    (tmp_path / "instance/store").mkdir(parents=True)
    with small_disk(tmp_path / "instance/store", "200m"):
        instance.run("import", inputs / "root", "-t", "base/b:1")
        subprocess.run(["mount", "-o", "remount,ro", instance.folder / "store"], check=True)
        code, error, errors = instance.fail("build", "-t", "workspace/w:1", inputs / "context")
        assert (code, error["code"]) == (6, "denied")
        assert "Traceback" not in errors
        subprocess.run(["mount", "-o", "remount,rw", instance.folder / "store"], check=True)
        digest = build(instance, inputs)
        assert digest == expected[0]
        subprocess.run(["mount", "-o", "remount,ro", instance.folder / "store"], check=True)
        assert build(instance, inputs) == digest, "a build that is fully cached writes nothing to the store"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("layerfile", "code", "where", "excerpt"),
    [
        ("FROM base/b:1\nCOPPY a b\n", "bad-layerfile", ":2", "COPPY a b"),
        ("FROM base/b:1\n\nCOPY absent /a\n", "missing", ":3", "COPY absent /a"),
        ("FROM base/bb:1\n", "missing", ":1", "FROM base/bb:1"),
        ("FROM base/b:1\nADD broken.tar.gz /x\nCOPY one /x\n", "bad-input", ":3", "COPY one"),
    ],
)
def test_bad_input_is_shown_with_its_line(
    inputs: Path, tmp_path: Path, layerfile: str, code: str, where: str, excerpt: str
) -> None:
    instance = Instance(tmp_path / "instance")
    instance.run("import", inputs / "root", "-t", "base/b:1")
    path = tmp_path / "Layerfile"
    path.write_text(layerfile)
    context = tmp_path / "context"
    (context / "one").mkdir(parents=True)
    (context / "one/x").write_text("x")
    (context / "broken.tar.gz").write_bytes(b"\x1f\x8b broken")
    _, error, errors = instance.fail("build", "-f", path, "-t", "workspace/w", context)
    assert (error["code"], error["where"]) == (code, f"{path}{where}")
    assert excerpt in errors
    assert "Traceback" not in errors


def test_a_truncated_tar_is_an_error_that_names_it(inputs: Path, tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    instance.run("import", inputs / "root", "-t", "base/b:1")
    context = tmp_path / "context"
    context.mkdir()
    subprocess.run(["tar", "-cf", context / "whole.tar", "-C", inputs / "context", "one"], check=True)
    data = (context / "whole.tar").read_bytes()
    (context / "a.tar").write_bytes(data[: len(data) // 2])
    (context / "whole.tar").unlink()
    (context / "Layerfile").write_text("FROM base/b:1\nADD a.tar /\n")
    _, error, errors = instance.fail("build", "-t", "workspace/w", context)
    assert error["code"] == "bad-archive"
    assert error["where"].endswith("Layerfile:2")
    assert "a.tar" in error["message"]
    assert "Traceback" not in errors
    assert findings(instance) == []


def test_a_plain_user_builds_without_run(inputs: Path, tmp_path: Path) -> None:
    # A user namespace makes a user of root, who may still read Python wherever it is installed.
    prefix = ("unshare", "-U", "--map-user=65534", "--map-group=65534", "--") if os.geteuid() == 0 else ()
    if prefix and subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces to become a plain user in")
    instance = Instance(tmp_path / "instance", prefix=prefix)
    instance.run("import", inputs / "root", "-t", "base/b:1")
    assert instance.run("build", "-t", "workspace/w:1", inputs / "context")["steps"] == 3
    (tmp_path / "Layerfile").write_text("FROM base/b:1\nRUN true\n")
    code, error, _ = instance.fail("build", "-t", "workspace/w", "-f", tmp_path / "Layerfile", inputs / "context")
    assert (code, error["code"], error["where"]) == (7, "unsupported", f"{tmp_path}/Layerfile:2")
    assert "needs root" in error["message"]
    assert findings(instance) == []
