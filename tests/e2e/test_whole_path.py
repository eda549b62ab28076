"""Layerfile → layer → store → lazy mount → container, by the program itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Program, mounts_below

pytestmark = pytest.mark.privileged

LAYERFILE = """
FROM base/small:1 AS tools
LAYER toolkit greet 1.0
PREFIX /opt/greet
EXPORT PATH+=/opt/greet/bin
EXPORT GREETING=hello
COPY --chmod=755 <<"EOF" /opt/greet/bin/greet
#!/bin/sh
echo "$GREETING $1"
EOF
RUN /opt/greet/bin/greet build > /opt/greet/built; rm -f /opt/greet/none

FROM base/small:1
LAYER workspace app 2.0
REQUIRES toolkit/greet
WORKDIR /srv/app
COPY data.txt .
RUN greet run > greeting && cp data.txt copy.txt && rm data.txt && chmod 4755 copy.txt
ENV MODE=test
CMD ["cat", "greeting"]
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Layerfile").write_text(LAYERFILE)
    (folder / "data.txt").write_bytes(os.urandom(70_000))
    return folder


@pytest.fixture
def built(layerkit: Program, base: str, context: Path) -> Program:
    layerkit("build", "--target", "tools", context)
    layerkit("build", context)
    for ref in ("toolkit/greet:1.0", "workspace/app:2.0"):
        layerkit("publish", ref)
    return layerkit


def test_built_published_mounted_and_run_on_another_host(built: Program, context: Path, tmp_path: Path) -> None:
    other = Program(tmp_path, "other")
    assert other("run", "workspace/app:2.0,toolkit/greet") == "hello run\n"
    command = ["sh", "-c", "cat copy.txt; greet you >&2; echo $MODE >&2"]
    done = other.call("run", "--with", "toolkit/greet", "workspace/app", "--", *command)
    assert done.stdout == (context / "data.txt").read_bytes()
    assert done.stderr == b"hello you\ntest\n"
    assert other("run", "workspace/app,toolkit/greet", "--", "stat", "-c", "%a", "copy.txt") == "4755\n"


def test_ranges_stand_in_quotes(built: Program) -> None:
    assert built("run", "base/small>=1,<2,toolkit/greet>=1", "--", "greet", "range") == "hello range\n"
    built("run", "base/small>=2", "--", "true", code=125)


def test_second_build_comes_from_the_cache(built: Program, context: Path) -> None:
    again = built.result("build", context)
    assert (again["steps"], again["cached_steps"], again["stored_bytes"]) == (3, 3, 0)
    (context / "data.txt").write_bytes(b"changed")
    changed = built.result("build", context)
    assert (changed["steps"], changed["cached_steps"]) == (3, 1)
    assert changed["digest"] != again["digest"]


def test_failing_run_shows_its_output_and_code_and_keeps_what_came_before(
    layerkit: Program, base: str, context: Path
) -> None:
    (context / "Layerfile").write_text(f"FROM {base}\nRUN echo one > /one\nRUN echo to be seen; exit 7\n")
    done = layerkit.call("build", "-t", "workspace/w", context)
    text = done.stderr.decode()
    assert done.returncode == 11
    assert "to be seen" in text
    assert "exit code 7" in text
    assert "Layerfile:3" in text
    (context / "Layerfile").write_text(f"FROM {base}\nRUN echo one > /one\nRUN echo well\n")
    assert layerkit.result("build", "-t", "workspace/w", context)["cached_steps"] == 1


def test_b21_a_run_that_changes_nothing_adds_nothing(layerkit: Program, base: str, context: Path) -> None:
    (context / "Layerfile").write_text(f"FROM {base}\nRUN true\nRUN cat /etc/passwd >/dev/null\n")
    layerkit("build", "-t", "workspace/w", context)
    assert json.loads(layerkit("files", "workspace/w", "--json").splitlines()[0])["path"] in ("", "/")
    assert len(layerkit("files", "workspace/w:dev", "--json").splitlines()) >= 1
    assert layerkit("run", "workspace/w", "--", "cat", "/etc/group").startswith("root")


def test_b41_changing_the_owner_of_everything_adds_no_data(layerkit: Program, base: str, context: Path) -> None:
    (context / "big").write_bytes(os.urandom(3_000_000))
    (context / "Layerfile").write_text(f"FROM {base}\nCOPY big /srv/big\nRUN chown -R 5:6 /srv\n")
    result = layerkit.result("build", "-t", "workspace/w", context)
    assert result["stored_bytes"] < 3_300_000
    assert layerkit("run", "workspace/w", "--", "stat", "-c", "%u:%g", "/srv/big") == "5:6\n"


def test_b12_a_toolkit_changes_no_shared_directory(built: Program, small_root: Path, tmp_path: Path) -> None:
    other_root = tmp_path / "other-root"
    subprocess.run(["cp", "-a", str(small_root), str(other_root)], check=True)
    (other_root / "opt").mkdir(0o711)
    os.chown(other_root / "opt", 7, 8)
    os.utime(other_root / "opt", (5, 5))
    os.chmod(other_root / "opt", 0o711)
    built("import", other_root, "-t", "base/other:1")
    shown = built("run", "base/other:1,toolkit/greet", "--", "stat", "-c", "%a %u %g %Y", "/opt", "/tmp").splitlines()
    assert shown[0] == "711 7 8 5"
    assert shown[1].startswith("1777 0 0")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    built("mount", "base/other:1,toolkit/greet", mounted)
    status = os.stat(mounted / "opt")
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime) == (0o711, 7, 8, 5)


def test_required_toolkits_cannot_be_written_to(built: Program, context: Path) -> None:
    (context / "Layerfile").write_text(
        "FROM base/small:1\nLAYER workspace w\nREQUIRES toolkit/greet\nRUN ! touch /opt/greet/bin/evil\n"
    )
    built("build", context)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 42"], 42),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
    ],
)  # fmt: skip
def test_r16_exit_codes(layerkit: Program, base: str, command: list[str], code: int) -> None:
    layerkit("run", base, "--", *command, code=code)


def test_r16_what_layerkit_itself_fails_at_is_125_and_a_time_limit_124(layerkit: Program, base: str) -> None:
    layerkit("run", "base/none", "--", "true", code=125)
    layerkit("run", "base/small:1", "-v", "nonsense", "--", "true", code=125)
    layerkit("run", "--timeout", "0.3", base, "--", "sleep", "60", code=124)


def test_streams_environment_user_and_mounts(layerkit: Program, base: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("from the host")
    assert layerkit("run", base, "--", "cat", stdin=b"x" * 200_000) == "x" * 200_000
    done = layerkit.call("run", base, "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert layerkit("run", "-e", "A=1", "-w", "/var", "-u", "user", base, "--", "sh", "-c", "echo $A $PWD; id -u") == (
        "1 /var\n1000\n"
    )
    assert layerkit("run", "-v", f"{shared}:/mnt/shared:ro", base, "--", "cat", "/mnt/shared/file") == "from the host"
    layerkit("run", "-v", f"{shared}:/mnt/shared:ro", base, "--", "touch", "/mnt/shared/new", code=1)


def test_mount_umount_and_status(layerkit: Program, base: str, small_root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    layerkit("mount", base, target, "--prefetch", "none")
    status = layerkit.status()
    assert isinstance(status["hostd"]["pid"], int)
    assert status["holder"] == {"pid": None}
    mounted = status["mounts"][0]
    assert mounted["present_chunks"] * 20 < mounted["chunks"], "data is fetched when it is read"
    assert (target / "bin/bash").read_bytes() == (small_root / "bin/bash").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        (target / "new").touch()
    layerkit("umount", target)
    layerkit("umount", target, code=3)
    layerkit("mount", base, target, "--rw")
    (target / "new").write_text("written")
    layerkit("umount", "--all")
    assert not mounts_below(target)
    assert not (target / "new").exists()


def test_l01_readers_outlive_a_killed_hostd(layerkit: Program, base: str, small_root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    layerkit("mount", base, target, "--prefetch", "none")
    with open(target / "bin/bash", "rb") as file:
        start = file.read(5000)
        os.kill(layerkit.status()["hostd"]["pid"], signal.SIGKILL)
        time.sleep(0.2)
        layerkit("run", base, "--", "true")  # starts the next one
        assert start + file.read() == (small_root / "bin/bash").read_bytes()
    for path in ("bin/ls", "etc/passwd"):
        assert (target / path).read_bytes() == (small_root / path).read_bytes()
    layerkit("umount", target)


def test_the_way_to_run_imports_neither_stores_nor_the_compiler() -> None:
    code = """
import sys
import layerkit.cli.main, layerkit.cli.run_command, layerkit.fuse.client, layerkit.runtime.container
import layerkit.runtime.stack, layerkit.runtime.skeleton
roots = ("boto3", "lmdb", "aiohttp", "layerkit.build", "layerkit.store", "rich")
heavy = [name for name in sys.modules if name.startswith(roots)]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
