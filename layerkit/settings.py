"""Every setting, declared once; standard library only; safe to read from any thread.

Order: explicit argument, then environment variable, then default. Nothing else in layerkit reads the environment.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import InputError

GIB = 1 << 30
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
PROXY_VARIABLES = (*_PROXIES, *(name.lower() for name in _PROXIES))
MAX_CACHE_BUDGET_BYTES = 20 * GIB
CACHE_BUDGET_SHARE = 0.10
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")


def _is_root() -> bool:
    return os.geteuid() == 0


def _user_dir(variable: str, fallback: str) -> Path:
    if value := os.environ.get(variable):
        return Path(value) / "layerkit"
    try:
        return Path.home() / fallback / "layerkit"
    except RuntimeError as error:
        raise InputError("this user has no home folder", hint="set LAYERKIT_HOME") from error


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


def fetch_deadline_s() -> float:
    """Longest wait of a reader for bytes from the store: LAYERKIT_FETCH_DEADLINE (seconds), else 60."""
    return _number("LAYERKIT_FETCH_DEADLINE", 60.0)


def linger_s() -> float:
    """How long a layer stays mounted after its last user: LAYERKIT_LINGER (seconds), else 5."""
    return _number("LAYERKIT_LINGER", 5.0)


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    if not _NUMBER.fullmatch(text):
        raise InputError(f"{variable} is not a number: {text[:40]!r}")
    return float(text)


def _budget(variable: str) -> int:
    if (value := _number(variable, -1)) >= 0:
        return int(value)
    folder = home_dir()
    while not folder.exists():
        folder = folder.parent
    return min(MAX_CACHE_BUDGET_BYTES, int(shutil.disk_usage(folder).total * CACHE_BUDGET_SHARE))


def source_date_epoch(given: str | None = None) -> int | None:
    """Seconds to which later times are clamped: the build argument, else SOURCE_DATE_EPOCH; None when neither is set.

    Raises:
        InputError: not a number of seconds.
    """
    text = given if given is not None else os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InputError(f"SOURCE_DATE_EPOCH is not a number of seconds: {text[:40]!r}")
    return int(text)


def proxy_environment() -> dict[str, str]:
    """The host's proxy settings, which RUN sees and no layer and no key does."""
    return {name: value for name in PROXY_VARIABLES if (value := os.environ.get(name))}


def environment_value(name: str) -> str | None:
    """The caller's variable that `--build-arg NAME` stands for."""
    return os.environ.get(name)


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
    Setting("SOURCE_DATE_EPOCH", "seconds to which later times in new layers are clamped", "not set"),
    Setting("LAYERKIT_STEP_CACHE", "budget of the step cache in bytes", "10 % of the disk, at most 20 GiB"),
    Setting("LAYERKIT_HOST_CACHE", "budget of the host's data files in bytes", "10 % of the disk, at most 20 GiB"),
    Setting("LAYERKIT_FETCH_DEADLINE", "longest wait of a reader for bytes from the store, in seconds", "60"),
    Setting("LAYERKIT_LINGER", "how long a layer stays mounted after its last user, in seconds", "5"),
)
