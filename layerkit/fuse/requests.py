"""What hostd is asked, as checked values (docs/formats/hostd-api.md); imported by hostd. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerkit._util.processes import Owner
from layerkit.errors import InputError

MAX_LAYERS = 500
"""Overlay's own limit (fs/overlayfs/ovl_entry.h: OVL_MAX_STACK)."""


def _text(value: Mapping[str, Any], key: str, default: str = "") -> str:
    found = value.get(key, default)
    if not isinstance(found, str) or "\0" in found:
        raise InputError(f"{key} is no text")
    return found


def _flag(value: Mapping[str, Any], key: str) -> bool:
    found = value.get(key, False)
    if not isinstance(found, bool):
        raise InputError(f"{key} is neither true nor false")
    return found


def _texts(value: Mapping[str, Any], key: str) -> list[str]:
    found = value.get(key)
    if not isinstance(found, list) or not all(isinstance(item, str) and item and "\0" not in item for item in found):
        raise InputError(f"{key} is no list of texts")
    if not 1 <= len(found) <= MAX_LAYERS:
        raise InputError(f"{key} has {len(found)} entries; 1 to {MAX_LAYERS} are possible")
    return found


def _owner(value: Mapping[str, Any]) -> Owner | None:
    found = value.get("owner")
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), int) for key in ("pid", "start_time")):
        raise InputError("owner is no process: it has a pid and a start_time")
    return Owner(found["pid"], found["start_time"])


@dataclass(frozen=True, slots=True)
class MountRequest:
    """Mount layers for an owner; with `parents` a stack without a base gets what its workspaces stand on."""

    layers: list[str]
    store: str
    owner: Owner | None
    prefetch: bool
    frontend: str
    parents: bool = False

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> MountRequest:
        """From JSON; raises InputError."""
        prefetch = _text(value, "prefetch", "all")
        if prefetch not in ("all", "none"):
            raise InputError(f"prefetch is all or none, not {prefetch[:40]!r}")
        store = _text(value, "store")
        if not store:
            raise InputError("store is missing")
        return cls(
            _texts(value, "layers"), store, _owner(value), prefetch == "all", _text(value, "frontend", "auto"),
            _flag(value, "parents"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverlayRequest:
    """Mount an overlay over folders, topmost first."""

    lowers: list[str]
    target: Path
    lease: str
    rw: bool
    upper: str
    work: str
    suid: bool

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> OverlayRequest:
        """From JSON; raises InputError."""
        lowers, target = _texts(value, "lowers"), Path(_text(value, "target"))
        if not target.is_absolute() or not all(Path(lower).is_absolute() for lower in lowers):
            raise InputError("lowers and target are absolute paths")
        return cls(
            lowers, target, _text(value, "lease"), _flag(value, "rw"), _text(value, "upper"), _text(value, "work"),
            _flag(value, "suid"),
        )  # fmt: skip


def parse_target(value: Mapping[str, Any]) -> Path:
    """The target of an unmount; raises InputError."""
    target = Path(_text(value, "target"))
    if not target.is_absolute():
        raise InputError("target is no absolute path")
    return target


def parse_lease(value: Mapping[str, Any]) -> str:
    """A lease's id; raises InputError."""
    return _text(value, "lease")


def parse_budget(value: Mapping[str, Any], default: int) -> int:
    """The budget to shrink the cache to; raises InputError."""
    found = value.get("budget_bytes", default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise InputError("budget_bytes is no size")
    return found
