"""An instance whose home is a tmpfs: EROFS takes no files of one, so mounts go through loop devices."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit._util import syscalls
from layerkit._util.overlay import unmount
from tests.e2e.conftest import Program

pytestmark = pytest.mark.privileged


@pytest.fixture
def tmpfs_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small tmpfs; made before the program's own fixture, so that it outlives the daemons."""
    home = tmp_path_factory.mktemp("tmpfs-home")
    syscalls.mount("tmpfs", home, "tmpfs", 0, "size=64m")
    yield home
    assert unmount(home, wait_s=10.0)


@pytest.mark.parametrize("frontend", ["fuse", "local"])
def test_mount_and_run(tmpfs_home: Path, layerkit: Program, small_root: Path, tmp_path: Path, frontend: str) -> None:
    layerkit.extra["LAYERKIT_HOME"] = str(tmpfs_home)
    target = tmp_path / "target"
    target.mkdir()
    layerkit("import", small_root, "-t", "base/small:1", "--publish")
    layerkit("mount", "base/small:1", target, "--frontend", frontend, "--prefetch", "none")
    assert filecmp.cmp(target / "bin/sh", small_root / "bin/sh", shallow=False)
    assert layerkit("run", "base/small:1", "--", "cat", "/etc/passwd") == (small_root / "etc/passwd").read_text()
    layerkit("umount", target)
