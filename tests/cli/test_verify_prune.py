"""verify names every damage; prune frees what nothing needs, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layerkit._util.files import locked
from layerkit.cli.stores import open_default_store, open_knowledge
from layerkit.store.keys import manifest_key
from tests.cli.conftest import Outcome, Run


@pytest.fixture
def base(run: Run, tree: Path) -> str:
    digest: str = run("import", tree, "-t", "base/small:1", "--json").result["digest"]
    return digest


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.rglob(pattern)
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "pack contents": ("*.pack", lambda path: flip(path, 100), "corrupt"),
    "pack footer": ("*.pack", lambda path: flip(path, path.stat().st_size - 40), "corrupt"),
    "pack cut": ("*.pack", cut, "corrupt"),
    "pack gone": ("*.pack", Path.unlink, "missing"),
    "manifest": ("manifest.json", lambda path: flip(path, 30), "corrupt"),
    "config": ("config.json", lambda path: flip(path, 5), "corrupt"),
    "meta": ("meta.zst", lambda path: flip(path, 60), "corrupt"),
    "meta gone": ("meta.zst", Path.unlink, "missing"),
    "chunk index": ("index.zst", cut, "corrupt"),
    "facts": ("facts.zst", lambda path: path.write_bytes(b"x"), "corrupt"),  # type: ignore[dict-item,return-value]
    "locator": ("locators/*/*", lambda path: flip(path, 50), "corrupt"),
    "locator gone": ("locators/*/*", Path.unlink, "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_l11_every_damage_is_named(run: Run, base: str, instance: Path, damage: str) -> None:
    assert run("verify", "--json").objects == [{"result": {"findings": 0, "sound": True}}]
    pattern, spoil, code = DAMAGES[damage]
    path = only(instance / "store", pattern)
    spoil(path)
    for words in ((), ("--all",), ("base/small:1",)):
        outcome = run("verify", "--json", *words, code=4)
        *findings, last = outcome.objects
        assert last["result"] == {"findings": len(findings), "sound": False}
        assert any(found["code"] == code and str(path).endswith(found["where"]) for found in findings), findings
        assert all(found["refs"] == ["base/small:1"] for found in findings if found["layer"])
    assert path.name in run("verify", code=4).text


def test_verify_names_a_lost_parent_and_a_dangling_name(run: Run, base: str, instance: Path) -> None:
    from layerkit.errors import MissingError
    from tests.cli.test_look import publish_layer
    from tests.layer.layer_trees import directory, file

    publish_layer(directory({b"a": file(b"x")}), "workspace/app:dev", parent=base)
    run("publish", "base/small:1")
    open_default_store().objects.delete(manifest_key(base))
    findings = run("verify", "--json", code=4).objects[:-1]
    assert any("parent" in found["message"] and found["refs"] == ["workspace/app:dev"] for found in findings)
    assert any(found["where"].startswith("refs/") for found in findings)
    assert MissingError.exit_code == run("files", "workspace/app:dev", code=None).code


def test_verify_leaves_crash_garbage_alone(run: Run, base: str, instance: Path) -> None:
    pack = only(instance / "store", "*.pack")
    (pack.parent / ".tmp-0123456789abcdef").write_bytes(b"half")
    layer = instance / "store/layers/ab" / ("ab" * 32)
    layer.mkdir(parents=True)
    (layer / "meta.zst").write_bytes(b"part of a layer that never was")
    run("verify")


def test_a_corrupt_layer_does_not_hide_the_others_in_ls(run: Run, base: str, tree: Path, instance: Path) -> None:
    (tree / "more").touch()
    run("import", tree, "-t", "base/other:1")
    flip(instance / "store" / manifest_key(base), 30)
    outcome = run("ls", "--json", code=4)
    rows = {row["ref"]: row for row in outcome.objects}
    assert rows["base/small:1"]["error"]["code"] == "corrupt"
    assert rows["base/other:1"]["plain_bytes"] > 0
    assert "corrupt" in run("ls", code=4).text


def test_importing_again_mends(run: Run, base: str, tree: Path, instance: Path) -> None:
    """A second import trusts what this machine knows, which says where the chunks were; without it they are stored."""
    only(instance / "store", "meta.zst").unlink()
    only(instance / "store", "*.pack").unlink()
    shutil.rmtree(instance / "home/knowledge")
    only(instance / "store", "manifest.json").unlink()
    run("import", tree, "-t", "base/small:1")
    run("verify")


# prune


@pytest.fixture
def built(run: Run, tmp_path: Path) -> Callable[..., Outcome]:
    """Builds a Dockerfile of two COPYs from nothing; the text of the second file may be given."""
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY one /one\nCOPY two /two\n")
    (context / "one").write_bytes(b"1" * 5000)

    def build(text: str = "2", ref: str = "base/built") -> Outcome:
        (context / "two").write_text(text * 5000)
        os.utime(context / "two", (7, 7))
        return run("build", context, "-t", ref, "--json")

    return build


def layers_in(instance: Path) -> set[str]:
    return {path.parent.name for path in (instance / "store/layers").rglob("manifest.json")}


def pruned(run: Run, *words: str) -> dict[str, object]:
    found: dict[str, object] = run("prune", "--json", *words).result
    return found["step_cache"]  # type: ignore[return-value]


def test_prune_all_takes_the_steps_and_leaves_what_has_a_name(
    run: Run, built: Callable[..., Outcome], instance: Path
) -> None:
    digest = built().result["digest"]
    before = layers_in(instance)
    assert len(before) > 1
    dry = pruned(run, "--all", "--dry-run")
    assert layers_in(instance) == before
    real = pruned(run, "--all")
    assert (dry["steps"], dry["layers"], dry["freed_bytes"]) == (real["steps"], real["layers"], real["freed_bytes"])
    assert real["steps"] == 3  # two COPYs, and the layer that was put together of them
    assert real["kept_layers"] == 1
    assert real["freed_bytes"] > 0  # type: ignore[operator]
    left = layers_in(instance)
    assert digest[7:] in left
    assert before - left == {layer[7:] for layer in real["layers"]}  # type: ignore[attr-defined]
    run("verify")
    again = built().result
    assert (again["digest"], again["cached_steps"]) == (digest, 0)
    assert built().result["cached_steps"] == 2
    assert run("cat", "base/built", "/two").stdout == b"2" * 5000


def test_prune_to_the_budget_takes_the_oldest(
    run: Run, built: Callable[..., Outcome], instance: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("2")
    built("3")  # the same first step, another second one
    assert pruned(run)["steps"] == 0
    knowledge = open_knowledge(open_default_store())
    monkeypatch.setenv("LAYERKIT_STEP_CACHE", str(knowledge.step_bytes() - 1))
    assert pruned(run)["steps"] == 1
    assert built("3").result["cached_steps"] == 1  # the shared first step was the least recently used
    run("verify")


def test_prune_keeps_layers_that_something_else_needs(
    run: Run, built: Callable[..., Outcome], instance: Path
) -> None:
    from layerkit.ids import Platform, Ref
    from tests.cli.test_look import publish_layer
    from tests.layer.layer_trees import directory, file

    final = built().result["digest"]
    store = open_default_store()
    steps = sorted(open_knowledge(store).step_layers() - {final})
    assert len(steps) == 2
    # One has a name, the other is what a named layer stands on.
    store.local_refs.set(Ref.parse("base/kept:dev"), Platform.host(), steps[0])
    publish_layer(directory({b"a": file(b"x")}), "workspace/app:dev", parent=steps[1])
    found = pruned(run, "--all")
    assert (found["steps"], found["layers"], found["kept_layers"]) == (3, [], 3)
    assert {step[7:] for step in steps} <= layers_in(instance)
    run("verify")


def test_prune_respects_leases(run: Run, built: Callable[..., Outcome], instance: Path) -> None:
    built()
    store = open_default_store()
    steps = sorted(open_knowledge(store).step_layers())
    lease = store.create_lease("a host", holds=steps)
    assert pruned(run, "--all")["layers"] == []
    store.release_lease(lease)
    built("3")
    # Somebody's lease protects what has just been stored, whoever stored it.
    lease = store.create_lease("a build elsewhere")
    assert pruned(run, "--all")["layers"] == []
    store.release_lease(lease)


def test_prune_waits_for_builds(run: Run, built: Callable[..., Outcome], instance: Path) -> None:
    built()
    with locked(instance / "home/step-cache.lock", shared=True):
        refused = run("prune", code=5)
    assert "under way" in refused.stderr
    run("prune")


def test_prune_when_local_knowledge_is_lost(run: Run, built: Callable[..., Outcome], instance: Path) -> None:
    digest = built().result["digest"]
    shutil.rmtree(instance / "home/knowledge")
    assert pruned(run, "--all")["steps"] == 0
    assert built().result["digest"] == digest


def test_steps_of_another_store_stay(
    run: Run, built: Callable[..., Outcome], instance: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built()
    monkeypatch.setenv("LAYERKIT_STORE", str(instance / "store2"))
    built()
    assert pruned(run, "--all")["steps"] == 3
    monkeypatch.setenv("LAYERKIT_STORE", str(instance / "store"))
    assert built().result["cached_steps"] == 2


def test_prune_removes_what_killed_writers_left(run: Run, base: str, instance: Path) -> None:
    stale = instance / "store/packs/.tmp-0123456789abcdef"
    stale.write_bytes(b"half a pack")
    os.utime(stale, (1, 1))
    assert run("prune", "--json").result["stale_files"] == 1
    assert not stale.exists()
    assert json.loads(run("prune", "--json").stdout)["result"]["stale_files"] == 0


@pytest.mark.privileged
@pytest.mark.slow  # hostd lets a mount linger
def test_prune_evicts_what_the_host_does_not_use(run: Run, base: str, instance: Path) -> None:
    from layerkit.fuse.client import HostClient

    target = instance / "mnt"
    target.mkdir()
    run("mount", "base/small:1", target)
    try:
        assert (target / "etc/os-release").read_text() == "NAME=Small\n"
        assert run("prune", "--all", "--json").result["host_cache"]["evicted"] == []
        assert {row["kind"]: row for row in run("df", "--json").objects[:-1]}["host cache"]["objects"] == 1
        run("umount", target)
        deadline = time.monotonic() + 20
        while not (dry := run("prune", "--all", "--dry-run", "--json").result["host_cache"])["evicted"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        done = run("prune", "--all", "--json").result["host_cache"]
        assert done["evicted"] == dry["evicted"] == [base]
        assert done["freed_bytes"] > 0
        assert {row["kind"]: row for row in run("df", "--json").objects[:-1]}["host cache"]["objects"] == 0
    finally:
        with HostClient.connect(start=False) as client:
            client.umount_all()
            client.shutdown()
