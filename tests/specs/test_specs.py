"""The examples in specs/: all of them parse and plan; on a machine that can, all of them are built and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit.build.layerfile.parser import parse_layerfile
from layerkit.build.stages import plan_build
from tests.e2e.conftest import Program, mounts_below
from tests.support.small_root import make_small_root

ROOT = Path(__file__).parent.parent.parent
SPECS = ROOT / "specs"
FILES = sorted([*SPECS.glob("*/Layerfile"), *SPECS.glob("*/Dockerfile")])
TOOLKITS = ("python", "git", "node")
PROJECT = "setuptools-scm"
STACK = "workspace/setuptools-scm,toolkit/python,toolkit/git,toolkit/node"
EPOCH = "1704067200"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_spec_parses_and_plans(path: Path) -> None:
    plan = plan_build(parse_layerfile(path.read_bytes(), str(path)), build_args={"BASE": "base/other:1"})
    assert plan.stages[-1].origin.text == "base/other:1", "the base can be chosen"


def test_the_table_of_specs_is_complete() -> None:
    listed = set(re.findall(r"\]\(([\w./-]+)\)", (SPECS / "README.md").read_text()))
    assert listed == {str(path.relative_to(SPECS)) for path in FILES} | {"base/bootstrap"}


def test_specs_name_no_servers() -> None:
    for path in [*SPECS.rglob("*"), ROOT / "scripts" / "demo"]:
        if path.is_file():
            assert not re.findall(r"[a-z]+://\S+", path.read_text()), path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("specs")


@pytest.fixture(scope="module")
def layerkit(folder: Path) -> Iterator[Program]:
    program = Program(folder, extra={"SOURCE_DATE_EPOCH": EPOCH})
    yield program
    if (folder / program.name / "run" / "hostd.sock").exists():
        program("hostd", "--stop")
    assert not mounts_below(folder)


@pytest.mark.privileged
def test_an_ordinary_dockerfile_is_built_mounted_and_run(layerkit: Program, folder: Path) -> None:
    layerkit("import", make_small_root(folder / "small"), "-t", "base/small:1")
    built = layerkit.result(
        "build", SPECS / "greeter", "-t", "workspace/greeter:1", "--build-arg", "BASE=base/small:1"
    )
    assert (built["steps"], built["cached_steps"]) == (3, 0)
    assert layerkit("run", "workspace/greeter:1") == "Welcome, you\n"
    assert layerkit("run", "workspace/greeter:1", "--", "sh", "-c", "id -u; pwd; cat latest") == (
        "1000\n/srv/greeter\nHello, builder\n"
    )
    mounted = folder / "mounted"
    mounted.mkdir()
    layerkit("mount", "workspace/greeter:1", mounted, "--prefetch", "none")
    assert (mounted / "srv/greeter/latest").read_text() == "Hello, builder\n"
    layerkit("umount", "--all")


def unreachable(folder: Path) -> str:
    """Why the packages that the specs install cannot be had here; '' when they can."""
    if not (shutil.which("mmdebstrap") and Path("/etc/debian_version").exists()):
        return "needs Debian and mmdebstrap"
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    limits = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20", "-o", f"Dir::State::Lists={lists}"]
    if subprocess.run(["apt-get", "update", "-qq", "--error-on=any", *limits], check=False).returncode:
        return "apt reaches no packages"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--retries=0", "--no-deps", "-d", folder, "iniconfig==2.1.0"]
    return "pip reaches no packages" if subprocess.run(pip, check=False).returncode else ""


@pytest.fixture(scope="module")
def built(layerkit: Program, folder: Path) -> Program:
    """The base and everything on it."""
    if reason := unreachable(folder):
        pytest.skip(reason)
    tar = folder / "base.tar"
    subprocess.run([SPECS / "base" / "bootstrap", tar], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    layerkit("import", tar, "-t", "base/debian:1")
    tar.unlink()
    for spec in (*TOOLKITS, PROJECT):
        build(layerkit, spec)
    return layerkit


def build(layerkit: Program, spec: str) -> dict[str, object]:
    return layerkit.result("build", "--host-trust", "--build-arg", "SOURCE_DATE_EPOCH", SPECS / spec)


@pytest.mark.privileged
@pytest.mark.slow
@pytest.mark.timeout(900)
class TestBuilt:
    """What the specs made; the first test waits for the builds."""

    def test_tools_run_on_a_base_that_has_none_of_them(self, built: Program) -> None:
        built("run", "base/debian:1", "--", "sh", "-c", "! command -v python3 git node")
        modules = "bz2, ctypes, curses, hashlib, lzma, pytest, readline, sqlite3, ssl, uuid, zlib"
        code = f"import sys, {modules}; print(sys.prefix)"
        assert built("run", "base/debian:1,toolkit/python", "--", "python3", "-c", code) == "/opt/python\n"
        assert built("run", "base/debian:1,toolkit/node", "--", "node", "-p", "6*7") == "42\n"
        assert built("run", "base/debian:1,toolkit/git", "--", "git", "--version").startswith("git version 2.")

    def test_the_project_tests_itself_in_the_stack(self, built: Program) -> None:
        tests = ["testing/test_git.py", "testing/test_version.py"]
        assert " passed" in built("run", STACK, "--", ".venv/bin/python", "-m", "pytest", "-q", *tests).splitlines()[-1]

    def test_bytecode_is_valid_in_the_layer(self, built: Program) -> None:
        code = "import rich.console, setuptools, pytest, asyncio"
        done = built.call("run", STACK, "--", ".venv/bin/python", "-B", "-v", "-c", code)
        text = done.stderr.decode()
        assert done.returncode == 0, text
        compiled = re.findall(r"code object from (/\S+\.py)$", text, re.MULTILINE)
        assert not compiled

    def test_nothing_runs_again_when_nothing_changed(self, built: Program) -> None:
        for spec in (*TOOLKITS, PROJECT):
            result = build(built, spec)
            assert result["cached_steps"] == result["steps"], spec
            assert result["stored_bytes"] == 0
