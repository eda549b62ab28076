"""The config of a layer: what it is, needs, offers and how it runs (docs/formats/config.md); imported by rank 2 up.

Frozen values; any thread.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import CorruptError, InputError, RefError
from layerkit.ids import Platform, check_digest, check_kind, check_name, check_version_or_tag
from layerkit.layer.json_fields import Fields

FORMAT_VERSION = 1
_VARIABLE = re.compile(r"[^=\0\s]+")
_PORT = re.compile(r"\d{1,5}(?:-\d{1,5})?/(?:tcp|udp|sctp)")


@dataclass(frozen=True, slots=True)
class Export:
    """One EXPORT: a variable that the stack gets; `append` (`PATH+=`) adds to what layers below set."""

    name: str
    value: str
    append: bool = False


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """HEALTHCHECK as Docker means it; `test` is NONE, CMD … or CMD-SHELL …; 0 means the default."""

    test: tuple[str, ...]
    interval_ns: int = 0
    timeout_ns: int = 0
    start_period_ns: int = 0
    start_interval_ns: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step that made the layer; `empty` when it changed no file. `created` only comes from imported images."""

    created_by: str
    empty: bool = False
    comment: str = ""
    created: str = ""


@dataclass(frozen=True)
class LayerConfig:
    """A layer's config; checked when it is made.

    Attributes:
        kind, name, version: what it calls itself; `version` may be a tag, or '' when it has none.
        platform: for what it was built.
        parent: digest of the layer it is a difference against (workspaces, bound toolkits), else ''.
        bound: a toolkit that only fits its parent.
        requires, provides, conflicts: as in the Layerfile: `toolkit/node>=22`, `glibc>=2.35`, `node=22.4.1`.
        prefixes: absolute folders that a toolkit may write to.
        exports: environment for the stack it is put in, in order.
        env: environment of processes, as ENV sets it.
        workdir, user, entrypoint, cmd, shell, stop_signal, volumes, exposed_ports, healthcheck, labels: as in Docker;
            empty means not set. `entrypoint` and `cmd` are None when not set, since Docker can set them to nothing.
            Paths and ports are brought into one spelling: `/srv`, `8080/tcp`.
        history: the steps, first to last.

    Raises:
        InputError: fields that no layer can have, or that contradict each other.
    """

    kind: str
    name: str
    version: str = ""
    platform: Platform = field(default_factory=Platform.host)
    parent: str = ""
    bound: bool = False
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    exports: tuple[Export, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    shell: tuple[str, ...] = ()
    stop_signal: str = ""
    volumes: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    history: tuple[HistoryEntry, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "volumes", tuple(sorted({_plain_path(path) for path in self.volumes})))
        object.__setattr__(self, "exposed_ports", tuple(sorted({_plain_port(port) for port in self.exposed_ports})))
        object.__setattr__(self, "workdir", _plain_path(self.workdir) if self.workdir else "")
        _check(self)

    def to_bytes(self) -> bytes:
        """Canonical JSON; its sha256 is the identity of the config.

        Raises:
            InputError: text that is no UTF-8.
        """
        value = {name: part for name, part in _to_json(self).items() if part not in ("", [], {}, False, None)}
        for name, argv in (("entrypoint", self.entrypoint), ("cmd", self.cmd)):
            if argv is not None:
                value[name] = list(argv)
        try:
            return canonical_json(value)
        except UnicodeEncodeError as error:
            raise InputError("a layer's config can only hold UTF-8 text", where=f"{self.kind}/{self.name}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> LayerConfig:
        """Read a config from untrusted bytes.

        Raises:
            CorruptError: no config.
            UnsupportedError: written by a newer layerkit.
        """
        fields = Fields(read_json_object(data, "config", max_bytes=16 << 20), "config")
        fields.version("formatVersion", FORMAT_VERSION)
        try:
            config = _from_json(fields)
        except InputError as error:
            raise CorruptError(f"config of an impossible layer: {error.message}") from error
        fields.finish()
        return config


def _check(config: LayerConfig) -> None:
    check_kind(config.kind)
    check_name(config.name)
    if config.version:
        check_version_or_tag(config.version)
    if config.parent:
        check_digest(config.parent)
    if bool(config.parent) != (config.kind == "workspace" or config.bound):
        raise InputError(
            "workspaces and bound toolkits name their parent, other layers have none",
            where=f"{config.kind}/{config.name}",
        )
    if config.bound and config.kind != "toolkit":
        raise InputError("only toolkits are bound", where=f"{config.kind}/{config.name}")
    if config.prefixes and config.kind != "toolkit":
        raise InputError("only toolkits have a prefix", where=f"{config.kind}/{config.name}")
    if config.kind == "toolkit" and not config.bound and not config.prefixes:
        raise InputError("a toolkit has a PREFIX or is BOUND", where=f"toolkit/{config.name}")
    for path in config.prefixes:
        if not path.startswith("/") or _plain_path(path) != path:
            raise InputError(f"not an absolute path in its plain form: {path[:200]!r}")
    for name in (*config.env, *(export.name for export in config.exports)):
        if not _VARIABLE.fullmatch(name):
            raise InputError(f"not the name of a variable: {name[:100]!r}")
    for port in config.exposed_ports:
        if not _PORT.fullmatch(port):
            raise InputError(f"not a port: {port[:100]!r}", hint="ports look like 8080/tcp")
    for text in (*config.requires, *config.provides, *config.conflicts):
        if not text or any(letter.isspace() for letter in text):
            raise InputError(f"not a requirement: {text[:100]!r}")


def _plain_path(path: str) -> str:
    """The absolute form without doubled slashes, dots and a slash at its end; images write it in all those ways."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def _plain_port(port: str) -> str:
    return port if "/" in port else f"{port}/tcp"


def _to_json(config: LayerConfig) -> dict[str, Any]:
    health = config.healthcheck
    return {
        "formatVersion": FORMAT_VERSION, "kind": config.kind, "name": config.name, "version": config.version,
        "platform": str(config.platform), "parent": config.parent, "bound": config.bound,
        "requires": list(config.requires), "provides": list(config.provides), "conflicts": list(config.conflicts),
        "prefixes": list(config.prefixes),
        "exports": [{"name": e.name, "value": e.value, **_nonzero({"append": e.append})} for e in config.exports],
        "env": dict(config.env), "workdir": config.workdir, "user": config.user, "shell": list(config.shell),
        "stopSignal": config.stop_signal, "volumes": list(config.volumes),
        "exposedPorts": list(config.exposed_ports), "labels": dict(config.labels),
        "healthcheck": health and {
            "test": list(health.test),
            **_nonzero({"intervalNs": health.interval_ns, "timeoutNs": health.timeout_ns,
                        "startPeriodNs": health.start_period_ns, "startIntervalNs": health.start_interval_ns,
                        "retries": health.retries}),
        },
        "history": [
            {"createdBy": entry.created_by, **_nonzero({"empty": entry.empty, "comment": entry.comment,
                                                        "created": entry.created})}
            for entry in config.history
        ],
    }  # fmt: skip


def _nonzero(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part}


def _from_json(fields: Fields) -> LayerConfig:
    return LayerConfig(
        kind=fields.text("kind"), name=fields.text("name"), version=fields.text("version", ""),
        platform=_platform(fields), parent=fields.text("parent", ""), bound=fields.boolean("bound", False),
        requires=fields.texts("requires"), provides=fields.texts("provides"), conflicts=fields.texts("conflicts"),
        prefixes=fields.texts("prefixes"), exports=tuple(_export(entry) for entry in fields.objects("exports")),
        env=fields.text_map("env"), workdir=fields.text("workdir", ""), user=fields.text("user", ""),
        entrypoint=fields.texts("entrypoint") if fields.has("entrypoint") else None,
        cmd=fields.texts("cmd") if fields.has("cmd") else None, shell=fields.texts("shell"),
        stop_signal=fields.text("stopSignal", ""), volumes=fields.texts("volumes"),
        exposed_ports=fields.texts("exposedPorts"), healthcheck=_healthcheck(fields.object("healthcheck")),
        labels=fields.text_map("labels"), history=tuple(_history(entry) for entry in fields.objects("history")),
    )  # fmt: skip


def _platform(fields: Fields) -> Platform:
    text = fields.text("platform")
    try:
        return Platform.parse(text)
    except RefError as error:
        raise fields.wrong("platform", f"is no platform: {text[:100]!r}") from error


def _export(entry: Fields) -> Export:
    export = Export(entry.text("name"), entry.text("value"), entry.boolean("append", False))
    entry.finish()
    return export


def _healthcheck(entry: Fields | None) -> Healthcheck | None:
    if entry is None:
        return None
    check = Healthcheck(
        entry.texts("test"), entry.integer("intervalNs", 0), entry.integer("timeoutNs", 0),
        entry.integer("startPeriodNs", 0), entry.integer("startIntervalNs", 0), entry.integer("retries", 0),
    )  # fmt: skip
    entry.finish()
    return check


def _history(entry: Fields) -> HistoryEntry:
    step = HistoryEntry(
        entry.text("createdBy"), entry.boolean("empty", False), entry.text("comment", ""), entry.text("created", "")
    )
    entry.finish()
    return step
