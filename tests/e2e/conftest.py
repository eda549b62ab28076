"""The program as its users call it: a process of its own, an instance of its own, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_root import make_small_root

TIMEOUT_S = 120


@dataclass
class Program:
    """Calls layerkit with an instance's variables.

    Attributes:
        folder: store, homes and run folders lie below it.
        name: of the host: homes and run folders of different hosts are apart, the store is shared.
    """

    folder: Path
    name: str = "host"
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The variables of the calls."""
        return {
            **os.environ, "LAYERKIT_STORE": str(self.folder / "store"), "LAYERKIT_HOME": str(self.home),
            "LAYERKIT_RUN": str(self.folder / self.name / "run"), "LAYERKIT_LINGER": "0.5", **self.extra,
        }  # fmt: skip

    @property
    def home(self) -> Path:
        """LAYERKIT_HOME."""
        return self.folder / self.name / "home"

    def __call__(self, *words: str | Path, code: int = 0, cwd: Path | None = None, stdin: bytes = b"") -> str:
        """Standard output of a call that must end with `code`."""
        done = self.call(*words, cwd=cwd, stdin=stdin)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        return done.stdout.decode()

    def call(
        self, *words: str | Path, cwd: Path | None = None, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """A call, whatever comes of it."""
        command = [sys.executable, "-m", "layerkit", *map(str, words)]
        return subprocess.run(
            command, env=self.env, cwd=cwd, input=stdin, capture_output=True, check=False, timeout=TIMEOUT_S
        )

    def result(self, *words: str | Path, cwd: Path | None = None) -> dict[str, Any]:
        """The result that a call with --json ends with."""
        value = json.loads(self(*words, "--json", cwd=cwd).splitlines()[-1])["result"]
        assert isinstance(value, dict)
        return value

    def status(self) -> dict[str, Any]:
        """What hostd says of itself."""
        value = json.loads(self("status", "--json").splitlines()[-1])
        assert isinstance(value, dict)
        return value


def mounts_below(folder: Path) -> list[str]:
    """Mount points of this mount namespace below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(str(folder))]


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that belong to an instance below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if f"={folder}".encode() in environment and b"pytest" not in command:
            found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a small base."""
    return make_small_root(tmp_path_factory.mktemp("small") / "root")


@pytest.fixture
def layerkit(tmp_path: Path) -> Iterator[Program]:
    """The program with an instance of its own; at the end its daemons are stopped and nothing may be left."""
    program = Program(tmp_path)
    yield program
    for folder in sorted(path for path in tmp_path.glob("*/run") if (path / "hostd.sock").exists()):
        Program(tmp_path, folder.parent.name)("hostd", "--stop")
    assert not mounts_below(tmp_path)
    deadline = time.monotonic() + 10.0  # hostd's socket is gone a moment before its process is
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.fixture
def base(layerkit: Program, small_root: Path) -> str:
    """A base that is published in the instance's store."""
    layerkit("import", small_root, "-t", "base/small:1", "--publish")
    return "base/small:1"
