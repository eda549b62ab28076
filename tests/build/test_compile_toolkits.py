"""Toolkits: what they hold, what they refuse, how stages get those that they require."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from layerkit.errors import BuildError, InputError, MissingError
from layerkit.ids import Ref
from layerkit.layer.config import Export
from layerkit.layer.merge import apply
from layerkit.layer.tree import walk
from layerkit.layer.whiteouts import is_whiteout
from tests.build.engine import (
    HOST,
    TIME_NS,
    Bench,
    UpperExecutor,
    access,
    at,
    content,
    make_root,
    paths,
    whiteout,
    write,
)

NODE = "FROM base/b:1\nLAYER toolkit node {}\nPREFIX /opt/node\nEXPORT PATH+=/opt/node/bin\n{}"


def install(upper: Path) -> None:
    write(upper, "opt/node/bin/node", "n" * 500, 0o755)
    (upper / "opt").chmod(0o700)


def toolkit(bench: Bench, name: str = "node", version: str = "22.1", requires: str = "", value: str = "1") -> str:
    bench.files(value=value)
    text = f"FROM base/b:1\nLAYER toolkit {name} {version}\nPREFIX /opt/{name}\nEXPORT T_{name}={version}\n"
    built = bench.build(f"{text}{requires}COPY value /opt/{name}/value\n").layers[-1]
    return built.digest


def test_a_toolkit_holds_its_prefix_and_its_exports_only(based: Bench) -> None:
    text = NODE.format("22.1", "ENV BUILDING=1\nWORKDIR /opt/node\nCMD x\nRUN install\n")
    built = based.build(text, executor=UpperExecutor({"install": install})).layers[-1]
    layer = based.layer(built.digest)
    assert str(built.ref) == "toolkit/node:22.1"
    assert paths(layer.tree) == ["opt", "opt/node", "opt/node/bin", "opt/node/bin/node"]
    assert (layer.config.env, layer.config.workdir, layer.config.cmd, layer.config.parent) == ({}, "", None, "")
    assert layer.config.exports == (Export("PATH", "/opt/node/bin", True),)
    assert layer.config.prefixes == ("/opt/node",)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_b12_parents_have_the_attributes_of_the_base(bench: Bench, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    (root / "opt").chmod(0o2775)
    os.chown(root / "opt", 0, 50)
    (root / "opt").chmod(0o2775)
    bench.base(root)
    built = bench.build(NODE.format("1", "RUN install\n"), executor=UpperExecutor({"install": install})).layers[-1]
    tree = bench.layer(built.digest).tree
    base = bench.stack(bench.store.resolve(Ref.parse("base/b"), HOST).digest).tree
    assert access(tree, "opt") == access(base, "opt") == (0o2775, 0, 50)
    stacked = apply(base, tree)
    for path, inode in walk(base):
        there = at(stacked, os.fsdecode(path))
        assert (there.mode, there.uid, there.gid, there.mtime_ns) == (inode.mode, inode.uid, inode.gid, inode.mtime_ns)


def test_a_prefix_whose_parents_the_base_lacks_gets_them_from_the_stage(based: Bench) -> None:
    based.files(f="f")
    text = "FROM base/b:1\nLAYER toolkit t 1\nPREFIX /nix/store/t\nCOPY --chown=5:6 f /nix/store/t/f\n"
    tree = based.layer(based.build(text).layers[-1].digest).tree
    assert access(tree, "nix/store") == (0o755, 5, 6)


def test_a_toolkit_from_a_base_that_has_part_of_its_prefix_is_complete_and_without_whiteouts(
    bench: Bench, tmp_path: Path
) -> None:
    bench.base(make_root(tmp_path / "root", opt__node__old="old" * 200, opt__node__gone="g"))

    def change(upper: Path) -> None:
        install(upper)
        whiteout(upper, "opt/node/gone")

    built = bench.build(NODE.format("1", "RUN change\n"), executor=UpperExecutor({"change": change})).layers[-1]
    tree = bench.layer(built.digest).tree
    assert paths(at(tree, "opt/node")) == ["bin", "bin/node", "old"]
    assert not any(is_whiteout(inode) for _, inode in walk(tree))


def test_writes_outside_are_an_error_that_lists_them(based: Bench) -> None:
    def messy(upper: Path) -> None:
        install(upper)
        write(upper, "etc/node.conf")
        write(upper, "usr/share/doc/node/a")
        write(upper, "usr/share/doc/node/b")
        whiteout(upper, "usr/lib/libx")
        (upper / "srv").mkdir()

    executor = UpperExecutor({"messy": messy})
    with pytest.raises(BuildError) as caught:
        based.build(NODE.format("1", "RUN messy\n"), executor=executor)
    assert caught.value.message == (
        "toolkit/node wrote outside of /opt/node:\n  /etc/node.conf\n  /srv\n  /usr/lib/libx\n  /usr/share"
    )
    assert caught.value.where == "Layerfile:2"
    assert "drop-outside" in caught.value.hint
    for setting, drop in (("SETTING drop-outside=true\n", False), ("", True)):
        built = based.build(NODE.format("1", f"{setting}RUN messy\n"), executor=executor, drop_outside=drop).layers[-1]
        assert paths(based.layer(built.digest).tree) == ["opt", "opt/node", "opt/node/bin", "opt/node/bin/node"]


def test_what_package_managers_leave_is_dropped_in_silence(based: Bench) -> None:
    def messy(upper: Path) -> None:
        install(upper)
        for name in (
            "tmp/x", "var/tmp/x", "run/x", "var/cache/apt/x", "var/log/dpkg.log", "var/lib/dpkg/status",
            "var/lib/apt/lists/x", "root/.cache/pip/x", "home/me/.cache/x", "root/.npm/x", "etc/ld.so.cache",
            "usr/lib/python3/__pycache__/os.pyc",
        ):  # fmt: skip
            write(upper, name)
        (upper / "usr/lib").chmod(0o755)
        os.utime(upper / "etc", ns=(1, 1))

    built = based.build(NODE.format("1", "RUN messy\n"), executor=UpperExecutor({"messy": messy})).layers[-1]
    assert paths(based.layer(built.digest).tree) == ["opt", "opt/node", "opt/node/bin", "opt/node/bin/node"]


def test_other_attributes_of_a_shared_directory_are_writes_outside(based: Bench) -> None:
    def change(upper: Path) -> None:
        install(upper)
        (upper / "tmp").mkdir()
        (upper / "var").mkdir()
        (upper / "var").chmod(0o700)

    with pytest.raises(BuildError, match=r"  /var$"):
        based.build(NODE.format("1", "RUN change\n"), executor=UpperExecutor({"change": change}))


def test_an_empty_prefix_is_an_error(based: Bench) -> None:
    with pytest.raises(BuildError, match="holds nothing under /opt/node"):
        based.build(NODE.format("1", ""))


def test_a_prefix_behind_a_link_is_an_error_that_names_the_link(based: Bench) -> None:
    based.files(f="f")
    with pytest.raises(BuildError, match="symbolic link /bin to usr/bin"):
        based.build("FROM base/b:1\nLAYER toolkit t 1\nPREFIX /bin/t\nSETTING drop-outside=true\nCOPY f /bin/t/f\n")


def test_several_prefixes(based: Bench) -> None:
    based.files(f="f")
    text = "FROM base/b:1\nLAYER toolkit t 1\nPREFIX /opt/a /opt/b\nCOPY f /opt/a/f\nCOPY f /opt/b/f\n"
    tree = based.layer(based.build(text).layers[-1].digest).tree
    assert paths(tree) == ["opt", "opt/a", "opt/a/f", "opt/b", "opt/b/f"]


def test_the_recipe_with_a_builder_stage(based: Bench) -> None:
    def make(upper: Path) -> None:
        write(upper, "out/bin/t", "t" * 300, 0o755)
        write(upper, "etc/mess")

    executor = UpperExecutor({"make": make})
    text = (
        "FROM base/b:1 AS build\nRUN make\nFROM base/b:1\nLAYER toolkit t 1\nPREFIX /opt/t\n"
        "COPY --from=build /out /opt/t\n"
    )
    built = based.build(text, executor=executor).layers[-1]
    assert paths(based.layer(built.digest).tree) == ["opt", "opt/t", "opt/t/bin", "opt/t/bin/t"]


def test_a_bound_toolkit_is_a_difference_to_its_base(based: Bench) -> None:
    def apt(upper: Path) -> None:
        write(upper, "usr/bin/git", "g", 0o755)
        whiteout(upper, "usr/lib/libx")

    text = "FROM base/b:1\nLAYER toolkit git 2 BOUND\nRUN apt\n"
    built = based.build(text, executor=UpperExecutor({"apt": apt})).layers[-1]
    layer = based.layer(built.digest)
    assert (layer.config.bound, layer.config.kind) == (True, "toolkit")
    assert layer.config.parent == based.store.resolve(Ref.parse("base/b"), HOST).digest
    assert paths(layer.tree) == ["usr", "usr/bin", "usr/bin/git", "usr/lib", "usr/lib/libx"]
    assert stat.S_ISCHR(at(layer.tree, "usr/lib/libx").mode)


def test_required_toolkits_are_there_while_the_stage_runs_and_not_in_its_layer(based: Bench) -> None:
    node = toolkit(based, "node", "22.1")
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "built")})
    text = "FROM base/b:1\nREQUIRES toolkit/node>=22 glibc>=2.0\nRUN cmd\n"
    built = based.build(text, tag="workspace/w", executor=executor).layers[-1]
    request = executor.requests[0]
    assert request.toolkits == (node,)
    assert request.env["T_node"] == "22.1"
    layer = based.layer(built.digest)
    assert paths(layer.tree) == ["built"]
    assert "T_node" not in layer.config.env
    assert layer.config.requires == ("toolkit/node>=22", "glibc>=2.0")


def test_ranges_choose_the_highest_version_and_a_new_one_misses_the_cache(based: Bench) -> None:
    old, middle = toolkit(based, version="20.5"), toolkit(based, version="22.1")
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "built")})
    for clauses, expected in (("<22", old), (">=20", middle), ("==20.5", old), ("", middle)):
        text = f"FROM base/b:1\nREQUIRES toolkit/node{clauses}\nRUN cmd\n"
        based.build(text, tag="workspace/w", executor=executor, use_cache=False)
        assert executor.requests[-1].toolkits == (expected,)
    new = toolkit(based, version="22.2", value="other")
    based.build("FROM base/b:1\nREQUIRES toolkit/node>=20\nRUN cmd\n", tag="workspace/w", executor=executor)
    assert executor.requests[-1].toolkits == (new,)


def test_toolkits_bring_what_they_require_dependencies_first(based: Bench) -> None:
    python = toolkit(based, "python", "3.12")
    pip = toolkit(based, "pip", "24", "REQUIRES toolkit/python>=3\n")
    pytest_ = toolkit(based, "pytest", "8", "REQUIRES toolkit/pip toolkit/python\n")
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "built")})
    based.build("FROM base/b:1\nREQUIRES toolkit/pytest\nRUN cmd\n", tag="workspace/w", executor=executor)
    assert executor.requests[0].toolkits == (python, pip, pytest_)
    assert {"T_python", "T_pip", "T_pytest"} <= set(executor.requests[0].env)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ("toolkit/absent", "no layer has this name"),
        ("toolkit/node>=30", "no version"),
        ("toolkit/python<3.12 toolkit/pip", r"toolkit/pip requires toolkit/python>=3.12, but 3.11 is chosen"),
    ],
)
def test_requirements_that_cannot_be_met_are_refused_before_any_step(based: Bench, requires: str, message: str) -> None:
    toolkit(based, "node")
    toolkit(based, "python", "3.11")
    toolkit(based, "python", "3.12")
    toolkit(based, "pip", "24", "REQUIRES toolkit/python>=3.12\n")
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "built")})
    text = f"FROM base/b:1 AS one\nRUN cmd\nFROM base/b:1\nREQUIRES {requires}\nCOPY --from=one /built /b\nRUN cmd\n"
    with pytest.raises((MissingError, InputError), match=message) as caught:
        based.build(text, tag="workspace/w", executor=executor)
    assert caught.value.where == "Layerfile:4"
    assert not executor.requests


def test_a_bound_toolkit_of_another_base_is_refused(based: Bench, tmp_path: Path) -> None:
    based.files(f="f")
    based.build("FROM base/b:1\nLAYER toolkit git 2 BOUND\nCOPY f /git\n")
    based.base(make_root(tmp_path / "other", other="1"), "base/other:1")
    with pytest.raises(InputError, match="BOUND to another base"):
        based.build("FROM base/other:1\nREQUIRES toolkit/git\nRUN x\n", tag="workspace/w", executor=UpperExecutor({}))
    executor = UpperExecutor({"x": lambda upper: None})
    based.build("FROM base/b:1\nREQUIRES toolkit/git\nRUN x\n", tag="workspace/w", executor=executor)
    assert len(executor.requests[0].toolkits) == 1


def test_a_toolkit_of_the_same_file_can_be_required(based: Bench) -> None:
    based.files(f="f")
    executor = UpperExecutor({"use": lambda upper: write(upper, "used")})
    text = (
        "FROM base/b:1\nLAYER toolkit t 1.0\nPREFIX /opt/t\nCOPY f /opt/t/f\n"
        "FROM base/b:1\nLAYER workspace w\nREQUIRES toolkit/t>=1\nRUN use\n"
    )
    result = based.build(text, emit_all=True, executor=executor)
    assert executor.requests[0].toolkits == (result.layers[0].digest,)


def test_toolkit_times_follow_mtime(based: Bench) -> None:
    based.files(f="f" * 300)
    text = "FROM base/b:1\nLAYER toolkit t 1\nPREFIX /opt/t\nMTIME 9\nCOPY f /opt/t/f\n"
    built = based.build(text).layers[-1]
    tree = based.layer(built.digest).tree
    assert at(tree, "opt/t/f").mtime_ns == at(tree, "opt/t").mtime_ns == 9 * 10**9
    assert at(tree, "opt").mtime_ns == TIME_NS, "the base's folder keeps its time"
    assert content(based.stack(built.digest), "opt/t/f") == b"f" * 300
