"""The command line as tests call it: in this process, with an instance of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from layerkit.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON lines."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """What the last line says."""
        found: dict[str, Any] = self.objects[-1]["result"]
        return found


Run = Callable[..., Outcome]


@pytest.fixture
def run(instance: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `layerkit WORDS…`; `code=` is what must come out (None: anything)."""

    def call(*words: str | Path, code: int | None = 0) -> Outcome:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capfdbinary.readouterr()
        outcome = Outcome(int(ended.value.code or 0), out, err.decode())
        assert code in (None, outcome.code), f"{outcome.code}: {outcome.stderr}{outcome.stdout!r}"
        return outcome

    return call


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small root file system."""
    folder = tmp_path / "tree"
    (folder / "etc").mkdir(parents=True)
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "etc/os-release").write_text("NAME=Small\n")
    (folder / "usr/bin/tool").write_text("#!/bin/sh\n" + "# padding\n" * 100)
    (folder / "usr/bin/tool").chmod(0o755)
    (folder / "big").write_bytes(bytes(range(256)) * 8000)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc/release").symlink_to("/etc/os-release")
    os.link(folder / "usr/bin/tool", folder / "usr/bin/tool2")
    with open(os.fsencode(folder) + b"/caf\xe9\n", "wb") as file:
        file.write(b"odd")
    return folder
