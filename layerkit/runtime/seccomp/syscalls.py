"""Numbers of system calls by architecture, from syscalls.txt; imported by the seccomp package only; pure."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from layerkit.errors import UnsupportedError

TABLE = Path(__file__).parent / "syscalls.txt"
ARCHES = ("x86_64", "aarch64")
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def normalise_arch(arch: str) -> str:
    """`x86_64` or `aarch64`, from the kernel's or from OCI's spelling.

    Raises:
        UnsupportedError: there is no table for it.
    """
    name = _ALIASES.get(arch, arch)
    if name not in ARCHES:
        raise UnsupportedError(f"no system call table for {arch}", hint=f"known are {', '.join(ARCHES)}")
    return name


@cache
def syscall_numbers(arch: str) -> dict[str, int]:
    """Name → number of every system call that the table knows on this architecture."""
    column = 1 + ARCHES.index(normalise_arch(arch))
    rows = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
