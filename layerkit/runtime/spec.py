"""What a container sandbox is asked to be; values only, safe everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from layerkit.errors import InputError
from layerkit.runtime.bundle import Network
from layerkit.runtime.limits import Limits

UserNamespace = Literal["require", "off"]
OciRuntime = Literal["crun", "runc"]
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host's that is seen inside at `path`; what is mounted beneath it is not."""

    host: Path
    path: str
    readonly: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read `HOST:PATH[:ro]`; raises InputError."""
        host, colon, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not colon or not host or not path.startswith("/") or mode not in ("", "ro", "rw"):
            raise InputError(f"not a mount: {text!r}", hint="write HOST:PATH or HOST:PATH:ro, PATH being absolute")
        return cls(Path(host).absolute(), path, mode == "ro")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A sandbox of the container backend.

    Args:
        lowers: mounted layers or folders, topmost first.
        env, workdir, user: what commands get unless they say otherwise; `user` is `uid[:gid]` or names.
        path_additions: folders that login shells, which set a PATH of their own, put at its front; the first is
            foremost. `env` has them already.
        limits: what it may use.
        network: none, nat or host.
        mounts: further folders and files of the host's.
        hostname: '' for the id.
        userns: `require` runs it in a user namespace of its own; `off` must be asked for.
        host_trust: trust the certificates that the host trusts.
        upper: where its changes go, kept by `stop`; None for a folder of its own that goes with it.
        id: '' for a random one.
        runtime: the OCI runtime.
    """

    lowers: Sequence[Path]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    path_additions: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    network: Network = "none"
    mounts: Sequence[Mount] = ()
    hostname: str = ""
    userns: UserNamespace = "require"
    host_trust: bool = False
    upper: Path | None = None
    id: str = ""
    runtime: OciRuntime = "crun"

    def __post_init__(self) -> None:
        if not self.lowers:
            raise InputError("a sandbox needs at least one layer")
        if self.hostname and (len(self.hostname) > 64 or not _HOSTNAME.fullmatch(self.hostname)):
            raise InputError(f"not a host name: {self.hostname[:100]!r}")
        if self.upper is not None and self.limits.disk_mb is not None:
            raise InputError("disk_mb limits the sandbox's own upper directory, not one that is given")
        for mount in self.mounts:
            if not mount.path.startswith("/") or ".." in mount.path.split("/"):
                raise InputError(f"a mount's path must be absolute, without ..: {mount.path!r}")
            if not mount.path.strip("/."):
                raise InputError("nothing can be mounted over the sandbox's root", hint="name a folder in it")
