"""The kernel's mount calls through ctypes: overlays of many lowers, idmapped clones, unmounting."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from layerkit._util import overlay, syscalls

pytestmark = pytest.mark.privileged


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder under a fresh tmpfs, gone with everything that was mounted in it."""
    path = Path(tempfile.mkdtemp(prefix="layerkit-overlay-"))
    syscalls.mount("tmpfs", path, "tmpfs")
    try:
        yield path
    finally:
        for point in reversed(overlay.mount_points()):
            if point.startswith(os.fsencode(path)):
                syscalls.umount2(point, syscalls.MNT_DETACH)
        path.rmdir()


def make_lowers(folder: Path, count: int, name: str = "l") -> list[Path]:
    lowers = []
    for number in range(count):
        lower = folder / f"{name}{number}"
        lower.mkdir(parents=True)
        (lower / f"witness{number}").write_text(str(number))
        (lower / "shared").write_text(str(number))
        lowers.append(lower)
    return lowers


@pytest.mark.parametrize("count", [1, 2, 40, 130])
@pytest.mark.parametrize("length", [10, 300])
def test_l29_overlay_of_many_lowers_with_long_paths(folder: Path, count: int, length: int) -> None:
    lowers = make_lowers(folder, count, "/".join([*["n" * 100] * (length // 100), "l"]))
    target = folder / "m"
    target.mkdir()
    overlay.mount_overlay(lowers, target, attributes=syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV)
    assert [(target / f"witness{n}").read_text() for n in range(count)] == [str(n) for n in range(count)]
    assert (target / "shared").read_text() == "0", "the first lower is the topmost"
    flags = os.statvfs(target).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    assert overlay.is_mounted(target)
    assert overlay.unmount(target)
    assert not overlay.is_mounted(target)


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b", "a\\:b c", "ü"])
def test_lowers_with_odd_names(folder: Path, name: str) -> None:
    lowers = make_lowers(folder, 2, name)
    (folder / name / "up").mkdir(parents=True)
    (folder / name / "work").mkdir()
    (folder / "m").mkdir()
    overlay.mount_overlay(lowers, folder / "m", upper=folder / name / "up", work=folder / name / "work")
    (folder / "m" / "new").write_text("x")
    assert (folder / name / "up" / "new").read_text() == "x"
    assert (folder / "m" / "witness1").read_text() == "1"


def test_old_kernels_get_one_option_string(folder: Path) -> None:
    lowers = make_lowers(folder, 130, "/".join([*["n" * 100] * 3, "l"]))
    (folder / "m").mkdir()
    overlay._mount_by_options(lowers, folder / "m", [], syscalls.MOUNT_ATTR_NODEV, ())
    assert [(folder / "m" / f"witness{n}").read_text() for n in range(130)] == [str(n) for n in range(130)]
    with pytest.raises(OSError, match="lowers need") as caught:
        overlay._mount_by_options(lowers * 3, folder / "m", [], 0, ())
    assert caught.value.errno == errno.E2BIG


def test_errors_carry_errno_and_the_kernels_words(folder: Path) -> None:
    (folder / "m").mkdir()
    with pytest.raises(FileNotFoundError):
        overlay.mount_overlay([folder / "none"], folder / "m")
    with pytest.raises(OSError, match="lowerdir") as caught:
        overlay.mount_overlay([Path(__file__)] * 2, folder / "m")
    assert caught.value.errno in {errno.ENOTDIR, errno.EINVAL}
    with pytest.raises(OSError, match="Invalid argument"):
        syscalls.umount2(folder / "m")


def test_busy_mounts_are_detached(folder: Path) -> None:
    (folder / "m").mkdir()
    overlay.mount_overlay(make_lowers(folder, 2), folder / "m")
    with open(folder / "m" / "shared"):
        assert not overlay.unmount(folder / "m", wait_s=0.05)
    assert not overlay.is_mounted(folder / "m")


def test_idmapped_clone(folder: Path) -> None:
    source = folder / "s"
    source.mkdir()
    (source / "f").write_text("x")
    os.chown(source / "f", 5, 6)
    (folder / "m").mkdir()
    child = subprocess.Popen(
        ["unshare", "-U", sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        for kind in ("uid", "gid"):
            Path(f"/proc/{child.pid}/{kind}_map").write_text("0 100000 65536")
        userns = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
        # tmpfs can be idmapped since 6.3; EROFS since 5.19.
        with suppress(OSError):
            syscalls.mount(source, source, None, syscalls.MS_BIND)
        overlay.mount_idmapped(source, folder / "m", userns, attributes=syscalls.MOUNT_ATTR_NODEV)
        os.close(userns)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    status = (folder / "m" / "f").stat()
    assert (status.st_uid, status.st_gid) == (100005, 100006)
