"""RUN, COPY and ADD with their variables put in."""

from __future__ import annotations

import pytest

from layerkit.build.config_effect import ImageConfig, apply, begin_stage
from layerkit.build.filemode import parse_mode
from layerkit.build.layerfile import parse_layerfile
from layerkit.build.layerfile.nodes import Copy, Run
from layerkit.build.resolve import ResolvedCopy, ResolvedRun, resolve_copy, resolve_run
from layerkit.build.scope import ArgScope
from layerkit.errors import LayerfileError


def resolve(text: str) -> ResolvedCopy | ResolvedRun:
    """The last instruction, resolved in the state that those above it make."""
    layerfile = parse_layerfile(("FROM x\n" + text).encode())
    scope = ArgScope.of(layerfile, {}, {})
    state = begin_stage(ImageConfig(env={"PATH": "/bin"}))
    *above, last = layerfile.stages[0].instructions
    for node in above:
        state = apply(state, node, scope)
    if isinstance(last, Run):
        return resolve_run(last, state)
    assert isinstance(last, Copy)
    return resolve_copy(layerfile, last, state)


def copied(text: str) -> ResolvedCopy:
    found = resolve(text)
    assert isinstance(found, ResolvedCopy)
    return found


def test_run() -> None:
    found = resolve('SHELL ["/bin/bash", "-c"]\nUSER 5\nWORKDIR /w\nARG A=1\nENV B=2\nRUN --network=none echo "$A"')
    assert isinstance(found, ResolvedRun)
    assert found.argv == ("/bin/bash", "-c", 'echo "$A"')
    assert (found.workdir, found.user, found.network, found.script) == ("/w", "5", "none", None)
    assert found.env == {"PATH": "/bin", "A": "1", "B": "2"}
    exec_form = resolve('RUN ["a", "$A"]')
    assert isinstance(exec_form, ResolvedRun)
    assert exec_form.argv == ("a", "$A")


def test_b37_heredocs_run_as_buildkit_runs_them() -> None:
    plain = resolve("RUN <<EOF\nfalse\necho $A on\nEOF")
    assert isinstance(plain, ResolvedRun)
    assert plain.argv == ("/bin/sh", "-c", "false\necho $A on\n")
    script = resolve("RUN <<-run.py\n\t#!/usr/bin/env python3\n\tprint('$A')\n\trun.py")
    assert isinstance(script, ResolvedRun)
    assert script.argv == ("/dev/pipes/run.py",)
    assert script.script is not None
    assert (script.script.name, script.script.content) == (script.argv[0], b"#!/usr/bin/env python3\nprint('$A')\n")
    odd = resolve("RUN <<a/../b\n#!/bin/sh\na/../b")
    assert isinstance(odd, ResolvedRun)
    assert odd.argv == ("/dev/pipes/script",)


@pytest.mark.parametrize(
    ("written", "destination", "into_directory"),
    [
        ("/d", "/d", False),
        ("/d/", "/d", True),
        (".", "/w", True),
        ("./", "/w", True),
        ("d", "/w/d", False),
        ("../x/", "/x", True),
        ("/", "/", True),
        ("$D", "/w/v", False),
        ('"/a b/"', "/a b", True),
        ("/d/.", "/d", True),
        ("${NOPE}", "/w", True),
    ],
)
def test_destinations(written: str, destination: str, into_directory: bool) -> None:
    found = copied(
        f"WORKDIR /w\nARG D=v\nCOPY a {written}" if " " not in written else 'WORKDIR /w\nCOPY ["a", "/a b/"]'
    )
    assert (found.destination, found.into_directory) == (destination, into_directory)


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("a/b", "a/b"),
        ("/a/b/", "a/b"),
        (".", ""),
        ("/", ""),
        ("../../a", "a"),
        ("a/../../b", "b"),
        ("*.txt", "*.txt"),
        ("$S/x", "v/x"),
        ("a\\ b", "a"),
    ],
)
def test_sources(written: str, source: str) -> None:
    assert copied(f"ARG S=v\nCOPY {written} /d").sources[0] == source


def test_flags_and_kinds() -> None:
    found = copied("ARG O=app:1\nARG M=0750\nCOPY --from=x --chown=$O --chmod=$M a b /d/")
    assert (found.from_stage, found.owner, found.sources, found.unpack) == ("x", "app:1", ("a", "b"), False)
    assert found.mode == parse_mode("0750")
    added = copied("ADD a.tar /d")
    assert (added.unpack, added.mode, added.owner) == (True, None, "")


def test_heredoc_files() -> None:
    found = copied("ENV A=1\nCOPY <<one <<-'two' /d/\n$A \"q\" \\$A\none\n\t\t$A \\$A\n\ttwo")
    assert [(file.name, file.content) for file in found.files] == [("one", b'1 "q" $A\n'), ("two", b"$A \\$A\n")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ARG U=https://x/y\nADD $U /d", "not supported yet"),
        ("ARG U=git@x.org:y\nCOPY $U /d", "not URLs"),
        ("COPY --chown=a:b:c a /d", "not an owner"),
        ("COPY --chmod=9 a /d", "not a mode"),
        ("COPY --chmod=17777 a /d", "beyond"),
        ("COPY <<a/b /d\nx\na/b", "cannot name a file"),
        ("COPY <<f /d\n${\nf", "line 1 of the heredoc f"),
        ("COPY $'x /d", "not closed"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(LayerfileError, match=message) as caught:
        resolve(text)
    assert caught.value.where.startswith("Layerfile:")


@pytest.mark.parametrize(
    ("text", "mode", "is_directory", "result"),
    [
        ("755", 0o100600, False, 0o755),
        ("04755", 0o600, False, 0o4755),
        ("1777", 0o755, True, 0o1777),
        ("0", 0o755, False, 0),
        ("+x", 0o644, False, 0o755),
        ("a-w", 0o666, False, 0o444),
        ("u=rwX,go=rX", 0o600, False, 0o644),
        ("u=rwX,go=rX", 0o600, True, 0o755),
        ("u=rwX,go=rX", 0o700, False, 0o755),
        ("g=u", 0o640, False, 0o660),
        ("o=", 0o777, False, 0o770),
        ("u+s,g+s", 0o755, False, 0o6755),
        ("u-s", 0o4755, False, 0o755),
        ("+t", 0o777, True, 0o1777),
        ("u+x-w", 0o600, False, 0o500),
    ],
)
def test_modes(text: str, mode: int, is_directory: bool, result: int) -> None:
    assert parse_mode(text).on(mode, is_directory=is_directory) == result


@pytest.mark.parametrize("text", ["", "8", "99999999", "rwx", "u", "u=q", "u=r,", "x" * 500, "-1", "0o755", "u=rg"])
def test_modes_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        parse_mode(text)
