"""What every benchmark shares: timed child processes, figures with targets, the machine, the table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LAYERKIT = Path(sys.executable).parent / "layerkit"


@dataclass
class Figure:
    """One figure: the median of its samples, and whether it meets its target (None where there is none)."""

    name: str
    value: float
    unit: str
    target: float | None = None
    met: bool | None = None
    samples: list[float] = field(default_factory=list)


@dataclass
class Timing:
    """One finished child: wall seconds, processor seconds, peak resident MiB, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_rss_mib: float
    output: bytes


class Bench:
    """A run of one benchmark: its working folder, and the figures and peers it collects."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder = folder
        self.samples = samples
        self.figures: list[Figure] = []
        self.peers: dict[str, str] = {}

    def figure(self, name: str, samples: Sequence[float], unit: str = "", *, at_most: float | None = None) -> float:
        """Add a figure from its samples; returns the median."""
        value = statistics.median(samples)
        met = None if at_most is None else value <= at_most
        self.figures.append(Figure(name, value, unit, at_most, met, list(samples)))
        return value

    def result(self) -> dict[str, Any]:
        """Everything, for --json."""
        return {"figures": [asdict(figure) for figure in self.figures], "peers": self.peers, "machine": machine()}

    def print_table(self) -> None:
        """The figures for people."""
        print(f"\n{'figure':40} {'median':>10} {'unit':4} {'spread':>20} {'target':>9}")
        for figure in self.figures:
            spread = f"{min(figure.samples):.4g} – {max(figure.samples):.4g}" if len(figure.samples) > 1 else ""
            target = "" if figure.target is None else f"≤ {figure.target:g}"
            mark = {None: "", True: "met", False: "MISSED"}[figure.met]
            print(f"{figure.name:40} {figure.value:>10.4g} {figure.unit:4} {spread:>20} {target:>9}  {mark}")
        print("peers: " + ", ".join(f"{name}: {version}" for name, version in self.peers.items()))


def timed(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, shell: bool = False
) -> Timing:
    """Run a child to its end; raises RuntimeError with its stderr when it fails."""
    command = ["bash", "-euo", "pipefail", "-c", str(argv[0])] if shell else [str(part) for part in argv]
    start = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, env={**os.environ, **(env or {})}
    ) as child:
        assert child.stdout
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - start
    if child.returncode:
        raise RuntimeError(f"{command}: exit code {child.returncode}\n{output.decode('utf-8', 'replace')[-4000:]}")
    return Timing(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def version_of(argv: Sequence[str]) -> str:
    """The first line that a peer prints about its version."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    return {"kernel": platform.release(), "cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def drop_caches() -> None:
    """Write back and drop the page cache, so that a run begins cold; root only."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
