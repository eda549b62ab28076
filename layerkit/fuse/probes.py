"""What this host's kernel can do, found out by doing it: the parts of `doctor` that hostd needs too.

Imported by `fuse.host` and `fuse.doctor`. Each probe cleans up after itself and takes milliseconds; any thread.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from layerkit._util import syscalls
from layerkit.core.erofs_writer import BLOCK_SIZE, NodeTable, seal_erofs, write_erofs
from layerkit.errors import HostError
from layerkit.fuse.erofs_mount import MountSource, mount_erofs
from layerkit.fuse.frontends import View

CAP_SYS_ADMIN = 21
_UNIFIED_SINCE = (6, 4)


def kernel_version() -> tuple[int, int]:
    """Major and minor."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


@contextmanager
def probe_folder() -> Iterator[Path]:
    """A private folder; whatever is mounted at its `m` goes with it."""
    with tempfile.TemporaryDirectory(prefix="layerkit-probe-") as name:
        folder = Path(name)
        (folder / "m").mkdir()
        try:
            yield folder
        finally:
            with suppress(OSError):
                syscalls.umount2(folder / "m", syscalls.MNT_DETACH)


def tiny_image(folder: Path) -> MountSource:
    """An EROFS image with one external device of two blocks that hold the file `f`, all bytes b'x'."""
    table = NodeTable()
    root = table.add(mode=stat.S_IFDIR | 0o755, uid=0, gid=0, mtime_ns=0)
    file = table.add(mode=stat.S_IFREG | 0o644, uid=0, gid=0, mtime_ns=0, size=2 * BLOCK_SIZE, block=0)
    table.link(root, b"f", file)
    image = write_erofs(table, data_blocks=2)
    seal_erofs(image, bytes(range(16)))
    (folder / "meta").write_bytes(image)
    (folder / "data").write_bytes(b"x" * 2 * BLOCK_SIZE)
    return MountSource(folder / "meta", folder / "data")


@contextmanager
def tiny_mount(*, loop: bool = False) -> Iterator[Path]:
    """The tiny image mounted; its folder holds `m` (the mount), `meta` and `data`.

    Raises:
        HostError: the kernel cannot.
    """
    with probe_folder() as folder:
        mount_erofs(tiny_image(folder)._replace(loop=loop), folder / "m")
        yield folder


def erofs_problem(*, loop: bool) -> str:
    """Why EROFS cannot be mounted from a file (or through loop devices); '' when it can, and reads right."""
    try:
        with tiny_mount(loop=loop) as folder:
            right = (folder / "m" / "f").read_bytes() == b"x" * 2 * BLOCK_SIZE
            return "" if right else "the kernel reads wrong bytes from the external device"
    except (HostError, OSError) as error:
        return str(error)


def short_read_problem() -> str:
    """Whether the kernel fills a short read of the backing file with zeros; '' when it answers EIO."""
    try:
        with tiny_mount() as folder:
            os.truncate(folder / "data", BLOCK_SIZE)
            with (folder / "m" / "f").open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                found = os.pread(file.fileno(), BLOCK_SIZE, BLOCK_SIZE)
    except HostError as error:
        return str(error)
    except OSError as error:
        return "" if error.errno == errno.EIO else str(error)
    return "zeros are read where the backing file ends" if not any(found) else ""


def fuse_problem() -> str:
    """Why the FUSE server cannot run here; '' when it can."""
    missing = [name for name in ("pyfuse3", "trio") if importlib.util.find_spec(name) is None]
    if missing:
        return f"Python packages {', '.join(missing)} are missing"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True)
class FrontendSupport:
    """What the frontends need to know; the texts say why one cannot be used."""

    local_problem: str
    fuse_problem: str
    needs_loop: bool
    view: View


def frontend_support() -> FrontendSupport:
    """Find out what the frontends can do on this host."""
    if not has_capability(CAP_SYS_ADMIN):
        return FrontendSupport("mounting needs CAP_SYS_ADMIN", "mounting needs CAP_SYS_ADMIN", False, "device")
    from_file = erofs_problem(loop=False) or short_read_problem()
    if not from_file:
        return FrontendSupport("", fuse_problem(), False, "device")
    by_loop = erofs_problem(loop=True)
    old = kernel_version() < _UNIFIED_SINCE
    # Before 6.4 the kernel does not know unified addresses: only the flat view in its old form is right.
    local = "this kernel reads data only through the fuse frontend" if old and by_loop else by_loop
    fuse = fuse_problem() or ("" if old else by_loop)
    return FrontendSupport(local, fuse, True, "old" if old else "flat")
