"""Starts a sandbox and dies by SIGKILL at a given step; a process of its own, because that is what dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layerkit.runtime import assembly, container, launcher, network, records
from layerkit.runtime.limits import Limits
from layerkit.runtime.netlink import Netlink
from layerkit.runtime.spec import ContainerSpec


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    setattr(owner, name, die)


def after(owner: Any, name: str) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> None:
        inner(*args, **kwargs)
        die()

    setattr(owner, name, wrapped)


def while_runtime_runs(delay_ms: int) -> None:
    inner = launcher.subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        threading.Timer(delay_ms / 1000, die).start()
        return inner(*args, **kwargs)

    launcher.subprocess.Popen = start  # type: ignore[misc, assignment]


STEPS: dict[str, Callable[[], None]] = {
    "record": lambda: after(records, "claim"),
    "folder": lambda: before(container, "Assembly"),
    "mounts": lambda: after(assembly, "open_root"),
    "built": lambda: before(container, "Launch"),
    "runtime-0": lambda: while_runtime_runs(0),
    "runtime-2": lambda: while_runtime_runs(2),
    "runtime-5": lambda: while_runtime_runs(5),
    "runtime-10": lambda: while_runtime_runs(10),
    "runtime-20": lambda: while_runtime_runs(20),
    "launched": lambda: after(container, "Launch"),
    "agent": lambda: after(container, "AgentConnection"),
    "network-rules": lambda: after(network, "run_program"),
    "network-veth": lambda: after(Netlink, "add_veth"),
    "network": lambda: after(network, "connect"),
    "running": lambda: after(container.Container, "_start"),
}


def main() -> None:
    step, root, name, upper = sys.argv[1:]
    STEPS[step]()
    spec = ContainerSpec(
        lowers=[Path(root)],
        id=name,
        network="nat" if step.startswith("network") else "none",
        upper=Path(upper) if upper else None,
        limits=Limits(disk_mb=16) if step == "mounts" and not upper else Limits(),
    )
    container.Container.start(spec).exec(["true"])


if __name__ == "__main__":
    main()
