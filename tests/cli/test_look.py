"""ls, inspect, files, cat, diff, publish, rm, df: what they print and where they stop."""

from __future__ import annotations

import os
from base64 import b64decode
from pathlib import Path

import pytest

from layerkit.build.stored import StoredLayers
from layerkit.cli.stores import open_default_store, open_knowledge
from layerkit.errors import RefError
from layerkit.ids import Platform, Ref, split_stack
from layerkit.layer.config import LayerConfig
from layerkit.layer.tree import Inode
from layerkit.layer.whiteouts import make_whiteout
from tests.cli.conftest import Run
from tests.layer.layer_trees import directory, file

SIZES = ("meta_bytes", "chunk_index_bytes", "plain_bytes", "stored_bytes")


@pytest.fixture
def base(run: Run, tree: Path) -> str:
    """base/small:1, imported; its digest."""
    digest: str = run("import", tree, "-t", "base/small:1", "--json").result["digest"]
    return digest


def publish_layer(tree: Inode, ref: str, **config: object) -> str:
    """A layer of inline files, named locally."""
    from layerkit.build.making import LayerMaking

    store = open_default_store(create=True)
    with LayerMaking(store, open_knowledge(store)) as making:
        parsed = Ref.parse(ref)
        description = LayerConfig(parsed.kind, parsed.name, parsed.version, **config)  # type: ignore[arg-type]
        made = making.finish(tree, description)
    store.local_refs.set(parsed, Platform.host(), made.digest)
    return made.digest


@pytest.fixture
def workspace(base: str) -> str:
    """workspace/app:dev on base/small:1: a file more, one less."""
    changes = directory({b"app": file(b"hello\n"), b"etc": directory({b"os-release": make_whiteout()})})
    return publish_layer(changes, "workspace/app:dev", parent=base)


def test_ls(run: Run, base: str, workspace: str) -> None:
    rows = {row["ref"]: row for row in run("ls", "--json").objects}
    assert rows.keys() == {"base/small:1", "workspace/app:dev"}
    row = rows["base/small:1"]
    assert (row["digest"], row["platform"], row["origin"]) == (base, str(Platform.host()), "local")
    assert row["plain_bytes"] > 2_000_000
    assert all(row[size] > 0 for size in SIZES)
    assert [row["ref"] for row in run("ls", "app", "--json").objects] == ["workspace/app:dev"]
    assert [row["ref"] for row in run("ls", "base/*", "--json").objects] == ["base/small:1"]
    assert base[:19] in run("ls").text
    assert run("ls", "nothing/*", code=3).text == ""
    assert "base/small" in run("ls", "base/smal1", code=3).stderr


def test_ls_versions_in_their_order(run: Run, tree: Path) -> None:
    for version in ("1.10", "1.9", "1.9rc1", "dev"):
        run("import", tree, "-t", f"base/small:{version}", *(["--publish"] if version != "dev" else []))
    run("publish", "base/small:1.9", "--tag", "stable")
    (row,) = run("ls", "--versions", "--json").objects
    assert row == {"name": "base/small", "versions": ["1.9rc1", "1.9", "1.10"], "local": ["dev"], "tags": ["stable"]}
    refs = [row["ref"] for row in run("ls", "--json").objects if row["origin"] == "published"]
    assert refs == ["base/small:1.9rc1", "base/small:1.9", "base/small:1.10"]


def test_inspect(run: Run, base: str, workspace: str) -> None:
    (value,) = run("inspect", "base/small:1", "--json", "--facts").objects
    assert value["digest"] == base
    assert value["stack"] == [base]
    assert value["config"]["kind"] == "base"
    assert value["summary"]["scripts"] == 2
    assert value["facts"]["usr/bin/tool"]["interpreter"] == "/bin/sh"
    assert run("inspect", "workspace/app:dev", "--json").objects[0]["stack"] == [base, workspace]
    for spelling in (base, base[:15], "base/small", "base/small>=1,<2", f"base/small@{base}"):
        assert run("inspect", spelling, "--json").objects[0]["digest"] == base
    assert base in run("inspect", "workspace/app:dev").text


def test_files(run: Run, base: str, workspace: str) -> None:
    lines = run("files", "base/small:1").text.splitlines()
    assert lines[0] == "/"
    assert r"/caf\xe9\n" in lines
    assert run("files", "base/small:1", "/bin").text.splitlines() == ["/usr/bin", "/usr/bin/tool", "/usr/bin/tool2"]
    rows = {row["path"]: row for row in run("files", "base/small:1", "--json").objects}
    assert rows["/caf%E9\n"]["type"] == "file"
    assert (rows["/usr/bin/tool"]["links"], rows["/usr/bin/tool"]["mode"]) == (2, "0755")
    assert (rows["/bin"]["type"], rows["/bin"]["target"]) == ("symlink", "usr/bin")
    long = run("files", "-l", "base/small:1", "/bin/tool").text
    assert long.startswith("-rwxr-xr-x   2")
    stack = run("files", "workspace/app:dev").text.splitlines()
    assert "/app" in stack
    assert "/usr/bin/tool" in stack
    assert "/etc/os-release" not in stack
    own = run("files", "--own", "--json", "workspace/app:dev").objects
    assert [(row["path"], row["type"]) for row in own] == [
        ("/", "directory"), ("/app", "file"), ("/etc", "directory"), ("/etc/os-release", "whiteout"),
    ]  # fmt: skip


def test_stacks_lie_as_they_run(run: Run, base: str, workspace: str) -> None:
    for name, text in (("one", b"1"), ("two", b"2")):
        opt = directory({b"opt": directory({b"who": file(text), name.encode(): file(text)})})
        publish_layer(opt, f"toolkit/{name}:1", prefixes=("/opt",))
    for stack in ("base/small,toolkit/one,toolkit/two", "toolkit/one,toolkit/two,base/small",
                  "toolkit/one,toolkit/two,workspace/app:dev"):  # fmt: skip
        assert run("cat", stack, "/opt/who").stdout == b"2"
        assert "/opt/one" in run("files", stack, "/opt").text
    assert run("cat", "toolkit/two,workspace/app:dev", "/app").stdout == b"hello\n"


def test_split_stack() -> None:
    assert split_stack("base/a>=1,<2,toolkit/b, base/c:1") == ["base/a>=1,<2", "toolkit/b", "base/c:1"]
    for text in ("", "a,", ",a", "a,,b"):
        with pytest.raises(RefError):
            split_stack(text)


def test_cat(run: Run, base: str, tree: Path) -> None:
    big = (tree / "big").read_bytes()
    assert run("cat", "base/small", "/big").stdout == big
    assert run("cat", "base/small", "etc/release", "/bin/../../etc/os-release").stdout == b"NAME=Small\n" * 2
    *pieces, last = run("cat", "base/small", "/big", "--json").objects
    assert b"".join(b64decode(piece["base64"]) for piece in pieces) == big
    assert last == {"result": {"files": 1, "bytes": len(big)}}
    assert run("cat", "base/small", os.fsdecode(b"/caf\xe9\n")).stdout == b"odd"
    # Looked up before the first byte goes out.
    found = run("cat", "base/small", "/etc/os-release", "/etc/os-releas", code=3)
    assert found.stdout == b""
    assert "os-release" in found.stderr
    assert "not a regular file" in run("cat", "base/small", "/etc", code=2).stderr


def test_diff(run: Run, base: str, workspace: str, tree: Path) -> None:
    assert run("diff", "base/small:1", "base/small:1").text == ""
    (tree / "etc/os-release").write_text("NAME=Changed\n")
    (tree / "new").write_bytes(os.urandom(5000))
    (tree / "big").unlink()
    run("import", tree, "-t", "base/small:2")
    lines = run("diff", "base/small:1", "base/small:2", code=1).text.splitlines()
    assert lines[1:4] == [
        "D /big  2048000 bytes", "M /etc/os-release  (mtime, content 11 → 13 bytes)", "A /new  5000 bytes",
    ]  # fmt: skip
    *rows, last = run("diff", "base/small:1", "base/small:2", "--json", code=1).objects
    assert {row["path"]: row["kind"] for row in rows if row["path"] != "/"} == {
        "/big": "removed", "/etc/os-release": "changed", "/new": "added",
    }  # fmt: skip
    assert last["result"]["new_chunk_bytes"] == 5000
    assert last["result"]["different"] is True
    rows = run("diff", "base/small:1", "workspace/app:dev", "--json", code=1).objects[:-1]
    changes = {row["path"]: row["kind"] for row in rows}
    assert changes["/app"] == "added"
    assert changes["/etc/os-release"] == "removed"
    assert run("diff", "base/small:1", "base/none", code=3).text == ""


def test_publish(run: Run, base: str, workspace: str, tree: Path) -> None:
    first = run("publish", "base/small:1", "--json").result
    assert (first["ref"], first["digest"], first["created"]) == ("base/small:1", base, True)
    assert run("publish", "base/small:1", "--json").result["created"] is False
    (tree / "other").touch()
    run("import", tree, "-t", "base/small:1")
    refused = run("publish", "base/small:1", "--json", code=8)
    assert refused.objects[-1]["error"]["code"] == "conflict"
    assert "--as VERSION" in run("publish", "workspace/app:dev", code=2).stderr
    run("publish", "workspace/app:dev", "--as", "1.0", "--tag", "latest")
    assert run("inspect", "workspace/app:latest", "--json").objects[0]["digest"] == workspace
    assert "tag" in run("publish", "workspace/app:dev", "--as", "next", code=2).stderr
    run("publish", "workspace/app:dev", "--as", "2.0", "--tag", "3", code=2)
    assert "app:2.0" not in run("ls").text


def test_publish_refuses_what_is_not_whole(run: Run, base: str, instance: Path) -> None:
    (pack,) = (instance / "store/packs").rglob("*.pack")
    pack.unlink()
    refused = run("publish", "base/small:1", code=4)
    assert "not whole" in refused.stderr
    assert pack.name in refused.stderr


def test_rm(run: Run, base: str, workspace: str) -> None:
    run("publish", "base/small:1", "--tag", "latest")
    assert "which version" in run("rm", "base/small", code=2).stderr
    run("rm", "workspace/app:dev", "base/small:2", code=3)  # the second is not there: nothing goes
    assert "workspace/app:dev" in run("ls").text
    removed = run("rm", "base/small:1", "--local", "--json")
    assert [row["origin"] for row in removed.objects[:-1]] == ["local"]
    assert run("ls", "small", "--json").objects[0]["origin"] == "tag"
    assert run("rm", "base/small:1", "workspace/app:dev", "--json").result == {"removed": 2}
    assert run("ls").text == ""
    # The layers are still there, for whoever stands on them.
    assert run("cat", workspace, "/usr/bin/tool").stdout.startswith(b"#!/bin/sh")


def test_df(run: Run, base: str) -> None:
    *rows, last = run("df", "--json").objects
    kinds = {row["kind"]: row for row in rows}
    assert kinds["packs"]["bytes"] == last["result"]["pack_bytes"] > 0
    assert {"step cache", "host cache", "knowledge", "meta", "locators"} <= kinds.keys()
    assert last["result"]["layers"] == 1
    assert "packs" in run("df").text


def test_other_platforms_are_said(run: Run, tree: Path) -> None:
    run("import", tree, "-t", "base/small:1", "--platform", "linux/riscv64")
    assert "linux/riscv64" in run("inspect", "base/small:1", code=3).stderr
    (value,) = run("inspect", "base/small:1", "--platform", "linux/riscv64", "--json").objects
    assert value["platform"] == "linux/riscv64"


def test_an_unresolvable_digest(run: Run, base: str) -> None:
    run("inspect", "sha256:0123", code=2)
    run("inspect", "sha256:0123456789", code=3)
    run("inspect", "sha256:../../../etc", code=2)


def test_layers_are_read_through_their_digest_only(base: str) -> None:
    store = open_default_store()
    assert StoredLayers(store).stack_of(base) == (base,)
