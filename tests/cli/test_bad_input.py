"""What goes wrong is said: what, where, what to do, with a documented exit code; and nothing is lost."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from layerkit.store.knowledge import Knowledge
from tests.cli.conftest import Run
from tests.support.raw_tar import END, member

PROGRAM = [sys.executable, "-m", "layerkit"]


def archive(path: Path, *, megabytes: int = 1) -> Path:
    """A tar of incompressible files."""
    draw = random.Random(1)
    data = b"".join(member(b"f%d" % number, draw.randbytes(1 << 20)) for number in range(megabytes))
    path.write_bytes(data + END)
    return path


def test_unknown_names_get_near_ones(run: Run, tree: Path) -> None:
    run("import", tree, "-t", "base/debian:12")
    for words in (["inspect", "base/debain:12"], ["files", "base/debain"], ["cat", "base/debain", "/x"],
                  ["rm", "base/debain:12"], ["publish", "base/debain"], ["diff", "base/debian:12", "base/debain"],
                  ["verify", "base/debain"]):  # fmt: skip
        outcome = run(*words, code=3)
        assert "base/debian" in outcome.stderr, words
        assert "Traceback" not in outcome.stderr
    assert "12" in run("inspect", "base/debian:13", code=3).stderr
    assert "files" in run("fils", code=2).stderr


def test_errors_are_json_too(run: Run, tree: Path) -> None:
    run("import", tree, "-t", "base/debian:12")
    (line,) = run("inspect", "base/debain", "--json", code=3).objects
    assert line["error"].keys() == {"code", "message", "where", "hint"}
    assert (line["error"]["code"], line["error"]["where"]) == ("missing", "base/debain")


@pytest.mark.parametrize(
    "ref", ["debian", "base/", "base/Debian", "base/a:", "base/a@sha256:12", "image/a", "base/a b", "base/a:-1", ""]
)
def test_refs_that_are_none(run: Run, tree: Path, ref: str) -> None:
    run("import", tree, "-t", "base/debian:12")
    for words in (["inspect", ref], ["rm", ref], ["import", tree, "-t", ref]):
        assert "error:" in run(*words, code=2).stderr


def test_a_range_whose_sign_the_shell_ate(run: Run, tree: Path, tmp_path: Path) -> None:
    run("import", tree, "-t", "base/debian:12")
    done = subprocess.run(
        [f"{sys.executable} -m layerkit inspect base/debian>=12"], shell=True, cwd=tmp_path, capture_output=True,
        text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert "quotes" in done.stderr
    assert "=12" in done.stderr
    assert (tmp_path / "=12").exists()
    assert "quotes" in run("--help").text
    assert "quotes" in run("inspect", "--help").text


def test_truncated_tars_at_any_place(run: Run, tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar", megabytes=2).read_bytes()
    for suffix, data in ((".tar", whole), (".tar.gz", gzip.compress(whole, 1))):
        for cut in (100, 513, 700_001, 1_048_577, len(data) // 2, len(data) - 1100):
            path = tmp_path / f"cut{suffix}"
            path.write_bytes(data[:cut])
            outcome = run("import", path, "-t", "base/cut:1", code=2)
            assert str(path) in outcome.stderr
            assert "Traceback" not in outcome.stderr
    assert run("ls").text == ""
    run("verify")
    run("import", tmp_path / "whole.tar", "-t", "base/cut:1")


@pytest.mark.parametrize("data", [b"", b"text\n", b"\x1f\x8b\x08nonsense", os.urandom(5000), b"\x28\xb5\x2f\xfd"])
def test_files_that_are_no_archives(run: Run, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    code = 0 if not data else 2  # GNU tar takes an empty file for an empty archive, and so do we
    assert "Traceback" not in run("import", path, "-t", "base/x:1", code=code).stderr


def test_nothing_to_import(run: Run, tmp_path: Path) -> None:
    assert "nothing to import" in run("import", tmp_path / "missing", "-t", "base/x:1", code=3).stderr
    os.mkfifo(tmp_path / "fifo")
    run("import", tmp_path / "fifo", "-t", "base/x:1", code=2)
    run("import", tmp_path, "-t", "toolkit/x:1", code=2)
    run("import", tmp_path, "-t", "base/x", "--publish", code=2)
    run("import", tmp_path, "-t", "base/x:1", "--platform", "linux", code=2)


def test_stores_that_are_none(run: Run, instance: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no store" in run("ls", code=3).stderr
    monkeypatch.setenv("LAYERKIT_STORE", "s3://bucket/prefix")
    run("ls", code=7)
    (instance / "file").touch()
    monkeypatch.setenv("LAYERKIT_STORE", str(instance / "file"))
    assert run("ls", code=None).code in (3, 5)
    (instance / "other").mkdir()
    (instance / "other/layerkit-store.json").write_text('{"format":"layerkit-store","version":99}')
    monkeypatch.setenv("LAYERKIT_STORE", str(instance / "other"))
    assert "newer" in run("ls", code=7).stderr
    (instance / "other/layerkit-store.json").write_text("{")
    assert "layerkit-store.json" in run("ls", code=4).stderr


def test_readers_that_go_away(instance: Path, run: Run, tree: Path) -> None:
    for number in range(3000):
        (tree / f"some rather long name of a file {number}").touch()
    run("import", tree, "-t", "base/x:1")
    command = f"{sys.executable} -m layerkit files base/x:1 | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("/\n", "")


def test_an_output_that_is_full(instance: Path, run: Run, tree: Path) -> None:
    run("import", tree, "-t", "base/x:1")
    with open("/dev/full", "w") as full:
        for words in (["ls"], ["cat", "base/x:1", "/big"], ["ls", "--json"]):
            done = subprocess.run([*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode == 10


# Stores on disks with a mind of their own.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=True)
    yield disk
    Knowledge.open(disk / "home").close()
    subprocess.run(["umount", disk], check=True)


@pytest.mark.privileged
def test_a_full_store(run: Run, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERKIT_STORE", str(small_disk / "store"))
    run("import", archive(tmp_path / "small.tar"), "-t", "base/small:1")
    outcome = run("import", archive(tmp_path / "large.tar", megabytes=12), "-t", "base/large:1", "--json", code=10)
    assert outcome.objects[-1]["error"]["code"] == "no-space"
    assert "prune" in outcome.stderr
    assert [row["ref"] for row in run("ls", "--json").objects] == ["base/small:1"]
    run("verify")
    run("cat", "base/small:1", "/f0")


@pytest.mark.privileged
def test_a_full_home(run: Run, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only knowledge is done without; the name has to be written and is not."""
    monkeypatch.setenv("LAYERKIT_HOME", str(small_disk / "home"))
    run("import", archive(tmp_path / "a.tar"), "-t", "base/a:1")
    fd = os.open(small_disk / "filler", os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)
    outcome = run("import", archive(tmp_path / "a.tar", megabytes=2), "-t", "base/b:1", code=10)
    assert "Traceback" not in outcome.stderr
    run("verify")
    run("cat", "base/a:1", "/f0")
    (small_disk / "filler").unlink()
    run("import", tmp_path / "a.tar", "-t", "base/b:1")


@pytest.mark.privileged
def test_a_read_only_store(run: Run, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERKIT_STORE", str(small_disk / "store"))
    run("import", archive(tmp_path / "small.tar"), "-t", "base/small:1")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    outcome = run("import", archive(tmp_path / "other.tar", megabytes=2), "-t", "base/other:1", code=6)
    assert str(small_disk) in outcome.stderr
    run("publish", "base/small:1", code=6)
    for words in (["ls"], ["verify"], ["cat", "base/small:1", "/f0"], ["df"], ["inspect", "base/small:1"]):
        run(*words)


# A plain user in a bare container: no root, no mounts, no /dev/fuse.


@pytest.mark.privileged
def test_a_plain_user_imports_looks_and_publishes(tmp_path: Path, tree: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    # The checkout may lie in a folder that only root enters; here it is seen where the user can read it.
    checkout, readable = Path(__file__).parents[2], tmp_path / "checkout"
    readable.mkdir()
    python = sys.executable.replace(str(checkout), str(readable))
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "LAYERKIT_HOME": str(home / "lk"),
        "PYTHONDONTWRITEBYTECODE": "1", "LAYERKIT_STORE": str(home / "store"), "LAYERKIT_RUN": str(home / "run"),
        "PYTHONPATH": str(readable),
    }  # fmt: skip
    show = f'mount --bind "{checkout}" "{readable}" && exec "$@"'
    somebody = ["unshare", "--mount", "sh", "-c", show, "sh", "setpriv", "--reuid", "65534", "--regid", "65534",
                "--clear-groups", "--bounding-set", "-all", python, "-m", "layerkit"]  # fmt: skip

    def as_user(*words: str | Path, code: int = 0) -> str:
        command = [*somebody, *map(str, words)]
        done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    as_user("import", tree, "-t", "base/small:1")
    as_user("publish", "base/small:1", "--tag", "latest")
    assert "base/small:latest" in as_user("ls")
    assert "NAME=Small" in as_user("cat", "base/small", "/etc/os-release")
    for words in (["inspect", "base/small"], ["files", "-l", "base/small"], ["verify"], ["df"], ["prune", "--all"],
                  ["diff", "base/small:1", "base/small:latest"]):  # fmt: skip
        as_user(*words)
    (tree / "secret").write_text("x")
    (tree / "secret").chmod(0)
    denied = as_user("import", tree, "-t", "base/secret:1", code=6)
    assert "secret" in denied
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM base/small:1\nCOPY file /file\nENV A=b\n")
    (context / "file").write_text("content")
    as_user("build", context, "-t", "workspace/app:dev")
    assert as_user("cat", "workspace/app:dev", "/file") == "content"
    as_user("rm", "base/small:1")


# kill -9


def test_an_import_killed_at_any_moment(run: Run, instance: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    draw = random.Random(3)
    for number in range(40):
        (source / f"f{number}").write_bytes(draw.randbytes(700_000))
    start = time.monotonic()
    wanted = run("import", source, "-t", "base/whole:1", "--json").result["digest"]
    took = time.monotonic() - start
    subprocess.run(["rm", "-rf", instance / "store", instance / "home"], check=True)
    for turn in range(6):
        command = [*PROGRAM, "import", source, "-t", f"base/killed:{turn}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.15 + (took + 0.2) * turn / 5)
        process.kill()
        process.wait()
        if (instance / "store/layerkit-store.json").exists():
            run("verify")
            run("ls")
    assert run("import", source, "-t", "base/whole:1", "--json").result["digest"] == wanted
    run("verify")
