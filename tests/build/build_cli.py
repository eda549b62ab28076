"""Runs `layerkit` as a process of its own, in an instance of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHUFFLED = """
import os, random, sys
listdir, scandir, seed = os.listdir, os.scandir, random.Random(int(sys.argv.pop(1)))
class Shuffled:
    def __init__(self, listing):
        with listing:
            self.entries = list(listing)
        seed.shuffle(self.entries)
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    def close(self): pass
    def __iter__(self): return iter(self.entries)
    def __next__(self): return self.entries.pop() if self.entries else next(iter(()))
def shuffled_names(*args):
    names = listdir(*args)
    seed.shuffle(names)
    return names
os.listdir, os.scandir = shuffled_names, lambda *args: Shuffled(scandir(*args))
from layerkit.cli.main import main
main()
"""
"""The program with every directory listing in another order."""


@dataclass(frozen=True)
class Instance:
    """A store, home and run folder below one folder, what else differs, and a command in front of the program."""

    folder: Path
    env: Mapping[str, str] | None = None
    umask: int = 0o022
    prefix: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        names = {name: str(self.folder / name.partition("_")[2].lower()) for name in
                 ("LAYERKIT_STORE", "LAYERKIT_HOME", "LAYERKIT_RUN")}  # fmt: skip
        return {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "random", **names, **(self.env or {})}

    def popen(self, *words: str | Path, start: Sequence[str] = ("-m", "layerkit")) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, *start, *map(str, words)], env=self.environment(), umask=self.umask,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
        )  # fmt: skip

    def run(self, *words: str | Path, start: Sequence[str] = ("-m", "layerkit")) -> dict[str, Any]:
        """The result of a command with --json, which must succeed."""
        process = self.popen(*words, "--json", start=start)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, f"{process.returncode}: {errors.decode()} {output.decode()[-2000:]}"
        result: dict[str, Any] = json.loads(output.splitlines()[-1])["result"]
        return result

    def fail(self, *words: str | Path) -> tuple[int, dict[str, str], str]:
        """Exit code, error object and stderr of a command with --json, which must fail."""
        process = self.popen(*words, "--json")
        output, errors = process.communicate(timeout=120)
        assert process.returncode != 0
        found: dict[str, str] = json.loads(output.splitlines()[-1])["error"]
        return process.returncode, found, errors.decode()
