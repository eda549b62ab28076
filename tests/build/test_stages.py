"""Plans: reachable stages, what FROM means, what stages emit, what declarations are refused."""

from __future__ import annotations

import pytest

from layerkit.build.layerfile import parse_layerfile
from layerkit.build.scope import parse_platform
from layerkit.build.stages import BuildPlan, plan_build
from layerkit.errors import InputError, LayerfileError, RefError
from layerkit.ids import Platform

AMD64 = Platform("linux", "amd64")


def plan(text: str, **options: object) -> BuildPlan:
    options.setdefault("platform", AMD64)
    options.setdefault("build_platform", AMD64)
    return plan_build(parse_layerfile(text.encode()), **options)  # type: ignore[arg-type]


def refusal(text: str, **options: object) -> LayerfileError:
    with pytest.raises(LayerfileError) as caught:
        plan(text, **options)
    assert caught.value.excerpt
    return caught.value


ORIGINS = [
    ("scratch", "scratch"),
    ("base/debian:12", "layer"),
    ("workspace/team/app", "layer"),
    ("toolkit/node@sha256:" + "0" * 64, "layer"),
    ("docker://debian:12", "url"),
    ("oci:folder:tag", "url"),
    ("docker-archive:image.tar", "url"),
    ("registry://example.org/x", "url"),
    ("debian", "image"),
    ("debian:bookworm-slim", "image"),
    ("localhost:5000/a/b:1", "image"),
    ("ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624", "image"),
    ("context", "context"),
]


@pytest.mark.parametrize(("text", "kind"), ORIGINS)
def test_what_from_means(text: str, kind: str) -> None:
    origin = plan(f"FROM {text} AS a\nFROM scratch\nCOPY --from=a / /", contexts=["context"]).stages[0].origin
    assert (origin.kind, origin.text) == (kind, text)
    assert (origin.ref is not None) is (kind == "layer")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("Debian", "not a layer, stage or image", "lower-case"),
        ("base/Debian", "not a layer's name", "lower-case"),
        ("base/debian>=12", "is a range", "REQUIRES"),
        ("https://example.org/x", "https: is no scheme", "docker:"),
        ("$NOPE", "FROM $NOPE comes to nothing", "build-arg"),
        ("a b AS", "FROM takes one base", ""),
        ("${X:?missing}", "X: missing", ""),
    ],
)
def test_from_refused(text: str, message: str, hint: str) -> None:
    error = refusal(f"ARG A\nFROM {text}\n")
    assert message in error.message
    assert hint in error.hint
    assert error.where == "Layerfile:2"


MULTI = """
FROM base/debian:12 AS common
FROM common AS build
FROM scratch AS unused
COPY --from=missing/image:1 /x /x
FROM alpine AS tools
FROM common AS final
COPY --from=build /out /out
COPY --from=3 /bin/tool /bin/
COPY --from=docker.io/library/node:22 /n /n
COPY --from=toolkit/go:1.22 /go /go
COPY local /x
"""


def test_only_needed_stages_in_order() -> None:
    found = plan(MULTI)
    assert [stage.index for stage in found.stages] == [0, 1, 3, 4]
    assert [stage.needs for stage in found.stages] == [(), (0,), (), (0, 1, 3)]
    copies = found.stage(4).copies
    assert {number: (origin.kind, origin.stage) for number, origin in copies.items()} == {
        0: ("stage", 1),
        1: ("stage", 3),
        2: ("image", -1),
        3: ("layer", -1),
    }
    assert [stage.index for stage in plan(MULTI, target="BUILD").stages] == [0, 1]
    assert [stage.index for stage in plan(MULTI, target="3").stages] == [3]


def test_unknown_target_suggests() -> None:
    with pytest.raises(InputError) as caught:
        plan(MULTI, target="finale")
    assert "final" in caught.value.hint
    with pytest.raises(InputError):
        plan(MULTI, target="9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM scratch AS a\nCOPY --from=a /x /x", "copies from itself"),
        ("FROM scratch AS a\nCOPY --from=b /x /x\nFROM scratch AS b\nCOPY --from=a / /", "copies from the later b"),
        ("FROM scratch\nCOPY --from=0 /x /x", "copies from itself"),
        ("FROM scratch\nCOPY --from=7 /x /x", "there is no stage 7"),
        ("FROM scratch\nCOPY --from=scratch /x /x", "scratch holds nothing"),
        ("FROM scratch AS build\nFROM scratch\nCOPY --from=Buildd /x /x", "not a layer, stage or image"),
    ],
)
def test_copy_from_refused(text: str, message: str) -> None:
    assert message in refusal(text).message


def test_stage_names_ignore_case_and_the_last_one_above_counts() -> None:
    found = plan("FROM scratch AS A\nFROM debian AS a\nFROM A AS c\nCOPY --from=a /x /x\n")
    assert found.stage(2).origin.stage == 1
    assert found.stage(2).copies[0].stage == 1


def test_b39_global_args_reach_from_and_platform_only_from_above() -> None:
    text = "ARG BASE=base/debian:12\nARG P=linux/arm64\nARG FULL=${BASE}-x\nFROM --platform=$P $BASE\nFROM ${FULL%-x}"
    assert plan(text).stages[0].origin.text == "base/debian:12"
    found = plan(text, target="0", build_args={"BASE": "alpine"})
    assert (found.stages[0].origin.text, str(found.stages[0].platform)) == ("alpine", "linux/arm64")
    inside = "FROM scratch\nARG BASE=debian\nFROM $BASE\n"
    assert "comes to nothing" in refusal(inside).message


def test_platforms() -> None:
    text = "FROM --platform=$BUILDPLATFORM scratch AS tools\nFROM tools AS more\nFROM scratch\nCOPY --from=more / /"
    found = plan(text, platform=Platform("linux", "arm64"))
    assert [str(stage.platform) for stage in found.stages] == ["linux/amd64", "linux/amd64", "linux/arm64"]
    assert found.scope.global_values["TARGETPLATFORM"] == "linux/arm64"
    assert found.scope.global_values["TARGETVARIANT"] == ""
    assert "not a platform" in refusal("FROM --platform=$NOPE scratch").message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linux/amd64", "linux/amd64"),
        ("linux/x86_64", "linux/amd64"),
        ("arm64", "linux/arm64"),
        ("aarch64", "linux/arm64"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm/v7", "linux/arm/v7"),
        ("Linux/AMD64", "linux/amd64"),
    ],
)
def test_platform_spellings(text: str, expected: str) -> None:
    assert str(parse_platform(text)) == expected


@pytest.mark.parametrize("text", ["", "linux/", "a b", "linux/amd64/v2/x", "linux/amd 64"])
def test_platform_spellings_refused(text: str) -> None:
    with pytest.raises(RefError):
        parse_platform(text)


def test_unused_build_args() -> None:
    text = "ARG G\nFROM scratch AS a\nARG UNREACHED\nFROM scratch\nARG S\n"
    args = dict.fromkeys(["G", "S", "UNREACHED", "NOPE", "HTTP_PROXY", "TARGETARCH", "SOURCE_DATE_EPOCH"], "1")
    assert plan(text, build_args=args).unused_build_args == ("NOPE", "UNREACHED")


KINDS = [
    ("FROM base/debian:12", "workspace", True),
    ("FROM debian", "workspace", True),
    ("FROM scratch", "base", True),
    ("FROM scratch AS a\nFROM a", "base", True),
    ("FROM debian AS a\nFROM a", "workspace", True),
    ("FROM scratch AS a\nLAYER base own\nFROM a", "workspace", True),
    ("FROM debian\nLAYER base debian 12", "base", False),
    ("FROM workspace/app\nLAYER workspace child", "workspace", False),
    ("FROM scratch\nLAYER toolkit t\nPREFIX /opt/t", "toolkit", False),
    ("FROM base/debian\nLAYER toolkit git BOUND", "toolkit", False),
]


@pytest.mark.parametrize(("text", "kind", "implicit"), KINDS)
def test_kinds(text: str, kind: str, implicit: bool) -> None:
    stage = plan(text).stages[-1]
    assert (stage.header.kind, stage.header.implicit, stage.emits) == (kind, implicit, True)
    if implicit:
        assert (stage.header.name, stage.header.version) == ("", "dev")


def test_which_stages_emit() -> None:
    text = (
        "FROM debian AS base\nLAYER base own 1\n"
        "FROM base AS mid\nFROM mid AS tool\nLAYER toolkit t 1\nPREFIX /t\n"
        "FROM mid AS final\nCOPY --from=tool /t /t\n"
    )
    assert [(stage.index, stage.emits) for stage in plan(text).stages] == [(0, True), (1, False), (2, False), (3, True)]
    assert [stage.emits for stage in plan(text, emit_all=True).stages] == [True, False, True, True]
    assert [stage.emits for stage in plan(text, target="tool").stages] == [False, False, True]


def header(text: str, **options: object):  # type: ignore[no-untyped-def]
    return plan(text, **options).stages[-1].header


def test_a_whole_header() -> None:
    found = header(
        "ARG NODE=22.1\nFROM base/debian:12\nARG NODE\nENV ROOT=/opt\nLAYER toolkit node ${NODE}.0\n"
        "REQUIRES glibc>=2.28 base/debian>=12,<14\nREQUIRES toolkit/ca\nPROVIDES node=$NODE npm\n"
        "CONFLICTS toolkit/iojs toolkit/yarn<2\nPREFIX $ROOT/node/ '/var/lib/my node'\n"
        "EXPORT PATH+=/opt/node/bin:/opt/node/sbin NODE_HOME=$ROOT/node\nEXPORT PATH+=/opt/more\n"
        "MTIME 1700000000\nSETTING drop-outside=true network=none\n"
    )
    assert (found.kind, found.name, found.version, found.bound) == ("toolkit", "node", "22.1.0", False)
    assert [item.text for item in found.requires] == ["glibc>=2.28", "base/debian>=12,<14", "toolkit/ca"]
    assert [item.text for item in found.conflicts] == ["toolkit/iojs", "toolkit/yarn<2"]
    assert found.provides == ("node=22.1", "npm")
    assert found.prefixes == ("/opt/node", "/var/lib/my node")
    assert [(item.name, item.value, item.append) for item in found.exports] == [
        ("PATH", "/opt/node/bin:/opt/node/sbin", True),
        ("NODE_HOME", "/opt/node", False),
        ("PATH", "/opt/more", True),
    ]
    assert (found.mtime.mode, found.mtime.epoch) == ("fixed", 1700000000)
    assert found.settings == {"drop-outside": "true", "network": "none"}


def test_declarations_are_not_steps() -> None:
    found = plan("FROM debian\nLAYER base x\nRUN a\nPROVIDES y\nRUN b\n").stages[0]
    assert [step.keyword for step in found.steps] == ["RUN", "RUN"]


TOOLKIT = "FROM base/debian:12\nLAYER toolkit t\nPREFIX /opt/t\n"
REFUSED = [
    ("FROM base/debian\nLAYER toolkit t", "the toolkit t has no PREFIX", "PREFIX /opt/t"),
    ("FROM base/debian\nLAYER toolkit t BOUND\nPREFIX /opt/t", "BOUND toolkit holds all", ""),
    ("FROM scratch\nLAYER toolkit t BOUND", "stands on nothing", "FROM the base"),
    ("FROM scratch\nLAYER workspace w", "stands on nothing", "LAYER base"),
    ("FROM base/debian\nLAYER base b BOUND", "only toolkits can be BOUND", ""),
    ("FROM toolkit/t\nLAYER workspace w", "stands on a toolkit", "REQUIRES"),
    ("FROM toolkit/t\nRUN x", "stands on a toolkit", "REQUIRES"),
    ("FROM base/debian\nLAYER base b\nPREFIX /x", "PREFIX belongs to toolkits", ""),
    ("FROM base/debian\nPREFIX /x", "without LAYER", "LAYER toolkit"),
    ("FROM base/debian\nLAYER base Debian", "not a layer's name", "lower-case"),
    ("FROM base/debian\nLAYER base debian -1", "not a version or tag", "digit"),
    ("FROM base/debian\nLAYER base a\nLAYER base b", "LAYER is given twice", ""),
    ("FROM base/debian\nLAYER base $NAME", "$NAME is not set", ""),
    ("FROM base/debian\nARG VERSION=1\nLAYER base a $VERSOIN", "$VERSOIN is not set", "VERSION"),
    ("FROM base/debian\nARG HOME_DIR=$HOME\nLAYER base $HOME_DIR", "$HOME_DIR depends on the base", "ARG or ENV"),
    ("FROM base/debian\nARG X\nLAYER base $X", "$X depends on the base", "ARG or ENV"),
    ("FROM base/debian\nENV X=$PATH\nLAYER base $X", "$X depends on the base", "ARG or ENV"),
    (TOOLKIT + "PREFIX opt/x", "not an absolute path", ""),
    (TOOLKIT + "PREFIX /opt/../x", "not an absolute path", ""),
    (TOOLKIT + "PREFIX /opt/t/inner", "lies within", ""),
    (TOOLKIT + "PREFIX /opt", "lies within", ""),
    (TOOLKIT + "PREFIX /", "whole file system", "BOUND"),
    (TOOLKIT + "REQUIRES Glibc", "not a requirement", ""),
    (TOOLKIT + "REQUIRES glibc >= 2", "not a requirement", "without blanks"),
    (TOOLKIT + "REQUIRES toolkit/node:22", "not a requirement", "toolkit/node==22"),
    (TOOLKIT + "REQUIRES tool/node", "is no kind of layer", "toolkit"),
    (TOOLKIT + "REQUIRES a>=1 a<2", "a is required twice", "comma"),
    (TOOLKIT + "REQUIRES toolkit/t", "names itself", ""),
    (TOOLKIT + "PROVIDES a>=1", "not a fact", "NAME=VERSION"),
    (TOOLKIT + "CONFLICTS toolkit/t", "names itself", ""),
    (TOOLKIT + "EXPORT PATH=/x", "would replace", "PATH+=/x"),
    (TOOLKIT + "EXPORT PATH+=bin", "not an absolute path", ""),
    (TOOLKIT + "EXPORT PATH+=/a:", "not an absolute path", ""),
    (TOOLKIT + "EXPORT HOME+=/a", "only variables that end in PATH", ""),
    (TOOLKIT + "EXPORT A", "not an export", "NAME=VALUE"),
    (TOOLKIT + "EXPORT 1A=x", "not an export", ""),
    (TOOLKIT + "EXPORT A=1 A=2", "A is exported twice", ""),
    (TOOLKIT + "MTIME now", "not an MTIME", "clamp"),
    (TOOLKIT + "MTIME keep\nMTIME keep", "MTIME is given twice", ""),
    (TOOLKIT + "SETTING dropoutside=true", "is no setting", "drop-outside"),
    (TOOLKIT + "SETTING network=host", "is not possible", "none or nat"),
    (TOOLKIT + "SETTING network", "not a setting", "key=value"),
    (TOOLKIT + "SETTING network=nat network=none", "is set twice", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED, ids=lambda text: text.splitlines()[-1] if text else "-")
def test_refused_headers(text: str, message: str, hint: str) -> None:
    error = refusal(text)
    assert message in error.message
    assert hint in error.hint


def test_a_variable_of_a_known_base_is_known() -> None:
    """FROM scratch and stages on it have no hidden variables, so an unset one is just unset."""
    assert header("FROM scratch AS a\nENV V=1.$NOPE\nFROM a\nLAYER base x ${V}2").version == "1.2"
    assert header("FROM base/debian AS a\nARG V=3\nFROM a\nLAYER base x $V").version == "3"
    assert header("FROM debian\nARG V\nLAYER base x $V", build_args={"V": "7"}).version == "7"
    assert header("FROM debian\nARG TARGETARCH\nLAYER base x-$TARGETARCH").name == "x-amd64"
