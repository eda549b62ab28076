"""Stacks as tables: order, environment, findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from layerkit.errors import StackError
from layerkit.ids import Platform
from layerkit.layer.config import Export, LayerConfig
from layerkit.runtime.stack import Composition, StackLayer, compose, order_layers, requirement_name

AMD = Platform("linux", "amd64")


def digest(name: str) -> str:
    return "sha256:" + name.encode().hex().ljust(64, "0")[:64]


def layer(full_name: str, **fields: Any) -> StackLayer:
    kind, _, name = full_name.partition("/")
    fields.setdefault("platform", AMD)
    if kind == "toolkit" and not fields.get("bound"):
        fields.setdefault("prefixes", (f"/opt/{name}",))
    if kind == "workspace":
        fields.setdefault("parent", digest("base/debian"))
    key = fields.pop("key", full_name)
    return StackLayer(full_name, digest(key), Path("/l") / key.replace("/", "-"), LayerConfig(kind, name, **fields))


BASE = layer("base/debian", env={"PATH": "/usr/bin:/bin", "LANG": "C"}, cmd=("bash",), workdir="/b")
WORK = layer("workspace/app", env={"LANG": "de", "APP": "1"}, user="app")


def put(*layers: StackLayer, **options: Any) -> Composition:
    return compose(layers, state_files=lambda _: ["/etc/passwd"], **options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a b c", "a b c"),
        ("c b a", "c b a"),
        ("needs-b a b", "b needs-b a"),
        ("needs-c-b a b c", "c b needs-c-b a"),
        ("needs-offer x offers", "offers needs-offer x"),
        ("needs-fact a", "needs-fact a"),
    ],
)
def test_order_of_toolkits(given: str, expected: str) -> None:
    needs = {
        "needs-b": ("toolkit/b>=1",), "needs-c-b": ("toolkit/c", "toolkit/b"), "needs-offer": ("node>=22",),
        "needs-fact": ("glibc>=2.35",),
    }  # fmt: skip
    layers = [
        layer(f"toolkit/{name}", requires=needs.get(name, ()), provides=("node=22.4",) if name == "offers" else ())
        for name in given.split()
    ]
    ordered, findings = order_layers([*layers, WORK, BASE])
    assert findings == []
    assert [part.config.name for part in ordered] == ["debian", "app", *expected.split()]


def test_lowers_are_topmost_first() -> None:
    stack = put(BASE, WORK, layer("toolkit/a"), layer("toolkit/b"))
    assert [path.name for path in stack.lowers] == ["toolkit-b", "toolkit-a", "workspace-app", "base-debian"]
    assert (stack.cmd, stack.user, stack.workdir) == (("bash",), "app", "/b")


def exports(*pairs: str) -> tuple[Export, ...]:
    found = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        found.append(Export(name.removesuffix("+"), value, name.endswith("+")))
    return tuple(found)


@pytest.mark.parametrize(
    ("a", "b", "user", "expected"),
    [
        ((), (), {}, {"LANG": "de", "APP": "1", "PATH": "/usr/bin:/bin"}),
        (("PATH+=/a/bin",), ("PATH+=/b/bin",), {}, {"PATH": "/b/bin:/a/bin:/usr/bin:/bin"}),
        (("PATH+=/bin",), (), {}, {"PATH": "/bin:/usr/bin"}),
        (("LANG=en",), (), {}, {"LANG": "en"}),
        (("LANG=en",), (), {"LANG": "fr"}, {"LANG": "fr"}),
        (("X=1",), ("X=1",), {}, {"X": "1"}),
        (("X=1",), ("X=2",), {"X": "3"}, {"X": "3"}),
        (("LD+=/a",), ("LD+=/b",), {}, {"LD": "/b:/a"}),
        (("PATH+=/a/bin",), (), {"PATH": "/only"}, {"PATH": "/only"}),
    ],
)
def test_environment(a: Sequence[str], b: Sequence[str], user: dict[str, str], expected: dict[str, str]) -> None:
    tools = [layer("toolkit/a", exports=exports(*a), env={"BUILD": "only"}), layer("toolkit/b", exports=exports(*b))]
    stack = put(BASE, WORK, *tools, user_env=user)
    assert {name: stack.env[name] for name in expected} == expected
    assert "BUILD" not in stack.env
    additions = [text[6:] for text in (*b, *a) if text.startswith("PATH+=")]
    assert list(stack.path_additions) == additions


@pytest.mark.parametrize(
    ("base", "workspace", "entrypoint", "cmd"),
    [
        ({"cmd": ("b",)}, {}, None, ("b",)),
        ({"cmd": ("b",)}, {"cmd": ()}, None, ()),
        ({"entrypoint": ("e",), "cmd": ("b",)}, {"cmd": ("w",)}, ("e",), ("w",)),
        ({"entrypoint": ("e",), "cmd": ("b",)}, {"entrypoint": ("w",)}, ("w",), None),
        ({"entrypoint": ("e",)}, {"entrypoint": (), "cmd": ("w",)}, (), ("w",)),
        ({}, {}, None, None),
    ],
)
def test_what_is_run(base: dict[str, Any], workspace: dict[str, Any], entrypoint: Any, cmd: Any) -> None:
    stack = put(layer("base/debian", **base), layer("workspace/app", **workspace))
    assert (stack.entrypoint, stack.cmd) == (entrypoint, cmd)


OTHER = layer("base/other")
BAD = {
    "no-base": [layer("toolkit/a")],
    "several-bases": [BASE, OTHER],
    "other-base": [OTHER, WORK],
    "bound-to-other-base": [OTHER, layer("toolkit/git", bound=True, parent=digest("base/debian"))],
    "missing-requirement": [BASE, layer("toolkit/a", requires=("toolkit/node>=22",))],
    "conflict": [BASE, layer("toolkit/a", conflicts=("toolkit/b",)), layer("toolkit/b")],
    "cycle": [BASE, layer("toolkit/a", requires=("toolkit/b",)), layer("toolkit/b", requires=("toolkit/a",))],
    "exports-differ": [
        BASE, layer("toolkit/a", exports=exports("HOME=/a")), layer("toolkit/b", exports=exports("HOME=/b")),
    ],
    "two-versions": [BASE, layer("toolkit/a"), layer("toolkit/a", key="toolkit/a2")],
    "other-platform": [BASE, layer("toolkit/a", platform=Platform("linux", "arm64"))],
}  # fmt: skip
WORDS = {
    "no-base": "no base", "several-bases": "more than one base: base/debian, base/other",
    "other-base": "would hide /etc/passwd", "bound-to-other-base": "toolkit/git is bound",
    "missing-requirement": "requires toolkit/node>=22", "conflict": "conflicts with toolkit/b",
    "cycle": "toolkit/a → toolkit/b → toolkit/a", "exports-differ": "toolkit/a sets HOME=/a, toolkit/b sets it to /b",
    "two-versions": "twice", "other-platform": "linux/arm64",
}  # fmt: skip


@pytest.mark.parametrize("code", BAD)
def test_findings(code: str) -> None:
    with pytest.raises(StackError) as caught:
        put(*BAD[code])
    assert WORDS[code] in caught.value.message


def test_rebase_is_let_pass_with_a_warning() -> None:
    with pytest.raises(StackError) as caught:
        put(OTHER, WORK)
    assert "--on base/other" in caught.value.hint
    stack = put(OTHER, WORK, allow_rebase=True)
    (finding,) = stack.findings
    assert (finding.code, finding.severity, finding.layers) == (
        "other-base",
        "warning",
        ("base/other", "workspace/app"),
    )


def test_chain_of_workspaces_and_repeated_layer() -> None:
    second = layer("workspace/more", parent=WORK.digest)
    assert put(BASE, WORK, second, WORK, BASE).layers == (BASE, WORK, second)
    with pytest.raises(StackError):
        put(BASE, second)


def test_bound_toolkit_on_its_base() -> None:
    git = layer("toolkit/git", bound=True, parent=BASE.digest)
    assert put(BASE, git).layers == (BASE, git)


def test_names_in_requirements() -> None:
    assert [requirement_name(text) for text in ("toolkit/node>=22,<23", "glibc", "node=22.4", "a~=1", "x!=2")] == [
        "toolkit/node", "glibc", "node", "a", "x",
    ]  # fmt: skip
