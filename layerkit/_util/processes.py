"""Processes named by pid and start time, so that a recycled pid is never mistaken; standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: its pid and its start time in clock ticks after boot (proc(5), field 22 of stat)."""

    pid: int
    start_time: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), start_time(os.getpid()) or 0)

    @property
    def is_alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return start_time(self.pid) == self.start_time


def start_time(pid: int) -> int | None:
    """The start time of a running process, None when there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold blanks and parentheses; fields are counted from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
