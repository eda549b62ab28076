"""What the container backend can do on this host, asked before anything is started; any thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from layerkit._util.process import find_program, get_program
from layerkit.errors import HostError, LayerkitError
from layerkit.runtime.agent_client import agent_program
from layerkit.runtime.cgroups import probe_layout
from layerkit.runtime.launcher import launcher_program
from layerkit.runtime.userns import IdMap, get_mount_userns


def container_capabilities() -> dict[str, str]:
    """Ability → why it is missing, '' when it is there.

    Returns:
        `run` (sandboxes at all), `userns` (owners mapped, the default), `limits` (control groups), `disk_mb`, `nat`,
        `runc` (as another OCI runtime).
    """
    return {name: _missing(probe) for name, probe in _PROBES.items()}


def _missing(probe: Callable[[], object]) -> str:
    try:
        probe()
    except LayerkitError as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _probe_run() -> None:
    if os.geteuid() != 0:
        raise HostError("needs root")
    get_program("crun")
    launcher_program()
    agent_program()


def _probe_disk() -> None:
    get_program("mkfs.ext4", "e2fsprogs")
    if not Path("/dev/loop-control").exists():
        raise HostError("no loop devices")


def _probe_runc() -> None:
    if find_program("runc") is None:
        raise HostError("runc is not installed")


_PROBES: dict[str, Callable[[], object]] = {
    "run": _probe_run,
    "userns": lambda: get_mount_userns(IdMap()),
    "limits": probe_layout,
    "disk_mb": _probe_disk,
    "nat": lambda: get_program("nft", "nftables"),
    "runc": _probe_runc,
}
