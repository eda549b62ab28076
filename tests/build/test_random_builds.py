"""Random builds equal plain copies of the same edits; cached rebuilds equal builds from nothing (B22)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from layerkit.errors import InputError
from layerkit.layer.compare import differences
from layerkit.layer.merge import merge
from tests.build.engine import Bench
from tests.build.random_builds import ImpossibleError, RandomBuild, UnclearError, base_folder

pytestmark = pytest.mark.privileged
BASE = "FROM base/b:1\nLAYER base flat 1"
WORKSPACE = "FROM base/b:1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return base_folder(tmp_path / "root")


def reference(build: RandomBuild, bench: Bench, root: Path, name: str) -> Path:
    """The folder after all steps, done plainly."""
    folder = bench.folder / name
    shutil.copytree(root, folder, symlinks=True, copy_function=shutil.copy2)
    # copytree makes copies of hard links.
    (folder / "usr/lib/a").unlink()
    (folder / "usr/lib/a").hardlink_to(folder / "d/a")
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            shutil.copystat(path, folder / path.relative_to(root))
    build.perform(bench.context, folder)
    return folder


@pytest.mark.parametrize("seed", range(40))
def test_b22_random_builds_equal_the_reference(seed: int, tmp_path: Path, root: Path) -> None:
    bench = Bench(tmp_path / "bench")
    bench.base(root)
    build = RandomBuild(seed)
    build.write_context(bench)
    try:
        plain = reference(build, bench, root, "plain")
    except UnclearError:
        pytest.skip("a copy through a symbolic link")
    except ImpossibleError:
        with pytest.raises(InputError):
            bench.build(build.layerfile(WORKSPACE), tag="workspace/w", executor=build.executor(bench))
        return
    expected = bench.layer(bench.base(plain, "base/plain:1"))
    workspace = bench.build(build.layerfile(WORKSPACE), tag="workspace/w", executor=build.executor(bench)).layers[-1]
    stack = bench.stack(workspace.digest)
    assert [*differences(expected.tree, merge([bench.layer(digest).tree for digest in stack.layers]))] == []
    flat = bench.layer(bench.build(build.layerfile(BASE), executor=build.executor(bench)).layers[-1].digest)
    assert flat.meta == expected.meta
    assert flat.chunk_index_bytes == expected.chunk_index_bytes
    assert flat.facts.to_bytes() == expected.facts.to_bytes()


@pytest.mark.parametrize("seed", range(12))
def test_cached_rebuilds_equal_builds_from_nothing(seed: int, tmp_path: Path, root: Path) -> None:
    pick = random.Random(seed)
    bench = Bench(tmp_path / "bench")
    bench.base(root)
    build = RandomBuild(1000 + seed)
    for turn in range(4):
        build.write_context(bench)
        fresh = Bench(tmp_path / f"fresh-{turn}")
        fresh.base(root)
        build.write_context(fresh)
        outcomes = [outcome(one, build) for one in (bench, fresh)]
        assert outcomes[0] == outcomes[1]
        build.edit(pick)


def outcome(bench: Bench, build: RandomBuild) -> str:
    try:
        result = bench.build(build.layerfile(WORKSPACE), tag="workspace/w", executor=build.executor(bench))
    except InputError as error:
        return f"{type(error).__name__} {error}"
    return result.layers[-1].digest
