"""Fixtures of the compiler's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build.engine import Bench, make_root


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def based(bench: Bench, tmp_path: Path) -> Bench:
    """A bench with base/b:1, a small root file system."""
    bench.base(make_root(tmp_path / "root", usr__bin__tool="#!/bin/sh\ntrue\n", usr__lib__libx="lib" * 500))
    return bench
