"""The root file system of a sandbox as one detached overlay mount; it is attached only where the sandbox sees it.

Used by the container backend. What is open here is closed by the caller's ExitStack; nothing appears in the host's
mount table, so nothing can stay in it. Functions without state; any thread.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from layerkit._util import syscalls
from layerkit._util.overlay import mount_overlay, open_idmapped, open_overlay
from layerkit.errors import HostError, InputError, UnsupportedError
from layerkit.runtime.userns import IdMap, get_mount_userns

# Whatever the kernel's defaults are: a renamed folder or a changed owner must not become an overlay xattr in the upper,
# which nobody but overlayfs reads. `volatile`: an upper that a crash of the host leaves behind is thrown away anyway.
OPTIONS = (("redirect_dir", "off"), ("metacopy", "off"), ("index", "off"), ("volatile", ""))


def open_root(stack: ExitStack, lowers: Sequence[Path], upper: Path, work: Path, ids: IdMap | None) -> int:
    """A detached, writable overlay over the lowers.

    Args:
        stack: closes everything.
        lowers: topmost first.
        upper, work: folders in one folder.
        ids: maps owners, so that every layer and the upper keep the sandbox's own ids on disk.

    Raises:
        UnsupportedError: a file system that cannot be idmapped.
        HostError: the kernel refuses the overlay.
    """
    if upper.parent != work.parent:
        raise ValueError("upper and work must be in one folder")
    names = [_source(stack, lower, ids, readonly=True) for lower in lowers]
    parent = _source(stack, upper.parent, ids, readonly=False)
    return _opened(stack, names, f"{parent}/{upper.name}", f"{parent}/{work.name}")


def _source(stack: ExitStack, path: Path, ids: IdMap | None, *, readonly: bool) -> str:
    """A name for overlayfs: the path, or an open idmapped clone of it."""
    if ids is None:
        return str(path)
    attributes = syscalls.MOUNT_ATTR_RDONLY if readonly else 0
    return f"/proc/self/fd/{open_mapped(stack, path, ids, attributes=attributes)}"


def open_mapped(stack: ExitStack, path: Path, ids: IdMap, *, attributes: int = 0) -> int:
    """A detached clone of what is mounted at `path`, its owners mapped into the sandbox.

    Raises:
        UnsupportedError: the file system cannot be idmapped.
    """
    try:
        fd = open_idmapped(path, get_mount_userns(ids), attributes=attributes)
    except FileNotFoundError as error:
        raise InputError("there is no such file or folder", where=str(path)) from error
    except OSError as error:
        raise UnsupportedError(
            f"owners cannot be mapped on this file system: {error.strerror}",
            where=str(path),
            hint="idmapped mounts need Linux 5.12, EROFS 5.19, and a file system with support for them; "
            "userns='off' does without",
        ) from error
    stack.callback(os.close, fd)
    return fd


def _opened(stack: ExitStack, lowers: Sequence[str], upper: str, work: str) -> int:
    attributes = syscalls.MOUNT_ATTR_NODEV
    try:
        fd = open_overlay(lowers, upper=upper, work=work, attributes=attributes, options=OPTIONS)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise _refused(error, upper) from error
        fd = _open_by_detour(lowers, upper, work, attributes, error)
    stack.callback(os.close, fd)
    return fd


def _open_by_detour(lowers: Sequence[str], upper: str, work: str, attributes: int, first: OSError) -> int:
    """Kernels before 6.7 attach an overlay as they make it: do so for a moment, and keep a clone."""
    with tempfile.TemporaryDirectory(prefix="layerkit-root-") as target:
        try:
            mount_overlay(lowers, target, upper=upper, work=work, attributes=attributes, options=OPTIONS)
        except OSError as error:
            raise _refused(error, upper) from first
        try:
            return syscalls.open_tree(target)
        finally:
            syscalls.umount2(target, syscalls.MNT_DETACH)


def _refused(error: OSError, upper: str) -> HostError:
    return HostError(
        f"overlay refused: {error.strerror}",
        where=upper,
        hint="the upper directory must be on ext4, xfs, btrfs or tmpfs, not on an overlay itself",
    )
