"""Owners inside and outside of a sandbox: the id map, and the user namespace that idmapped mounts take it from.

Used by the container backend. A user namespace is made once a process and map and kept as an open fd; any thread.

Two maps belong to one sandbox. The **sandbox's** user namespace maps its ids 0 … SIZE-1 to HOST_START … on the host.
The **mounts** use the same map the other way round, so that files keep the sandbox's own ids on disk, in layers as well
as in the upper directory. Theirs has one more entry: overlayfs makes its work directory, and every whiteout, as the
process that mounted it, the host's root, and an id without a place in the map cannot own a file (EOVERFLOW, and the
kernel falls back to a read-only overlay). Root therefore lands on ROOT_ON_DISK, an id that no sandbox has.
"""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import HostError, UnsupportedError
from layerkit.runtime.launcher import launcher_program

HOST_START = 1 << 30
SIZE = 1 << 30
ROOT_ON_DISK = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class IdMap:
    """Sandbox ids 0 … size-1 are host ids host_start … host_start+size-1; for users and groups alike."""

    host_start: int = HOST_START
    size: int = SIZE

    def to_host(self, sandbox_id: int) -> int:
        """The host id of a sandbox's id; ValueError where it has none."""
        if not 0 <= sandbox_id < self.size:
            raise ValueError(f"id {sandbox_id} is not below {self.size}")
        return self.host_start + sandbox_id

    def oci_mappings(self) -> list[dict[str, int]]:
        """`uidMappings` and `gidMappings` of an OCI config."""
        return [{"containerID": 0, "hostID": self.host_start, "size": self.size}]

    def mount_map(self) -> bytes:
        """Content of uid_map and gid_map for idmapped mounts: id on disk, id on the host, count."""
        return f"0 {self.host_start} {self.size}\n{ROOT_ON_DISK} 0 1\n".encode()


_open_namespaces: dict[IdMap, int] = {}
_lock = threading.Lock()


def get_mount_userns(ids: IdMap) -> int:
    """An fd of a user namespace with `ids.mount_map()`; it belongs to this module and stays open.

    Raises:
        UnsupportedError: this kernel or its settings allow no user namespaces.
    """
    with _lock:
        fd = _open_namespaces.get(ids)
        if fd is None:
            fd = _open_namespaces[ids] = _make_userns(ids)
        return fd


def _make_userns(ids: IdMap) -> int:
    pipe = subprocess.PIPE
    holder = subprocess.Popen([launcher_program(), "--hold-userns"], stdin=pipe, stdout=pipe, stderr=pipe)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if os.read(holder.stdout.fileno(), 1) != b"r":
            words = holder.communicate(timeout=10)[1].decode("utf-8", "replace").strip()
            raise UnsupportedError(
                f"no user namespace could be made: {words}",
                hint="allow them (sysctl user.max_user_namespaces), or ask for userns='off'",
            )
        for name in ("uid_map", "gid_map"):
            _write_map(Path(f"/proc/{holder.pid}/{name}"), ids.mount_map())
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        holder.communicate()


def _write_map(path: Path, content: bytes) -> None:
    """The whole map in one write, as the kernel demands."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    except OSError as error:
        raise HostError(f"id map refused: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)
