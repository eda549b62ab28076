"""What a sandbox may use: processor, memory, disk, processes; pure values, safe everywhere."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from layerkit.errors import InputError

MIB = 1 << 20
CPU_PERIOD_US = 100_000
MIN_CPUS = 0.01
MIN_MEMORY_MB = 8
MIN_DISK_MB = 4
MIN_PIDS = 4
MAX_OPEN_FILES = 20_000
"""Never more than this, nor than the caller's own hard limit: raising that needs CAP_SYS_RESOURCE."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one sandbox; None means the host's.

    Args:
        cpus: processors, fractions allowed.
        memory_mb: MiB of memory, page cache included; swap is not given on top.
        disk_mb: MiB that may be written to the root file system, its own metadata included.
        pids: processes and threads, the agent included.
        shm_mb: size of /dev/shm in MiB (its pages count as memory).
    """

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = 512
    shm_mb: int = 64

    def __post_init__(self) -> None:
        for name, least in (
            ("cpus", MIN_CPUS),
            ("memory_mb", MIN_MEMORY_MB),
            ("disk_mb", MIN_DISK_MB),
            ("pids", MIN_PIDS),
            ("shm_mb", 1),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InputError(f"the limit {name} is {value}, the least possible is {least}")

    def oci_resources(self, *, limit_swap: bool) -> dict[str, object]:
        """`linux.resources` of an OCI config, without devices.

        Args:
            limit_swap: whether the kernel accounts swap; writing a swap limit fails where it does not.
        """
        found: dict[str, object] = {}
        if self.memory_mb is not None:
            memory = {"limit": self.memory_mb * MIB}
            if limit_swap:
                memory["swap"] = self.memory_mb * MIB
            found["memory"] = memory
        if self.cpus is not None:
            found["cpu"] = {"quota": int(self.cpus * CPU_PERIOD_US), "period": CPU_PERIOD_US}
        if self.pids is not None:
            found["pids"] = {"limit": self.pids}
        return found


def max_open_files() -> int:
    """RLIMIT_NOFILE that a sandbox gets."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
