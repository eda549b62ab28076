"""Puts layers together: their order, their environment, and what speaks against it; pure, safe everywhere.

Imported by the backends and the command line. Design §5 has the rules. Versions and facts (`toolkit/node>=22`,
`glibc>=2.35`) are the checker's business; here a requirement only orders and must be present.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from layerkit._util.canonical import canonical_json
from layerkit.errors import StackError
from layerkit.layer.config import LayerConfig
from layerkit.runtime.spec import DEFAULT_PATH
from layerkit.runtime.stack_environment import compose_environment, path_additions

FindingCode = Literal[
    "bound-to-other-base", "conflict", "cycle", "exports-differ", "missing-requirement", "no-base", "other-base",
    "other-platform", "several-bases", "two-versions",
]  # fmt: skip
Severity = Literal["error", "warning"]

# What a package manager keeps outside of the files it installs; the upper layer's copy hides the lower one's.
STATE_FILES = (
    "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/subuid", "etc/subgid", "etc/ld.so.cache",
    "etc/alternatives", "var/lib/dpkg/status", "var/lib/apt/extended_states", "lib/apk/db/installed",
    "var/lib/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/pacman/local",
)  # fmt: skip
_NAME_END = re.compile(r"[<>=!~]")


class MountedLayer(Protocol):
    """What the host says about a layer it mounted."""

    @property
    def ref(self) -> str:
        """The reference it was asked for by, or its digest."""

    @property
    def digest(self) -> str:
        """Its digest."""

    @property
    def path(self) -> Path:
        """Where it is mounted."""

    @property
    def config(self) -> Mapping[str, object]:
        """Its config as JSON."""


@dataclass(frozen=True, slots=True)
class StackLayer:
    """A layer in a stack: what it calls itself and where its files are."""

    ref: str
    digest: str
    path: Path
    config: LayerConfig

    @classmethod
    def of(cls, mounted: MountedLayer) -> StackLayer:
        """Read a mounted layer's config. Raises CorruptError."""
        return cls(mounted.ref, mounted.digest, mounted.path, LayerConfig.from_bytes(canonical_json(mounted.config)))

    @property
    def full_name(self) -> str:
        """KIND/NAME."""
        return f"{self.config.kind}/{self.config.name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that speaks against a stack; the layers are those concerned, lower ones first."""

    code: FindingCode
    severity: Severity
    message: str
    layers: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Composition:
    """A stack put together.

    Args:
        layers: bottom first.
        env: of commands; PATH has the toolkits' additions.
        path_additions: what toolkits add to PATH, foremost first.
        entrypoint, cmd: None when no layer says anything.
        findings: what was let pass.
    """

    layers: tuple[StackLayer, ...]
    env: Mapping[str, str]
    path_additions: tuple[str, ...]
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    shell: tuple[str, ...] = ()
    stop_signal: str = ""
    findings: tuple[Finding, ...] = field(default=())

    @property
    def lowers(self) -> list[Path]:
        """The mounted layers, topmost first."""
        return [layer.path for layer in reversed(self.layers)]


def find_state_files(layer: StackLayer) -> list[str]:
    """The state files that a mounted layer has, with a slash in front."""
    return [f"/{name}" for name in STATE_FILES if os.path.lexists(layer.path / name)]


def compose(
    layers: Sequence[StackLayer],
    *,
    user_env: Mapping[str, str] | None = None,
    allow_rebase: bool = False,
    state_files: Callable[[StackLayer], Sequence[str]] = find_state_files,
) -> Composition:
    """Order the layers and join their environments.

    Args:
        layers: as given; a base, workspaces each after its parent, toolkits in any order.
        user_env: above everything; also settles what toolkits disagree about.
        allow_rebase: let a workspace lie on a base it was not built on.
        state_files: names the state files of a workspace that would hide the base's.

    Raises:
        StackError: with every reason.
    """
    user = dict(user_env or {})
    unique = list({layer.digest: layer for layer in layers}.values())
    ordered, findings = order_layers(unique)
    findings += [
        *_find_doubles(ordered),
        *_find_parents(ordered, allow_rebase, state_files),
        *_find_needs(ordered),
        *_find_disagreements(ordered, user),
    ]
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise StackError(
            "; ".join(finding.message for finding in errors),
            hint="; ".join(dict.fromkeys(finding.hint for finding in errors if finding.hint)),
        )
    configs = [layer.config for layer in ordered]
    env = compose_environment(configs, user, DEFAULT_PATH)
    return _with_process(ordered, env, path_additions(configs), findings)


def _with_process(
    ordered: Sequence[StackLayer], env: Mapping[str, str], additions: tuple[str, ...], findings: Sequence[Finding]
) -> Composition:
    """What is run by default: what the highest base or workspace says, as Docker inherits it."""
    workdir, user, stop_signal = "/", "", ""
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    shell: tuple[str, ...] = ()
    for config in (layer.config for layer in ordered if layer.config.kind != "toolkit"):
        workdir, user = config.workdir or workdir, config.user or user
        stop_signal, shell = config.stop_signal or stop_signal, config.shell or shell
        if config.entrypoint is not None:
            # A new entry point makes the arguments of the old one meaningless.
            entrypoint, cmd = config.entrypoint, None
        if config.cmd is not None:
            cmd = config.cmd
    return Composition(
        tuple(ordered), env, additions, workdir, user, entrypoint, cmd, shell, stop_signal, tuple(findings)
    )


def requirement_name(text: str) -> str:
    """The name in `toolkit/node>=22`, `glibc` or `node=22.4.1`."""
    return _NAME_END.split(text, maxsplit=1)[0]


def _offers(layer: StackLayer) -> set[str]:
    return {layer.full_name, *(requirement_name(text) for text in layer.config.provides)}


def order_layers(layers: Sequence[StackLayer]) -> tuple[list[StackLayer], list[Finding]]:
    """Bases, then workspaces as given, then toolkits: what they require first, else as given. Bottom first."""
    toolkits = [layer for layer in layers if layer.config.kind == "toolkit"]
    ordered = [layer for kind in ("base", "workspace") for layer in layers if layer.config.kind == kind]
    providers = {name: layer for layer in reversed(toolkits) for name in _offers(layer)}
    findings: list[Finding] = []
    done: set[str] = set()
    path: list[StackLayer] = []

    def visit(layer: StackLayer) -> None:
        if layer.digest in done:
            return
        if layer in path:
            ring = [*path[path.index(layer) :], layer]
            names = " → ".join(part.full_name for part in ring)
            findings.append(Finding("cycle", "error", f"toolkits require each other: {names}", _names(ring[:-1])))
            return
        path.append(layer)
        for text in layer.config.requires:
            needed = providers.get(requirement_name(text))
            if needed is not None and needed is not layer:
                visit(needed)
        path.pop()
        if layer.digest not in done:
            done.add(layer.digest)
            ordered.append(layer)

    for toolkit in toolkits:
        visit(toolkit)
    return ordered, findings


def _names(layers: Iterable[StackLayer]) -> tuple[str, ...]:
    return tuple(layer.ref for layer in layers)


def _find_doubles(layers: Sequence[StackLayer]) -> list[Finding]:
    found = []
    bases = [layer for layer in layers if layer.config.kind == "base"]
    if not bases:
        hint = f"name one: base/NAME,{layers[0].ref}" if layers else ""
        found.append(Finding("no-base", "error", "the stack has no base", _names(layers), hint))
    if len(bases) > 1:
        names = ", ".join(base.full_name for base in bases)
        found.append(Finding("several-bases", "error", f"the stack has more than one base: {names}", _names(bases)))
    seen: dict[str, StackLayer] = {}
    for layer in layers:
        other = seen.setdefault(layer.full_name, layer)
        if other is not layer and layer.config.kind == "toolkit":
            message = f"{layer.full_name} is in the stack twice, as {other.ref} and {layer.ref}"
            found.append(Finding("two-versions", "error", message, (other.ref, layer.ref)))
        if layer.config.platform != layers[0].config.platform:
            message = f"{layer.full_name} is for {layer.config.platform}, the base for {layers[0].config.platform}"
            found.append(Finding("other-platform", "error", message, (layers[0].ref, layer.ref)))
    return found


def _find_parents(
    layers: Sequence[StackLayer], allow_rebase: bool, state_files: Callable[[StackLayer], Sequence[str]]
) -> list[Finding]:
    found = []
    below: StackLayer | None = None
    digests = {layer.digest for layer in layers}
    for layer in layers:
        config = layer.config
        if config.kind == "workspace" and below is not None and config.parent != below.digest:
            found.append(_rebase(layer, below, allow_rebase, state_files))
        if config.kind == "toolkit" and config.bound and config.parent not in digests:
            message = f"{layer.full_name} is bound to {config.parent}, which is not in the stack"
            hint = f"build {layer.full_name} on this stack's base"
            found.append(Finding("bound-to-other-base", "error", message, (layer.ref,), hint))
        below = layer
    return found


def _rebase(
    layer: StackLayer, below: StackLayer, allowed: bool, state_files: Callable[[StackLayer], Sequence[str]]
) -> Finding:
    hidden = ", ".join(state_files(layer))
    message = f"{layer.full_name} was built on {layer.config.parent}, not on {below.ref}"
    if hidden:
        message += f"; it would hide {hidden}"
    hint = f"`layerkit build --on {below.ref}` replays it; --allow-rebase stacks it all the same"
    return Finding("other-base", "warning" if allowed else "error", message, (below.ref, layer.ref), hint)


def _find_needs(layers: Sequence[StackLayer]) -> list[Finding]:
    found = []
    for layer in layers:
        offered = set().union(*(_offers(other) for other in layers if other is not layer))
        for text in layer.config.requires:
            name = requirement_name(text)
            if "/" in name and name not in offered:
                message = f"{layer.full_name} requires {text}, which is not in the stack"
                found.append(Finding("missing-requirement", "error", message, (layer.ref,), f"add {name} to the stack"))
        for text in layer.config.conflicts:
            name = requirement_name(text)
            if name in offered:
                found.append(Finding("conflict", "error", f"{layer.full_name} conflicts with {name}", (layer.ref,)))
    return found


def _find_disagreements(layers: Sequence[StackLayer], user: Mapping[str, str]) -> list[Finding]:
    """Variables that two toolkits set to different values; what the user sets is settled."""
    said: dict[str, tuple[str, StackLayer]] = {}
    found = []
    for layer in layers:
        if layer.config.kind != "toolkit":
            continue
        for export in layer.config.exports:
            if export.append or export.name in user:
                continue
            value, other = said.setdefault(export.name, (export.value, layer))
            if value != export.value:
                message = f"{other.full_name} sets {export.name}={value}, {layer.full_name} sets it to {export.value}"
                hint = f"say which: -e {export.name}=…"
                found.append(Finding("exports-differ", "error", message, (other.ref, layer.ref), hint))
    return found
