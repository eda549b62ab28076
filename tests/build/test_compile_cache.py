"""When a step comes from the cache and when it does not; what the cache keeps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from layerkit.build.import_layer import import_layer
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.step_cache import keep_within_budget, step_cache_in_use
from layerkit.build.stored import StoredLayer
from layerkit.ids import Ref
from layerkit.store.keys import pack_key
from tests.build.engine import HOST, TIME_NS, Bench, UpperExecutor, at, content, make_root, set_times, write

TEXT = "FROM base/b:1\nARG V=1\nWORKDIR /srv\nCOPY d d\nRUN cmd\nCOPY f /f\n"


@pytest.fixture
def ready(based: Bench) -> Bench:
    based.files(f="f", d__a="a" * 3000, d__b="b")
    return based


@pytest.fixture
def executor() -> UpperExecutor:
    return UpperExecutor({"cmd": lambda upper: write(upper, "ran")})


def test_b05_a_second_build_is_fully_cached(ready: Bench, executor: UpperExecutor) -> None:
    first = ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.events.clear()
    second = ready.build(TEXT, tag="workspace/w", executor=executor)
    assert ready.cached() == [True] * 4
    assert (second.steps, second.cached_steps, second.stored_bytes) == (4, 4, 0)
    assert first.layers[-1].digest == second.layers[-1].digest
    assert len(executor.requests) == 1


def test_b05_arguments_miss_only_what_sees_them(ready: Bench, executor: UpperExecutor) -> None:
    text = "FROM base/b:1\nCOPY f /f\nRUN cmd\nARG V=1\nCOPY f /g\nRUN cmd\nARG W\nCOPY d /v$V\n"
    ready.build(text, tag="workspace/w", executor=executor)
    ready.cached()
    ready.build(text, tag="workspace/w", executor=executor, args={"NOBODY": "1"})
    assert ready.cached() == [True] * 5, "an argument that nothing declares"
    ready.build(text, tag="workspace/w", executor=executor, args={"W": "1"})
    assert ready.cached() == [True] * 5, "an argument below every RUN, used in no COPY"
    ready.build(text, tag="workspace/w", executor=executor, args={"V": "2"})
    assert ready.cached() == [True, True, True, False, False], "RUN may read it; COPY says what it uses"


def test_b05_environment_misses_what_runs_in_it(ready: Bench, executor: UpperExecutor) -> None:
    text = "FROM base/b:1\nENV E={}\nCOPY f /f\nRUN cmd\n"
    ready.build(text.format(1), tag="workspace/w", executor=executor)
    ready.cached()
    ready.build(text.format(2), tag="workspace/w", executor=executor)
    assert ready.cached() == [True, False]


def test_proxies_are_in_no_key(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build(TEXT, tag="workspace/w", executor=executor, env={"HTTP_PROXY": "one"})
    ready.cached()
    two = ready.build(TEXT, tag="workspace/w", executor=executor, env={"HTTP_PROXY": "two"})
    assert ready.cached() == [True] * 4
    assert one.layers[-1].digest == two.layers[-1].digest


def test_user_network_and_heredocs_are_in_the_key(ready: Bench) -> None:
    executor = UpperExecutor(dict.fromkeys(("cmd", "/dev/pipes/S"), lambda upper: write(upper, "ran")))
    for text in (
        "RUN cmd", "USER app\nRUN cmd", "RUN --network=none cmd", "SHELL [\"/bin/bash\", \"-c\"]\nRUN cmd",
        "RUN <<S\n#!/bin/sh\n1\nS", "RUN <<S\n#!/bin/sh\n2\nS", 'RUN ["cmd"]',
    ):  # fmt: skip
        ready.build(f"FROM base/b:1\n{text}\n", tag="workspace/w", executor=executor)
    assert ready.cached() == [False] * 7


def test_no_cache_runs_everything_and_renews_the_cache(ready: Bench) -> None:
    number = iter(range(9))
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "ran", str(next(number)))})
    one = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    ready.cached()
    two = ready.build(TEXT, tag="workspace/w", executor=executor, use_cache=False).layers[-1]
    assert ready.cached() == [False] * 4
    three = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert one.digest != two.digest == three.digest


def test_b01_contents_decide_not_times(ready: Bench, executor: UpperExecutor) -> None:
    ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.cached()
    path = ready.context / "d/a"
    path.write_bytes(b"z" * 3000)  # same size
    ready.settle()  # same time
    changed = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached() == [True, False, False, False]
    assert content(ready.stack(changed.digest), "srv/d/a") == b"z" * 3000


def test_b01_other_times_of_equal_files_hit(ready: Bench, executor: UpperExecutor) -> None:
    ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.cached()
    set_times(ready.context, TIME_NS + 5 * 10**9)
    ready.build(TEXT, tag="workspace/w", executor=executor)
    assert ready.cached() == [True] * 4


def test_b03_a_mode_of_a_directory_misses_once(ready: Bench, executor: UpperExecutor) -> None:
    (ready.context / "d/sub").mkdir()
    ready.settle()
    ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.cached()
    (ready.context / "d/sub").chmod(0o700)
    built = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached()[1] is False
    assert at(ready.layer(built.digest).tree, "srv/d/sub").mode & 0o777 == 0o700
    ready.build(TEXT, tag="workspace/w", executor=executor)
    assert ready.cached() == [True] * 4


def test_b04_a_changed_stage_misses_and_what_is_copied_decides(ready: Bench) -> None:
    version = ["1"]
    other = ["1"]

    def make(upper: Path) -> None:
        write(upper, "out", "o" * 300 + version[0])
        write(upper, "unused", other[0])

    text = "FROM base/b:1 AS s\nCOPY f /seed\nRUN make\nFROM base/b:1\nCOPY --from=s /out /out\n"
    executor = UpperExecutor({"make": make})
    ready.build(text, tag="workspace/w", executor=executor)
    ready.cached()
    ready.files(f="new seed")
    other[0] = "2"
    ready.build(text, tag="workspace/w", executor=executor)
    assert ready.cached() == [False, False, True], "the stage is another, but not what is copied"
    ready.files(f="newer seed")
    version[0] = "2"
    built = ready.build(text, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached() == [False, False, False]
    assert content(ready.stack(built.digest), "out").endswith(b"2")


def test_b06_the_same_tree_in_another_folder_hits(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    ready.cached()
    moved = ready.folder / "elsewhere/deep"
    shutil.copytree(ready.context, moved)
    ready.context = moved
    ready.settle()
    two = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached() == [True] * 4
    assert one.digest == two.digest


def test_b11_chown_and_chmod_are_in_the_key(ready: Bench) -> None:
    for flags in ("", "--chown=7 ", "--chmod=700 ", "--chmod=700 --chown=7 "):
        ready.build(f"FROM base/b:1\nCOPY {flags}f /new/f\n", tag="workspace/w")
    assert ready.cached() == [False] * 4
    ready.build("FROM base/b:1\nCOPY --chown=7 f /new/f\n", tag="workspace/w")
    assert ready.cached() == [True]


def test_another_base_misses(ready: Bench, executor: UpperExecutor, tmp_path: Path) -> None:
    ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.cached()
    ready.base(make_root(tmp_path / "newer", added="1"), "base/b:1")
    ready.build(TEXT, tag="workspace/w", executor=executor)
    assert ready.cached() == [False] * 4


def test_a_step_that_changes_nothing_makes_no_layer(ready: Bench) -> None:
    executor = UpperExecutor({"nothing": lambda upper: None})
    built = ready.one("FROM base/b:1\nRUN nothing\nCOPY f /f\n", executor=executor)
    assert ready.cached() == [False, False]
    assert len(ready.stack(built.digest).layers) == 2


def test_a_rebuild_without_any_knowledge_gives_the_same_layer(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    ready.knowledge = BuildKnowledge(ready.folder / "other-home", ready.store)
    ready.cached()
    two = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached() == [False] * 4
    assert one.digest == two.digest


def test_a_cached_layer_that_is_gone_from_the_store_is_made_again(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    shutil.rmtree(ready.folder / "store/layers")
    ready.base(ready.folder / "root")
    ready.cached()
    two = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    assert ready.cached() == [False] * 4
    assert one.digest == two.digest


def test_a_layer_that_lost_a_pack_is_mended_by_building_it_again(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build(TEXT, tag="workspace/w", executor=executor).layers[-1]
    for pack in ready.store.get_locator(one.digest).packs:
        (ready.folder / "store" / pack_key(pack)).unlink()
    two = ready.build(TEXT, tag="workspace/w", executor=executor, use_cache=False).layers[-1]
    assert one.digest == two.digest
    assert content(ready.stack(two.digest), "srv/d/a") == b"a" * 3000


def test_the_cache_is_kept_within_its_budget_and_layers_stay(
    ready: Bench, executor: UpperExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERKIT_HOME", str(ready.folder / "home"))
    ready.file("big", os.urandom(200_000))
    text = TEXT + "COPY big /big\n"
    built = ready.build(text, tag="workspace/w", executor=executor).layers[-1]
    keep_within_budget(ready.store, ready.knowledge, 10**9)
    ready.cached()
    ready.build(text, tag="workspace/w", executor=executor)
    assert ready.cached() == [True] * 5
    with step_cache_in_use():
        keep_within_budget(ready.store, ready.knowledge, 50_000)
    assert ready.knowledge.step_bytes() > 50_000, "another build is under way: its end prunes"
    keep_within_budget(ready.store, ready.knowledge, 50_000)
    assert ready.knowledge.step_bytes() <= 50_000
    assert content(ready.stack(built.digest), "srv/d/a") == b"a" * 3000
    ready.build(text, tag="workspace/w", executor=executor)
    assert False in ready.cached(), "the records beyond the budget are gone"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_b06_owners_of_the_context_do_not_count(ready: Bench, executor: UpperExecutor) -> None:
    ready.build(TEXT, tag="workspace/w", executor=executor)
    ready.cached()
    for name in ("d", "d/a", "f"):
        os.chown(ready.context / name, 1234, 1234)
    ready.build(TEXT, tag="workspace/w", executor=executor)
    assert ready.cached() == [True] * 4


def test_an_unchanged_rebuild_loads_no_tree_and_no_facts(
    ready: Bench, executor: UpperExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT + "COPY --from=base/b:1 /usr/lib /lib2\n"
    one = ready.build(text, tag="workspace/w", executor=executor).layers[-1]
    loaded = []
    real = StoredLayer._part
    monkeypatch.setattr(StoredLayer, "_part", lambda self, name: loaded.append(name) or real(self, name))
    two = ready.build(text, tag="workspace/w", executor=executor).layers[-1]
    assert one.digest == two.digest
    assert set(loaded) == {"config"}


@pytest.mark.parametrize(
    "change", ["epoch", "name", "label", "mtime"]
)  # fmt: skip
def test_what_the_layer_says_is_in_the_emission_key(ready: Bench, executor: UpperExecutor, change: str) -> None:
    base = {"text": TEXT, "tag": "workspace/w", "executor": executor}
    changed = {
        "epoch": {"epoch": 1_000_000_000},
        "name": {"tag": "workspace/other"},
        "label": {"text": TEXT + "LABEL a=b\n"},
        "mtime": {"text": TEXT + "MTIME 7\n"},
    }[change]
    one = ready.build(**base).layers[-1]
    two = ready.build(**{**base, **changed}).layers[-1]
    three = ready.build(**base).layers[-1]
    assert one.digest != two.digest
    assert one.digest == three.digest


def test_epoch_of_parents_that_copy_creates_is_in_the_key(ready: Bench) -> None:
    text = "FROM base/b:1\nCOPY f /new/f\nWORKDIR /made\n"
    ready.build(text, tag="workspace/w")
    built = ready.build(text, tag="workspace/w", epoch=77).layers[-1]
    tree = ready.layer(built.digest).tree
    assert {at(tree, name).mtime_ns for name in ("new", "made")} == {77 * 10**9}


def test_local_names_move_with_each_build(ready: Bench) -> None:
    one = ready.one("FROM base/b:1\nCOPY f /f\n", tag="workspace/w:1.0")
    two = ready.one("FROM base/b:1\nCOPY f /g\n", tag="workspace/w:1.0")
    assert one.digest != two.digest
    assert ready.store.local_refs.get(Ref.parse("workspace/w:1.0"), HOST) == two.digest


def test_copying_from_a_base_does_not_tie_the_layer_to_a_frame_it_hardly_uses(bench: Bench, tmp_path: Path) -> None:
    root = make_root(tmp_path / "r", **{f"opt__f{number}": os.urandom(3000) for number in range(40)})
    base = bench.base(root)
    few = bench.one("FROM base/b:1\nCOPY --from=base/b:1 /opt/f7 /f7\n")
    theirs, own = bench.store.get_locator(base), bench.store.get_locator(few.digest)
    assert not set(own.packs) & set(theirs.packs), "3 KB of a 64 KiB frame: stored again"
    assert content(bench.stack(few.digest), "f7") == (root / "opt/f7").read_bytes()
    many = bench.one("FROM base/b:1\nCOPY --from=base/b:1 /opt /opt2\n")
    assert set(bench.store.get_locator(many.digest).packs) == set(theirs.packs)


def spoil_packs(bench: Bench, digest: str, how: str) -> None:
    for pack in bench.store.get_locator(digest).packs:
        path = bench.folder / "store" / pack_key(pack)
        if how == "gone":
            path.unlink()
        elif how == "cut":
            os.truncate(path, 20)
        else:
            path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_step_whose_packs_are_lost_runs_again(ready: Bench, how: str) -> None:
    text = "FROM scratch\nCOPY d d\nCOPY f /f\n"
    one = ready.build(text, tag="base/w").layers[-1]
    ready.cached()
    spoil_packs(ready, one.digest, how)
    two = ready.build(text, tag="base/w").layers[-1]
    assert ready.cached() == [False, True], "the other step has no data"
    assert one.digest == two.digest
    assert content(ready.stack(two.digest), "d/a") == b"a" * 3000


def test_a_layer_that_lost_a_part_is_made_again(ready: Bench) -> None:
    text = "FROM scratch\nCOPY d d\n"
    one = ready.build(text, tag="base/w").layers[-1]
    for path in (ready.folder / "store/layers").rglob("meta.zst"):
        path.unlink()
    two = ready.build(text, tag="base/w").layers[-1]
    assert one.digest == two.digest
    assert content(ready.stack(two.digest), "d/a") == b"a" * 3000


@pytest.mark.parametrize("how", ["gone", "cut", "overwritten"])
def test_an_import_mends_what_is_damaged(ready: Bench, how: str) -> None:
    root = make_root(ready.folder / "data", big="b" * 5000)
    digest = ready.base(root, "base/d:1")
    spoil_packs(ready, digest, how)
    use_cache = how != "overwritten"
    made = import_layer(ready.store, ready.knowledge, root, Ref.parse("base/d:1"), HOST, use_cache=use_cache)
    assert made.digest == digest
    assert content(ready.stack(digest), "big") == b"b" * 5000


def test_a_build_without_cache_mends_overwritten_packs(ready: Bench, executor: UpperExecutor) -> None:
    one = ready.build("FROM scratch\nCOPY d d\n", tag="base/w").layers[-1]
    spoil_packs(ready, one.digest, "overwritten")
    two = ready.build("FROM scratch\nCOPY d d\n", tag="base/w", use_cache=False).layers[-1]
    assert one.digest == two.digest
    assert content(ready.stack(two.digest), "d/a") == b"a" * 3000


def test_chunks_in_a_cut_pack_of_another_layer_are_stored_again(ready: Bench) -> None:
    root = make_root(ready.folder / "data", big="b" * 5000)
    spoil_packs(ready, ready.base(root, "base/d:1"), "cut")
    ready.file("copy", "b" * 5000)
    built = ready.build("FROM scratch\nCOPY copy /copy\n", tag="base/w").layers[-1]
    assert content(ready.stack(built.digest), "copy") == b"b" * 5000
