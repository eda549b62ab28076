"""Random builds with a reference: every step is done in layerkit and, plainly, in a folder of this machine.

A step is plain data (a list of operations, or a copy), so that it means the same wherever it is done; an operation
whose conditions do not hold does nothing, so that steps can be left out and put in.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.build.engine import TIME_NS, Bench, OverlayExecutor, make_root, set_times

Operation = tuple[Any, ...]
FOLDERS = ("d", "d/e", "usr/lib", "var", "new", "new/x", "etc")
NAMES = ("a", "b", "c", "e", "x", "METADATA")
KINDS = ("write",) * 4 + ("remove",) * 3 + ("mkdir",) * 3 + ("append", "symlink", "fifo", "mode", "link", "move")
MODES = (0o644, 0o755, 0o600, 0o4755)


def perform(root: Path, operation: Operation) -> None:
    """Do one operation below a root; nothing when it is not possible."""
    kind, name, *rest = operation
    path = root / name
    parent = path.parent
    if not parent.is_dir() or parent.is_symlink() or any(p.is_symlink() for p in parent.parents if p != root):
        return
    there = os.path.lexists(path)
    is_dir = there and path.is_dir() and not path.is_symlink()
    if kind == "remove" and there:
        shutil.rmtree(path) if is_dir else path.unlink()
    elif kind == "write" and not is_dir:
        if there:
            path.unlink()
        path.write_bytes(rest[0])
        path.chmod(rest[1])
    elif kind == "append" and there and path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
        with open(path, "ab") as file:
            file.write(rest[0])
    elif kind == "mkdir" and not there:
        path.mkdir()
        path.chmod(rest[0])
    elif kind == "symlink" and not there:
        path.symlink_to(rest[0])
    elif kind == "fifo" and not there:
        os.mkfifo(path)
    elif kind == "mode" and there and not path.is_symlink() and (is_dir or path.stat().st_nlink == 1):
        path.chmod(rest[0])
        os.chown(path, rest[1], rest[1])
        path.chmod(rest[0])
    elif kind == "link" and not there:
        source = root / rest[0]
        # An overlay leaves the other names of a lower's hard link behind when it copies one of them up.
        if not source.is_file() or source.is_symlink() or source.stat().st_nlink > 1:
            return
        os.link(source, path)
        _settle(source, root)
    elif kind == "move" and not there:
        source = root / rest[0]
        if not source.is_file() or source.is_symlink() or source.stat().st_nlink > 1:
            return
        source.rename(path)
        _settle(source.parent, root)
    else:
        return
    if os.path.lexists(path):
        _settle(path, root)
    _settle(parent, root)


def _settle(path: Path, root: Path) -> None:
    """One time for everything that was touched; the root keeps its own, as in every build."""
    if path == root or not os.path.islink(path):
        os.utime(path, ns=(TIME_NS, TIME_NS) if path == root else (7, 7))
    else:
        os.utime(path, ns=(7, 7), follow_symlinks=False)


@dataclass(frozen=True)
class Copying:
    """COPY of a name in the context to a path."""

    source: str
    dest: str


Step = list[Operation] | Copying


@dataclass
class RandomBuild:
    """Steps, the files of the context, and what makes both from a seed."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    context: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pick = random.Random(self.seed)
        self.context = {name: _data(pick) for name in ("c1", "METADATA", "tree/a", "tree/e/x", "tree/e/run")}
        self.steps = [self.step(pick) for _ in range(pick.randrange(2, 6))]

    def step(self, pick: random.Random) -> Step:
        if pick.random() < 0.35:
            dest = pick.choice(("d/copied", "new/y", "usr/lib", "d/e", "fresh/deep", "d/p.dist-info"))
            source = pick.choice(("c1", "tree", "METADATA"))
            return Copying(source, dest if source == "tree" else f"{dest}/")
        return [_operation(pick) for _ in range(pick.randrange(1, 8))]

    def edit(self, pick: random.Random) -> None:
        """Change steps or context at random."""
        kind = pick.randrange(4)
        if kind == 0 and len(self.steps) > 1:
            self.steps.pop(pick.randrange(len(self.steps)))
        elif kind == 1:
            self.steps.insert(pick.randrange(len(self.steps) + 1), self.step(pick))
        elif kind == 2:
            self.context[pick.choice(list(self.context))] = _data(pick)
        else:
            self.steps.append(self.step(pick))

    def layerfile(self, head: str) -> str:
        lines = [head]
        for step in self.steps:
            if isinstance(step, Copying):
                lines.append(f"COPY {step.source} /{step.dest}")
            else:
                lines.append(f"RUN {self.name(step)}")
        return "\n".join(lines) + "\n"

    def name(self, operations: list[Operation]) -> str:
        return f"do {hash_of(operations)}"

    def executor(self, bench: Bench) -> OverlayExecutor:
        def script(operations: list[Operation]) -> Any:
            return lambda root: [perform(root, operation) for operation in operations]

        runs = [step for step in self.steps if not isinstance(step, Copying)]
        return OverlayExecutor(bench, {self.name(step): script(step) for step in runs})

    def write_context(self, bench: Bench) -> None:
        shutil.rmtree(bench.context)
        bench.context.mkdir()
        for name, data in self.context.items():
            bench.file(name, data, 0o755 if name.endswith("run") else 0o644)

    def perform(self, context: Path, root: Path) -> None:
        """All steps in a folder that holds the base."""
        for step in self.steps:
            if isinstance(step, Copying):
                _copy(context / step.source, root, step.dest)
            else:
                for operation in step:
                    perform(root, operation)


def hash_of(operations: list[Operation]) -> str:
    """A name that is the same in every process."""
    return f"{random.Random(repr(operations)).getrandbits(64):x}"


def base_folder(folder: Path) -> Path:
    root = make_root(folder, d__a="a" * 700, d__b="#!/bin/sh\n", d__e__x="x", usr__lib__c="c" * 40_000)
    (root / "d/b").chmod(0o755)
    os.link(root / "d/a", root / "usr/lib/a")
    set_times(root)
    return root


def _data(pick: random.Random) -> bytes:
    kind = pick.randrange(5)
    if kind == 0:
        return b"#!/usr/bin/env python3\n" + pick.randbytes(pick.choice((3, 900)))
    if kind == 1:
        return b"Name: p\nVersion: " + str(pick.randrange(9)).encode() + b"\n\n" + b"t" * pick.choice((0, 900))
    return pick.randbytes(pick.choice((0, 1, 256, 257, 5000, 30_000)))


def _operation(pick: random.Random) -> Operation:
    path = f"{pick.choice(FOLDERS)}/{pick.choice(NAMES)}" if pick.random() < 0.85 else pick.choice(FOLDERS)
    if pick.random() < 0.1:
        path = pick.choice(("d/p.dist-info", "d/p.dist-info/METADATA"))
    other = f"{pick.choice(FOLDERS)}/{pick.choice(NAMES)}"
    kind = pick.choice(KINDS)
    arguments = {
        "write": (_data(pick), pick.choice(MODES)),
        "append": (_data(pick),),
        "mkdir": (pick.choice((0o755, 0o700, 0o1777)),),
        "symlink": (pick.choice(("x", "/d", "../e")),),
        "mode": (pick.choice(MODES), pick.choice((0, 5))),
        "link": (other,),
        "move": (other,),
    }
    return (kind, path, *arguments.get(kind, ()))


def _copy(source: Path, root: Path, dest: str) -> None:
    """COPY as docs/layerfile.md has it, for destinations without links; folders that were there keep everything."""
    target = root / dest
    if _is_impossible(source, root, target, into=dest.endswith("/")):
        raise ImpossibleError
    folders_before = [path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink()]
    times = {path: path.stat().st_mtime_ns for path in folders_before}
    made = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    for path in made:
        path.chmod(0o755)
        times[path] = 0
    for folder, folders, files in os.walk(source) if source.is_dir() else [(str(source.parent), [], [source.name])]:
        inside = Path(folder).relative_to(source if source.is_dir() else source.parent)
        for name in folders:
            path = target / inside / name
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
            os.chown(path, 0, 0)
            times[path] = (Path(folder) / name).stat().st_mtime_ns
        for name in files:
            path = target / inside / name
            if os.path.lexists(path):
                path.unlink()
            shutil.copy2(Path(folder) / name, path)
            os.chown(path, 0, 0)
    for path, time_ns in times.items():
        os.utime(path, ns=(time_ns, time_ns))


class ImpossibleError(Exception):
    """The reference refuses a copy; layerkit must refuse it too."""


def _is_impossible(source: Path, root: Path, target: Path, *, into: bool) -> bool:
    here = root
    for name in target.relative_to(root).parts:
        here = here / name
        if here.is_symlink():
            raise UnclearError
        if here.exists() and not here.is_dir():
            return True
    pairs = [(source, target / source.name)] if not source.is_dir() else [
        (path, target / path.relative_to(source)) for path in source.rglob("*")
    ]  # fmt: skip
    for original, path in pairs:
        if path.is_symlink() and not original.is_dir():
            continue
        if os.path.lexists(path) and (original.is_dir() != stat.S_ISDIR(path.lstat().st_mode)):
            return True
    return False


class UnclearError(Exception):
    """A copy through a link, which this reference does not follow."""
