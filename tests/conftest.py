"""What every test shares: skips with reasons, a private instance of layerkit, no leftover mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def missing_for_privileged() -> str:
    """Why privileged tests cannot run here; '' when they can."""
    if os.geteuid() != 0:
        return "needs root"
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return "" if effective >> 21 & 1 else "needs CAP_SYS_ADMIN"


def pytest_report_header() -> str:
    return f"privileged tests: {missing_for_privileged() or 'run'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_for_privileged()
    if reason:
        for item in items:
            if item.get_closest_marker("privileged"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A layerkit of its own: store, home and run folder below a temporary path."""
    monkeypatch.setenv("LAYERKIT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("LAYERKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAYERKIT_RUN", str(tmp_path / "run"))
    return tmp_path
