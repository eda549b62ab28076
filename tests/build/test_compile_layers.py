"""What Dockerfiles and Layerfiles become: kinds, parents, trees, configs, names."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from layerkit.build.events import LayerDone, Note, StepOutput
from layerkit.errors import BuildError, InputError, MissingError, MissingPlatformError, UnsupportedError
from layerkit.ids import Platform, Ref
from layerkit.layer.compare import differences, trees_equal
from layerkit.layer.merge import apply
from layerkit.layer.tree import find, walk
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
    set_times,
    whiteout,
    write,
)


def test_an_ordinary_dockerfile_is_a_workspace_over_its_base(based: Bench) -> None:
    based.files(app__main="print()", app__data="d" * 5000)
    built = based.one("FROM base/b:1\nWORKDIR /srv\nCOPY app ./\nENV A=1\nCMD [\"main\"]\n")
    layer = based.layer(built.digest)
    assert (layer.config.kind, layer.config.name, layer.config.version) == ("workspace", "w", "dev")
    assert layer.config.parent == based.store.resolve(Ref.parse("base/b:1"), HOST).digest
    assert (layer.config.workdir, layer.config.cmd, layer.config.env["A"]) == ("/srv", ("main",), "1")
    assert paths(layer.tree) == ["srv", "srv/data", "srv/main"]
    assert content(based.stack(built.digest), "srv/data") == b"d" * 5000
    assert content(based.stack(built.digest), "usr/lib/libx") == b"lib" * 500
    assert [entry.created_by for entry in layer.config.history] == [
        "WORKDIR /srv", "COPY app ./", "ENV A=1", 'CMD ["main"]',
    ]  # fmt: skip


def test_from_scratch_is_a_base(bench: Bench) -> None:
    bench.files(etc__os="x")
    built = bench.one("FROM scratch\nCOPY . /\n", tag="base/tiny:2")
    layer = bench.layer(built.digest)
    assert (layer.config.kind, layer.config.parent, paths(layer.tree)) == ("base", "", ["etc", "etc/os"])
    assert bench.store.local_refs.get(Ref.parse("base/tiny:2"), HOST) == built.digest


def test_nothing_but_from_makes_an_empty_workspace(based: Bench) -> None:
    built = based.one("FROM base/b:1\n")
    assert paths(based.layer(built.digest).tree) == []
    base = based.store.resolve(Ref.parse("base/b"), HOST).digest
    assert trees_equal(based.stack(built.digest).tree, based.stack(base).tree)


def test_multi_stage_builds_take_files_from_stages_and_nothing_else(based: Bench) -> None:
    based.files(src="source", extra="e")
    built = based.one(
        "FROM base/b:1 AS build\nCOPY src extra /out/\nFROM base/b:1\nCOPY --from=build /out/src /usr/bin/\n"
    )
    assert paths(based.layer(built.digest).tree) == ["usr", "usr/bin", "usr/bin/src"]


def test_from_a_stage_goes_on_with_its_files_and_config(based: Bench) -> None:
    based.files(one="1", two="2")
    built = based.one(
        "FROM base/b:1 AS first\nENV A=1\nWORKDIR /d\nCOPY one .\nFROM first\nCOPY two .\nFROM base/b:1\n"
        "COPY --from=1 /d /e\n"
    )
    assert paths(based.layer(built.digest).tree) == ["e", "e/one", "e/two"]
    child = based.one("FROM base/b:1 AS first\nENV A=1\nWORKDIR /d\nCOPY one .\nFROM first\nCOPY two .\n")
    layer = based.layer(child.digest)
    assert (layer.config.env["A"], layer.config.workdir) == ("1", "/d")
    assert paths(layer.tree) == ["d", "d/one", "d/two"], "a stage without LAYER is not a parent"


def test_stages_that_the_target_does_not_need_are_not_built(based: Bench) -> None:
    based.files(a="a")
    text = "FROM base/b:1 AS one\nCOPY a /1\nFROM base/b:1 AS two\nCOPY missing /2\nFROM base/b:1 AS three\nCOPY a /3\n"
    assert paths(based.layer(based.build(text, target="one", tag="workspace/w").layers[-1].digest).tree) == ["1"]
    based.one(text)
    with pytest.raises(MissingError):
        based.build(text, target="two", tag="workspace/w")


def test_copy_from_a_layer_of_the_store(based: Bench, tmp_path: Path) -> None:
    based.base(make_root(tmp_path / "other", opt__tool__run="r" * 400), "base/other:3")
    built = based.one("FROM base/b:1\nCOPY --from=base/other:3 /opt/tool /opt/tool\n")
    assert content(based.stack(built.digest), "opt/tool/run") == b"r" * 400


def test_copy_from_a_workspace_copies_from_its_whole_stack(based: Bench) -> None:
    based.files(own="own")
    based.build("FROM base/b:1\nCOPY own /opt/own\n", tag="workspace/x:1")
    built = based.one("FROM base/b:1\nCOPY --from=workspace/x:1 /opt /usr/lib/libx /all/\n")
    assert paths(based.layer(built.digest).tree) == ["all", "all/libx", "all/own"]


def test_a_workspace_over_a_workspace_names_it_as_its_parent(based: Bench) -> None:
    based.files(a="1", b="2")
    first = based.build("FROM base/b:1\nCOPY a /x\n", tag="workspace/x:1").layers[-1]
    second = based.one("FROM workspace/x:1\nCOPY b /x\nCOPY b /y\n")
    assert based.layer(second.digest).config.parent == first.digest
    assert len(based.stack(second.digest).layers) == 3
    assert content(based.stack(second.digest), "x") == b"2"


def test_a_stage_from_one_with_layer_stands_on_the_emitted_layer(based: Bench) -> None:
    based.files(a="1", b="2")
    text = (
        "FROM base/b:1 AS dev\nLAYER workspace dev 1.0\nMTIME 5\nCOPY a /x\n"
        "FROM dev\nLAYER workspace app 2.0\nCOPY b /y\n"
    )
    result = based.build(text)
    assert [str(layer.ref) for layer in result.layers] == ["workspace/dev:1.0", "workspace/app:2.0"]
    dev, app = result.layers
    assert based.layer(app.digest).config.parent == dev.digest
    stacked = apply(based.stack(dev.digest).tree, based.layer(app.digest).tree)
    assert trees_equal(stacked, based.stack(app.digest).tree)
    assert at(stacked, "x").mtime_ns == 5 * 10**9


def test_all_emits_the_layers_of_other_stages(based: Bench) -> None:
    based.files(a="1")
    text = "FROM base/b:1\nLAYER workspace one\nCOPY a /1\nFROM base/b:1\nLAYER workspace two\nCOPY a /2\n"
    assert [str(layer.ref) for layer in based.build(text).layers] == ["workspace/two:dev"]
    assert [str(layer.ref) for layer in based.build(text, emit_all=True).layers] == [
        "workspace/one:dev", "workspace/two:dev",
    ]  # fmt: skip


def test_a_base_from_a_base_stands_alone(based: Bench) -> None:
    based.files(a="1")
    built = based.build("FROM base/b:1\nLAYER base flat 2\nCOPY a /new\n").layers[-1]
    layer = based.layer(built.digest)
    assert layer.config.parent == ""
    assert {"new", "usr/lib/libx", "etc/passwd"} <= set(paths(layer.tree))
    assert content(based.stack(built.digest), "usr/lib/libx") == b"lib" * 500


def test_deleted_files_are_explicit_whiteouts(based: Bench) -> None:
    executor = UpperExecutor({"rm": lambda upper: whiteout(upper, "usr/lib/libx")})
    built = based.one("FROM base/b:1\nRUN rm\n", executor=executor)
    gone = at(based.layer(built.digest).tree, "usr/lib/libx")
    assert is_whiteout(gone)
    assert not any(inode.xattrs for _, inode in walk(based.layer(built.digest).tree))
    assert find(based.stack(built.digest).tree, b"usr/lib/libx") is None


def test_add_unpacks_tars_of_every_compression_with_their_owners(based: Bench) -> None:
    for suffix, mode in {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}.items():
        with tarfile.open(based.context / f"a.{suffix}", mode) as archive:  # type: ignore[call-overload]
            member = tarfile.TarInfo("d/f")
            member.size, member.uid, member.gid, member.mode, member.mtime = 3, 7, 8, 0o4711, 99
            archive.addfile(member, io.BytesIO(suffix.encode()[:3]))
    based.file("plain.gz", b"\x1f\x8bno tar at all")
    lines = "\n".join(f"ADD a.{suffix} /{suffix}" for suffix in ("tar", "tar.gz", "tar.bz2", "tar.xz"))
    built = based.one(f"FROM base/b:1\n{lines}\nADD plain.gz /plain/\nCOPY a.tar /copied/\n")
    tree = based.layer(built.digest).tree
    for suffix in ("tar", "tar.gz", "tar.bz2", "tar.xz"):
        assert access(tree, f"{suffix}/d/f") == (0o4711, 7, 8)
        assert at(tree, f"{suffix}/d/f").mtime_ns == 99 * 10**9
    assert paths(at(tree, "plain")) == ["plain.gz"]
    assert paths(at(tree, "copied")) == ["a.tar"]


def test_b35_add_of_a_tar_takes_chown_and_creates_parents(based: Bench) -> None:
    with tarfile.open(based.context / "a.tar", "w") as archive:
        member = tarfile.TarInfo("d/f")
        member.uid = 7
        archive.addfile(member)
    built = based.one("FROM base/b:1\nADD --chown=app:staff a.tar /new/place\n")
    tree = based.layer(built.digest).tree
    assert access(tree, "new/place/d/f")[1:] == (1000, 50)
    assert access(tree, "new") == (0o755, 1000, 50)


def test_add_takes_files_and_archives_in_the_order_written(based: Bench) -> None:
    with tarfile.open(based.context / "a.tar", "w") as archive:
        member = tarfile.TarInfo("f")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"tar"))
    based.files(f="file")
    assert content(based.stack(based.one("FROM base/b:1\nADD a.tar f /d/\n").digest), "d/f") == b"file"
    assert content(based.stack(based.one("FROM base/b:1\nADD f a.tar /d/\n").digest), "d/f") == b"tar"


def test_b15_workdir_belongs_to_the_user_and_an_existing_one_is_left_alone(based: Bench) -> None:
    built = based.one("FROM base/b:1\nUSER app\nWORKDIR /new/deep\nWORKDIR /tmp\nWORKDIR /bin\n")
    tree = based.layer(built.digest).tree
    assert paths(tree) == ["new", "new/deep"]
    assert access(tree, "new") == access(tree, "new/deep") == (0o755, 1000, 1001)
    assert access(based.stack(built.digest).tree, "tmp") == (0o1777, 0, 0)


def test_workdir_over_a_file_is_an_error_with_its_line(based: Bench) -> None:
    with pytest.raises(InputError, match="not a directory") as caught:
        based.one("FROM base/b:1\n\nWORKDIR /etc/passwd\n")
    assert caught.value.where == "Layerfile:3"
    assert "WORKDIR /etc/passwd" in caught.value.excerpt


def test_heredocs_become_files_and_scripts(based: Bench) -> None:
    executor = UpperExecutor({"/dev/pipes/EOF": lambda upper: write(upper, "ran")})
    built = based.one(
        "FROM base/b:1\nARG V=1\nCOPY <<a.conf <<'b.conf' /etc/app/\nv=$V\na.conf\nv=$V\nb.conf\n"
        "COPY --chmod=755 <<EOF /usr/bin/go\n#!/bin/sh\nEOF\nRUN <<EOF\n#!/bin/python\nprint()\nEOF\n",
        executor=executor,
    )
    files = based.stack(built.digest)
    assert content(files, "etc/app/a.conf") == b"v=1\n"
    assert content(files, "etc/app/b.conf") == b"v=$V\n"
    assert access(files.tree, "usr/bin/go")[0] == 0o755
    assert based.layer(built.digest).facts.scripts[b"usr/bin/go"].interpreter == "/bin/sh"
    assert executor.requests[0].script == ("/dev/pipes/EOF", b"#!/bin/python\nprint()\n")


def test_run_gets_environment_arguments_user_and_folder(based: Bench) -> None:
    executor = UpperExecutor({"cmd": lambda upper: write(upper, "x")})
    based.build(
        "FROM base/b:1\nARG V=1\nENV E=2\nUSER app:staff\nWORKDIR /w\nSETTING network=none\nRUN cmd\n",
        tag="workspace/w", executor=executor, env={"HTTP_PROXY": "http://p"},
    )  # fmt: skip
    request = executor.requests[0]
    assert (request.env["V"], request.env["E"], request.env["HTTP_PROXY"]) == ("1", "2", "http://p")
    assert (request.user, request.workdir, request.network) == ("app:staff", "/w", "none")
    assert request.argv == ("/bin/sh", "-c", "cmd")


def test_run_on_the_hosts_network_must_be_allowed(based: Bench) -> None:
    with pytest.raises(InputError, match="not allowed") as caught:
        based.one("FROM base/b:1\nRUN --network=host cmd\n", executor=UpperExecutor({}))
    assert "--allow" in caught.value.hint


def test_run_without_anything_that_can_run_it_says_so(based: Bench) -> None:
    with pytest.raises(UnsupportedError) as caught:
        based.one("FROM base/b:1\nRUN cmd\n")
    assert caught.value.where == "Layerfile:2"


def test_a_failing_run_keeps_the_steps_before_it_and_shows_line_output_and_code(based: Bench) -> None:
    based.files(a="1")
    text = "FROM base/b:1\nCOPY a /a\nRUN first\nRUN second &&\\\n  third\n"
    bad = UpperExecutor({"first": lambda upper: write(upper, "x")})

    def fail(upper: Path) -> None:
        bad.code = 3

    bad.scripts["second &&  third"] = fail
    with pytest.raises(BuildError, match="exit code 3") as caught:
        based.one(text, executor=bad)
    assert caught.value.where == "Layerfile:4"
    assert "4 | RUN" in caught.value.excerpt
    assert StepOutput("stdout", b"ran second &&  third\n") in based.events
    based.events.clear()
    good = UpperExecutor({"second &&  third": lambda upper: write(upper, "y")})
    based.one(text, executor=good)
    assert based.cached() == [True, True, False]


def test_a_tag_of_another_kind_is_refused_before_any_step(based: Bench) -> None:
    executor = UpperExecutor({"cmd": lambda upper: None})
    with pytest.raises(InputError, match="-t says base") as caught:
        based.one("FROM base/b:1\nRUN cmd\n", tag="base/x:1", executor=executor)
    assert "workspace/x" in caught.value.hint
    with pytest.raises(InputError, match="digest"):
        based.one("FROM base/b:1\nRUN cmd\n", tag=f"workspace/x@sha256:{'0' * 64}", executor=executor)
    assert not executor.requests


def test_two_layers_of_one_name_are_refused(based: Bench) -> None:
    text = "FROM base/b:1\nLAYER workspace a\nFROM base/b:1\nLAYER workspace b\n"
    with pytest.raises(InputError, match="both make workspace/a:dev"):
        based.build(text, tag="workspace/a", emit_all=True)


def test_unknown_layers_are_refused_before_any_step_and_near_names_suggested(based: Bench) -> None:
    executor = UpperExecutor({"cmd": lambda upper: None})
    text = "FROM base/b:1 AS one\nRUN cmd\nFROM base/bb:1\nCOPY --from=one /x /x\n"
    with pytest.raises(MissingError) as caught:
        based.one(text, executor=executor)
    assert caught.value.where == "Layerfile:3"
    assert "did you mean base/b" in caught.value.hint
    with pytest.raises(MissingError) as caught:
        based.one("FROM base/b:1\nRUN cmd\nCOPY --from=base/b:7 /x /x\n", executor=executor)
    assert caught.value.where == "Layerfile:3"
    assert "there are 1" in caught.value.hint
    assert not executor.requests


def test_images_are_refused_with_what_to_do(based: Bench) -> None:
    with pytest.raises(UnsupportedError) as caught:
        based.one("FROM docker.io/library/debian:12\n")
    assert "layerkit import" in caught.value.hint
    assert caught.value.where == "Layerfile:1"
    with pytest.raises(UnsupportedError) as caught:
        based.one("FROM b:1\n")
    assert caught.value.hint == "write FROM base/b:1 for the layer of that name"


def test_a_missing_platform_is_an_error_of_its_own(based: Bench) -> None:
    with pytest.raises(MissingPlatformError, match="linux/amd64") as caught:
        based.build("FROM base/b:1\n", tag="workspace/w", platform=Platform("linux", "arm64"))
    assert caught.value.where == "Layerfile:1"


def test_layers_of_several_platforms_keep_apart(based: Bench, tmp_path: Path) -> None:
    arm = Platform("linux", "arm64")
    based.base(make_root(tmp_path / "arm", arm="1"), "base/b:1", arm)
    based.files(a="1")
    one = based.build("FROM base/b:1\nCOPY a /a\n", tag="workspace/w").layers[-1]
    two = based.build("FROM base/b:1\nCOPY a /a\n", tag="workspace/w", platform=arm).layers[-1]
    assert one.digest != two.digest
    assert based.layer(two.digest).config.platform == arm


def test_missing_files_in_copy_name_line_and_near_files(based: Bench) -> None:
    based.files(main_py="1")
    with pytest.raises(MissingError) as caught:
        based.one("FROM base/b:1\n\nCOPY main.py /x\n")
    assert (caught.value.where, "main_py" in caught.value.hint) == ("Layerfile:3", True)


def test_impossible_copies_name_line_and_place(based: Bench) -> None:
    based.files(d__f="1")
    with pytest.raises(InputError, match="/etc/passwd") as caught:
        based.one("FROM base/b:1\nCOPY d /etc/passwd\n")
    assert caught.value.where == "Layerfile:2"


def test_a_build_argument_that_nobody_declares_is_noted(based: Bench) -> None:
    based.build("FROM base/b:1\n", tag="workspace/w", args={"NOBODY": "1"})
    assert Note("no ARG declares the build argument NOBODY") in based.events


def test_a_layer_without_any_name_is_called_as_its_folder(based: Bench) -> None:
    assert str(based.build("FROM base/b:1\n").layers[-1].ref) == "workspace/context:dev"


def test_events_name_the_layer_and_whether_it_was_there(based: Bench) -> None:
    based.one("FROM base/b:1\n")
    based.one("FROM base/b:1\n")
    assert [event.existed for event in based.events if isinstance(event, LayerDone)] == [False, True]


def test_b10_a_relative_link_is_copied_as_a_link(based: Bench) -> None:
    based.files(d__real="r")
    (based.context / "d/link").symlink_to("../outside")
    built = based.one("FROM base/b:1\nCOPY d /srv/d\n")
    assert at(based.layer(built.digest).tree, "srv/d/link").body == b"../outside"
    assert paths(based.layer(built.digest).tree) == ["srv", "srv/d", "srv/d/link", "srv/d/real"]


def test_b07_b08_b09_copies_go_through_links_and_into_folders(based: Bench) -> None:
    based.files(f="f")
    built = based.one("FROM base/b:1\nCOPY f /bin/\nCOPY f /usr/lib\nCOPY --from=base/b:1 /bin/tool /got\n")
    tree = based.layer(built.digest).tree
    assert paths(tree) == ["got", "usr", "usr/bin", "usr/bin/f", "usr/lib", "usr/lib/f"]
    assert at(based.stack(built.digest).tree, "bin").is_symlink


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_b13_b14_owners_of_the_context_go_and_those_of_stages_and_special_bits_stay(based: Bench) -> None:
    based.file("f", "x")
    os.chown(based.context / "f", 1234, 1234)
    (based.context / "f").chmod(0o4755)
    set_times(based.context)
    text = (
        "FROM base/b:1 AS one\nCOPY --chown=7:8 f /own/\nCOPY f /root/\nFROM base/b:1\n"
        "COPY --from=one /own /root /got/\nCOPY --from=one --chown=app /own/f /app\n"
    )
    tree = based.layer(based.one(text).digest).tree
    assert access(tree, "app") == (0o4755, 1000, 1001)
    assert access(tree, "got/f")[0] == 0o4755
    assert stat.S_IMODE(at(tree, "got").mode) == 0o755


def test_b31_times_are_kept(based: Bench) -> None:
    based.file("f", "x")
    for time_ns in (0, -1, 1_500_000_000_123_456_789, 2**33 * 10**9):
        os.utime(based.context / "f", ns=(time_ns, time_ns))
        built = based.build("FROM base/b:1\nCOPY f /f\n", tag="workspace/w", use_cache=False).layers[-1]
        assert at(based.layer(built.digest).tree, "f").mtime_ns == time_ns
    assert at(based.stack(built.digest).tree, "usr/bin/tool").mtime_ns == TIME_NS


def test_build_does_not_change_what_the_base_holds(based: Bench) -> None:
    before = based.store.resolve(Ref.parse("base/b:1"), HOST).digest
    based.files(a="1")
    built = based.one("FROM base/b:1\nCOPY a /a\n")
    assert based.stack(built.digest).layers[0] == before
    changed = [difference.path for difference in differences(based.stack(before).tree, based.stack(built.digest).tree)]
    assert changed == [b"a"]


def test_a_run_in_an_empty_stage_says_that_nothing_is_there(bench: Bench) -> None:
    with pytest.raises(InputError, match="nothing is there to run in"):
        bench.build("FROM scratch\nRUN true\n", tag="base/x", executor=UpperExecutor({}))
