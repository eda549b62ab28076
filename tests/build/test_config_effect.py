"""What instructions do to the configuration, as BuildKit does it; one row a rule."""

from __future__ import annotations

import pytest

from layerkit.build.config_effect import (
    DEFAULT_PATH,
    ImageConfig,
    StageState,
    apply,
    begin_child,
    begin_stage,
)
from layerkit.build.layerfile import parse_layerfile
from layerkit.build.scope import ArgScope
from layerkit.errors import LayerfileError
from layerkit.layer.config import Healthcheck

BASE = ImageConfig(env={"PATH": "/bin", "A": "base"}, workdir="/srv", user="app", cmd=("base-cmd",), shell=())


def run(text: str, base: ImageConfig = BASE, **build_args: str) -> StageState:
    """The state at the end of the last stage; stages that are FROM another one inherit."""
    layerfile = parse_layerfile(text.encode())
    scope = ArgScope.of(layerfile, build_args, {"TARGETARCH": "amd64"})
    states: dict[str, StageState] = {}
    state = begin_stage(base)
    for stage in layerfile.stages:
        below = states.get(stage.source.image.raw)
        state = begin_child(below) if below else begin_stage(base)
        for node in stage.instructions:
            state = apply(state, node, scope)
        states[stage.name] = state
    return state


def image(text: str, base: ImageConfig = BASE, **build_args: str) -> ImageConfig:
    return run("FROM x\n" + text, base, **build_args).image


def test_path_is_always_set() -> None:
    assert begin_stage(ImageConfig()).image.env == {"PATH": DEFAULT_PATH}
    assert begin_stage(BASE).image.env["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("ENV A=1", {"A": "1"}),
        ("ENV A=new B=$A", {"A": "new", "B": "base"}),
        ("ENV A=1\nENV B=$A A=2 C=$A", {"A": "2", "B": "1", "C": "1"}),
        ("ENV B=\"two words\" C=a\\ b D='$A'", {"A": "base", "B": "two words", "C": "a b", "D": "$A"}),
        ("ENV PATH=/opt/bin:$PATH", {"PATH": "/opt/bin:/bin", "A": "base"}),
        ("ENV B it's not \"legacy\" closed'", {"A": "base", "B": 'its not "legacy" closed'}),
        ("ENV $A=1", {"A": "base", "base": "1"}),
        ("ENV A= B=$NOPE.", {"A": "", "B": "."}),
        ("ENV B=1 B=2", {"A": "base", "B": "2"}),
    ],
)
def test_env(text: str, env: dict[str, str]) -> None:
    assert dict(image(text).env) == {"PATH": "/bin", **env}


@pytest.mark.parametrize("text", ["ENV A='open", "ENV A=${", 'ENV ""=1', "ENV $NOPE=1"])
def test_env_refused_at_its_line(text: str) -> None:
    with pytest.raises(LayerfileError) as caught:
        image("LABEL x=y\n" + text)
    assert caught.value.where == "Layerfile:3"
    assert "^" in caught.value.excerpt


ARGS = [
    # text, build arguments, variable V at the end, whether V is in the image
    ("FROM x\nARG V", {}, None),
    ("FROM x\nARG V=1", {}, "1"),
    ("FROM x\nARG V=1", {"V": "2"}, "2"),
    ("FROM x\nARG V", {"V": "2"}, "2"),
    ("FROM x", {"V": "2"}, None),
    ("ARG V=global\nFROM x", {}, None),
    ("ARG V=global\nFROM x\nARG V", {}, "global"),
    ("ARG V=global\nFROM x\nARG V=stage", {}, "stage"),
    ("ARG V=global\nFROM x\nARG V", {"V": "2"}, "2"),
    ("ARG V\nFROM x\nARG V", {}, None),
    ("FROM x AS a\nARG V=1\nFROM x", {}, None),
    ("FROM x AS a\nARG V=1\nFROM a", {}, "1"),
    ("FROM x AS a\nARG V=1\nFROM a\nARG V", {}, "1"),
    ("FROM x AS a\nARG V=1\nENV V=env\nFROM a", {}, "env"),
    ("FROM x AS a\nENV V=env\nARG V=arg\nFROM a", {}, "env"),
    ("FROM x\nENV V=env\nARG V=arg", {}, "arg"),
    ("FROM x\nARG V=arg\nENV V=env", {}, "env"),
    ("FROM x\nENV V=env\nARG V", {}, "env"),
    ("FROM x\nARG U=1 V=${U}2", {}, "12"),
    ("FROM x\nARG V=${V:-1}", {}, "1"),
    ("FROM x\nARG TARGETARCH\nARG V=$TARGETARCH", {}, "amd64"),
    ("FROM x\nARG V=[$TARGETARCH]", {}, "[]"),
    ("FROM x\nARG V=$A", {}, "base"),
]


@pytest.mark.parametrize(("text", "build_args", "value"), ARGS)
def test_b39_arg_scopes(text: str, build_args: dict[str, str], value: str | None) -> None:
    state = run(text, **build_args)
    assert state.variables.get("V") == value
    assert state.image.env.get("V") == ("env" if "ENV" in text else None)


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        ("WORKDIR /a/b/", "/a/b"),
        ("WORKDIR sub", "/srv/sub"),
        ("WORKDIR a\nWORKDIR ../b/./c", "/srv/b/c"),
        ("WORKDIR /a b", "/a b"),
        ("WORKDIR $A", "/srv/base"),
        ("WORKDIR ../../..", "/"),
        ("WORKDIR //x//y", "/x/y"),
        ('WORKDIR "/q r"', "/q r"),
    ],
)
def test_workdir(text: str, workdir: str) -> None:
    assert image(text).workdir == workdir


def test_workdir_of_a_base_without_one() -> None:
    assert image("WORKDIR x", ImageConfig()).workdir == "/x"
    assert begin_stage(ImageConfig()).workdir == "/"


@pytest.mark.parametrize(
    ("text", "entrypoint", "cmd"),
    [
        ("", None, ("base-cmd",)),
        ('CMD ["a", "b"]', None, ("a", "b")),
        ("CMD a $B", None, ("/bin/sh", "-c", "a $B")),
        ("CMD []", None, ()),
        ('ENTRYPOINT ["e"]', ("e",), None),
        ('CMD ["a"]\nENTRYPOINT ["e"]', ("e",), ("a",)),
        ('ENTRYPOINT ["e"]\nCMD ["a"]', ("e",), ("a",)),
        ("ENTRYPOINT []", None, None),
        ('SHELL ["/bin/bash", "-ec"]\nENTRYPOINT x', ("/bin/bash", "-ec", "x"), None),
    ],
)
def test_entrypoint_and_cmd(text: str, entrypoint: tuple[str, ...] | None, cmd: tuple[str, ...] | None) -> None:
    found = image(text)
    assert (found.entrypoint, found.cmd) == (entrypoint, cmd)


def test_cmd_of_a_stage_below_is_not_the_stages_own() -> None:
    assert run('FROM x AS a\nCMD ["a"]\nFROM a\nENTRYPOINT ["e"]').image.cmd is None


def test_shell_user_labels_ports_volumes_signal() -> None:
    found = image(
        'ARG P=90\nSHELL ["/bin/bash", "-c"]\nUSER $A:1\nLABEL a=1 b="$A x"\nLABEL a=2\nEXPOSE 80 $P/udp 7000-7001\n'
        'EXPOSE 80/tcp\nVOLUME /data $A\nVOLUME ["/a b"]\nSTOPSIGNAL SIG$NOPE.INT\n'.replace("$NOPE.", "")
    )
    assert found.shell == ("/bin/bash", "-c")
    assert found.user == "base:1"
    assert found.labels == {"a": "2", "b": "base x"}
    assert found.exposed_ports == ("7000/tcp", "7001/tcp", "80/tcp", "90/udp")
    assert found.volumes == ("/a b", "/data", "base")
    assert found.stop_signal == "SIGINT"


def test_expose_splits_a_variable() -> None:
    assert image('ARG PORTS="80 443"\nEXPOSE $PORTS').exposed_ports == ("443/tcp", "80/tcp")


@pytest.mark.parametrize(
    "text", ["EXPOSE $NOPE/x", "EXPOSE 99999", "STOPSIGNAL NOPE", "USER $NOPE", "VOLUME $NOPE", "WORKDIR ${x"]
)
def test_values_are_refused_at_their_line(text: str) -> None:
    with pytest.raises(LayerfileError) as caught:
        image(text)
    assert caught.value.where == "Layerfile:2"


def test_healthcheck() -> None:
    found = image("HEALTHCHECK --interval=1s --timeout=2s --start-period=3s --retries=4 CMD curl $X")
    assert found.healthcheck == Healthcheck(("CMD-SHELL", "curl $X"), 10**9, 2 * 10**9, 3 * 10**9, 0, 4)
    assert image('HEALTHCHECK CMD ["/c"]').healthcheck == Healthcheck(("CMD", "/c"))
    assert image("HEALTHCHECK CMD a\nHEALTHCHECK NONE").healthcheck == Healthcheck(("NONE",))


def test_maintainer_is_the_author() -> None:
    assert image("MAINTAINER Jane <j@x>").author == "Jane <j@x>"


def test_history() -> None:
    text = (
        'ARG TOKEN\nENV A=1\nRUN make $A\nRUN ["a", "b c"]\nWORKDIR /w\nCOPY --from=x --chown=1:2 $A b /d/\n'
        'CMD ["a", "b c"]\n'
        "COPY <<f /d\nx\nf\nRUN <<EOF\n#!/bin/sh\nx\nEOF\nLABEL l=v\nEXPOSE 80\n"
    )
    assert [(line.created_by, line.empty) for line in image(text, TOKEN="secret").history] == [
        ("ARG TOKEN", True),
        ("ENV A=1", True),
        ("RUN /bin/sh -c make $A", False),
        ("RUN a b c", False),
        ("WORKDIR /w", False),
        ("COPY --from=x --chown=1:2 1 b /d/", False),
        ('CMD ["a", "b c"]', True),
        ("COPY <<f /d", False),
        ("RUN #!/bin/sh\nx\n", False),
        ("LABEL l=v", True),
        ("EXPOSE 80/tcp", True),
    ]


def test_b40_build_arguments_are_not_in_the_config() -> None:
    found = run("FROM x\nARG TOKEN\nRUN login $TOKEN\nCMD use $TOKEN", TOKEN="sentinel-secret")
    assert found.variables["TOKEN"] == "sentinel-secret"
    assert "sentinel-secret" not in repr(found.image)


def test_states_are_not_shared() -> None:
    first = run("FROM x\nENV A=1")
    scope = ArgScope.of(parse_layerfile(b"FROM x\nENV A=2\nLABEL a=b"), {}, {})
    for node in scope.layerfile.stages[0].instructions:
        apply(first, node, scope)
    assert first.image.env["A"] == first.variables["A"] == "1"
    assert not first.image.labels


def test_escape_directive_reaches_values() -> None:
    assert run("# escape=`\nFROM x\nENV A=C:\\x`$A").image.env["A"] == "C:\\x$A"
