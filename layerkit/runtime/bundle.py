"""The OCI config of a sandbox as a pure function of what it should be; values only, safe everywhere.

Used by the container backend. Sources: OCI runtime spec 1.0.2 (config.md, config-linux.md), Docker's defaults for
capabilities and masked paths, crun(1) for the annotation.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from layerkit.runtime.limits import MIB, Limits
from layerkit.runtime.userns import IdMap

Network = Literal["none", "nat", "host"]

AGENT_PATH = "/dev/.layerkit-agent"
"""Where the agent's binary is seen inside: in the sandbox's own /dev, so that no mount point enters the root."""
AGENT_FD = 3

# Docker's list without CAP_NET_RAW (packet sockets could forge on the NAT link; ping works through ping_group_range).
CAPABILITIES = (
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip
MASKED_PATHS = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware",
)  # fmt: skip
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
DEV_SIZE_KIB = 65536
TTY_GROUP = "gid=5"


@dataclass(frozen=True, slots=True)
class Bind:
    """A mount of the host's inside a sandbox: a path that the OCI runtime can open, and where it is seen."""

    source: str
    target: str
    readonly: bool = False
    recursive: bool = False
    noexec: bool = False


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """Everything that decides an OCI config.

    Args:
        root: the root file system's path, as the OCI runtime sees it.
        agent: the agent's binary, as the OCI runtime sees it.
        cgroup_path: `linux.cgroupsPath`.
        cgroup_version: what the sandbox's own view of its control group is: 2, or 1 for none at all.
        ids: the user namespace's map; None to run in the host's.
        seccomp: the filter as a BPF program, or as `linux.seccomp` for runtimes that take no program.
        binds: in the order of mounting.
    """

    root: str
    agent: str
    hostname: str
    cgroup_path: str
    cgroup_version: Literal[1, 2]
    limits: Limits
    network: Network
    ids: IdMap | None
    seccomp: bytes | Mapping[str, Any]
    open_files: int
    limit_swap: bool
    binds: Sequence[Bind] = field(default=())
    environment: Mapping[str, str] = field(default_factory=dict)


def oci_config(spec: BundleSpec) -> dict[str, Any]:
    """`config.json` of the bundle."""
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "root": {"path": spec.root, "readonly": False},
        "hostname": spec.hostname,
        "process": _process(spec),
        "mounts": [*_kernel_mounts(spec), *(_bind(bind) for bind in _all_binds(spec))],
        "linux": _linux(spec),
    }
    if isinstance(spec.seccomp, bytes):
        # Given as a program, crun need not compile a profile in every start: 11 of 19 ms.
        config["annotations"] = {"run.oci.seccomp_bpf_data": base64.b64encode(spec.seccomp).decode("ascii")}
    else:
        config["linux"]["seccomp"] = spec.seccomp
    return config


def _process(spec: BundleSpec) -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [AGENT_PATH, "--fd", str(AGENT_FD)],
        "env": [f"{key}={value}" for key, value in spec.environment.items()],
        "cwd": "/",
        "capabilities": {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": spec.open_files, "hard": spec.open_files},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
        "noNewPrivileges": True,
    }


def _mount(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}


def _kernel_mounts(spec: BundleSpec) -> list[dict[str, Any]]:
    safe = ("nosuid", "noexec", "nodev")
    mounts = [
        _mount("/proc", "proc", *safe),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", f"size={DEV_SIZE_KIB}k"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", TTY_GROUP),
        _mount("/dev/shm", "tmpfs", *safe, "mode=1777", f"size={spec.limits.shm_mb * MIB}"),
        _mount("/dev/mqueue", "mqueue", *safe),
    ]
    if spec.ids is not None and spec.network == "host":
        # A sysfs of the host's network namespace cannot be mounted from another user namespace.
        mounts.append(_bind(Bind("/sys", "/sys", readonly=True, recursive=True)))
    else:
        mounts.append(_mount("/sys", "sysfs", *safe, "ro"))
    if spec.cgroup_version == 2:
        mounts.append(_mount("/sys/fs/cgroup", "cgroup", *safe, "relatime", "ro"))
    return mounts


def _all_binds(spec: BundleSpec) -> list[Bind]:
    return [Bind(spec.agent, AGENT_PATH, readonly=True), *spec.binds]


def _bind(bind: Bind) -> dict[str, Any]:
    options = ["rbind" if bind.recursive else "bind", "private", "nosuid", "nodev"]
    options += ["noexec"] if bind.noexec else []
    return {
        "destination": bind.target,
        "type": "bind",
        "source": bind.source,
        "options": [*options, "ro" if bind.readonly else "rw"],
    }


def _linux(spec: BundleSpec) -> dict[str, Any]:
    namespaces = ["pid", "ipc", "uts", "mount", "cgroup"]
    if spec.network != "host":
        namespaces.append("network")
    if spec.ids is not None:
        namespaces.append("user")
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in namespaces],
        "cgroupsPath": spec.cgroup_path,
        "resources": {
            "devices": [{"allow": False, "access": "rwm"}],
            **spec.limits.oci_resources(limit_swap=spec.limit_swap),
        },
        "maskedPaths": list(MASKED_PATHS),
        "readonlyPaths": list(READONLY_PATHS),
    }
    if spec.network != "host":
        highest = (spec.ids.size if spec.ids is not None else 1 << 31) - 1
        linux["sysctl"] = {
            "net.ipv4.ip_unprivileged_port_start": "0",
            "net.ipv4.ping_group_range": f"0 {highest}",
        }
    if spec.ids is not None:
        linux["uidMappings"] = linux["gidMappings"] = spec.ids.oci_mappings()
    return linux
