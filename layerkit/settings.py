"""Every setting, declared once; standard library only; safe to read from any thread.

Order: explicit argument, then environment variable, then default. Nothing else in layerkit reads the environment.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
MAX_CACHE_BUDGET_BYTES = 20 * GIB
CACHE_BUDGET_SHARE = 0.10


def _is_root() -> bool:
    return os.geteuid() == 0


def _user_dir(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "layerkit"


def home_dir() -> Path:
    """State and caches of this instance: LAYERKIT_HOME, else /var/lib/layerkit (root) or the XDG data folder."""
    if value := os.environ.get("LAYERKIT_HOME"):
        return Path(value).absolute()
    return Path("/var/lib/layerkit") if _is_root() else _user_dir("XDG_DATA_HOME", ".local/share")


def run_dir() -> Path:
    """Sockets and mounts of this instance: LAYERKIT_RUN, else /run/layerkit (root) or the XDG runtime folder."""
    if value := os.environ.get("LAYERKIT_RUN"):
        return Path(value).absolute()
    if _is_root():
        return Path("/run/layerkit")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "layerkit" if runtime else home_dir() / "run"


def store_url() -> str:
    """The store that names are looked up in and published to: LAYERKIT_STORE, else the embedded one under the home."""
    return os.environ.get("LAYERKIT_STORE") or str(home_dir() / "store")


def step_cache_budget_bytes() -> int:
    """Budget of the build's step cache: LAYERKIT_STEP_CACHE (bytes), else 10 % of the disk, at most 20 GiB."""
    return _budget("LAYERKIT_STEP_CACHE")


def host_cache_budget_bytes() -> int:
    """Budget of the host's data files: LAYERKIT_HOST_CACHE (bytes), else 10 % of the disk, at most 20 GiB."""
    return _budget("LAYERKIT_HOST_CACHE")


def _budget(variable: str) -> int:
    if value := os.environ.get(variable):
        return int(value)
    folder = home_dir()
    while not folder.exists():
        folder = folder.parent
    return min(MAX_CACHE_BUDGET_BYTES, int(shutil.disk_usage(folder).total * CACHE_BUDGET_SHARE))


@dataclass(frozen=True)
class Setting:
    """One row of the table in docs/operations.md, which is made from SETTINGS."""

    variable: str
    meaning: str
    default: str


SETTINGS = (
    Setting("LAYERKIT_STORE", "URL of the store", "/var/lib/layerkit/store"),
    Setting("LAYERKIT_HOME", "state and caches", "/var/lib/layerkit"),
    Setting("LAYERKIT_RUN", "sockets and mounts", "/run/layerkit"),
    Setting("LAYERKIT_STEP_CACHE", "budget of the step cache in bytes", "10 % of the disk, at most 20 GiB"),
    Setting("LAYERKIT_HOST_CACHE", "budget of the host's data files in bytes", "10 % of the disk, at most 20 GiB"),
)
