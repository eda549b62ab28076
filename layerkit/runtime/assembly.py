"""Puts a sandbox together on disk and in detached mounts, up to the moment in which the OCI runtime is started.

Used by `runtime.container`. An `Assembly` belongs to one thread at a time; everything it opens is closed by `close`.

The bundle is a small tmpfs that is mounted nowhere: it costs no disk's journal and is gone with its last user. The
launcher attaches it to one folder of its private mount namespace, and in it the root overlay, the agent and whatever is
mounted from the host. Paths on the host may then be as deep and as private as they like: a runtime that has become the
sandbox's own root cannot walk through a folder with mode 0700. Only the upper and work directories are on disk.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from layerkit._util import syscalls
from layerkit.errors import HostError, InputError, UnsupportedError
from layerkit.runtime import host_files
from layerkit.runtime.agent_client import agent_program
from layerkit.runtime.bundle import CAPABILITIES, Bind, BundleSpec, oci_config
from layerkit.runtime.cgroups import Cgroup, CgroupLayout
from layerkit.runtime.disk import make_disk
from layerkit.runtime.launcher import Attach
from layerkit.runtime.limits import max_open_files
from layerkit.runtime.merged_view import MergedView
from layerkit.runtime.oci_seccomp import oci_seccomp
from layerkit.runtime.provided import Provided, Wish, provide
from layerkit.runtime.rootfs import open_mapped, open_root
from layerkit.runtime.seccomp import default_filter
from layerkit.runtime.spec import ContainerSpec, Mount
from layerkit.runtime.userns import IdMap

_STAGES = ("/mnt", "/media", "/srv")
BUNDLE_SIZE = "16m"
_BUNDLE_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV


def stage() -> str:
    """The folder that bundles are attached to, in private mount namespaces only.

    Raises:
        UnsupportedError: the host has none of the usual empty folders.
    """
    for name in _STAGES:
        if os.path.isdir(name):
            return name
    raise UnsupportedError("no folder to attach sandboxes to", hint="make an empty folder /mnt")


class Assembly:
    """The parts of one sandbox.

    Args:
        spec: what was asked for.
        sandbox_id: its id.
        folder: its folder on disk, which exists and is empty.
        cgroup: its control group.
    """

    def __init__(self, spec: ContainerSpec, sandbox_id: str, folder: Path, cgroup: Cgroup) -> None:
        self.spec = spec
        self.id = sandbox_id
        self.ids = IdMap() if spec.userns == "require" else None
        self.resolver = host_files.Resolver("")
        self.provided: list[Provided] = []
        self.attach: list[Attach] = []
        self._folder = folder
        self._cgroup = cgroup
        self._stack = ExitStack()
        self._late_stack = ExitStack()
        self._stage = stage()
        self._binds: list[Bind] = []
        self._bundle_fd = open_bundle()
        self._late_stack.callback(os.close, self._bundle_fd)
        self.bundle = Path(f"/proc/self/fd/{self._bundle_fd}")
        self.upper, self._work = self._choose_upper()

    @property
    def hostname(self) -> str:
        """The sandbox's host name."""
        return self.spec.hostname or self.id.replace("_", "-")

    def close_mounts(self) -> None:
        """Close what only the start needs."""
        self._stack.close()

    def close(self) -> None:
        """Close everything, the bundle and a limited disk included."""
        self._stack.close()
        self._late_stack.close()

    def build(self) -> None:
        """Make everything but the processes. Raises InputError, UnsupportedError, HostError."""
        self._make_folders()
        self._add_host_files()
        self._attach(self._bundle_fd, "")
        root = self._open_root()
        self._attach(root, "root")
        self._attach_clone(agent_program(), "agent")
        for number, mount in enumerate(self.spec.mounts):
            self._add_mount(number, mount)
        self._write_config()

    def _choose_upper(self) -> tuple[Path, Path]:
        """The upper and work directories, in one folder of one file system."""
        if self.spec.upper is not None:
            return self.spec.upper, self.spec.upper.parent / f".layerkit-work-{self.id}"
        limit = self.spec.limits.disk_mb
        if limit is None:
            return self._folder / "upper", self._folder / "work"
        fd = make_disk(self._folder / "disk.img", limit)
        self._late_stack.callback(os.close, fd)
        disk = Path(f"/proc/{os.getpid()}/fd/{fd}")
        return disk / "upper", disk / "work"

    def _make_folders(self) -> None:
        (self.bundle / "root").mkdir()
        (self.bundle / "agent").touch()
        self._work.mkdir()
        if self.spec.upper is None:
            self.upper.mkdir()
            _repeat_root(self.spec.lowers[0], self.upper)

    def _add_host_files(self) -> None:
        spec = self.spec
        if spec.network == "nat":
            from layerkit.runtime.network import prepare

            self.resolver = prepare(host_files.read_resolv_conf())
        elif spec.network == "host":
            self.resolver = host_files.Resolver(host_files.read_resolv_conf())
        self._add_file("resolv.conf", self.resolver.resolv_conf, "/etc/resolv.conf")
        self._add_file("hosts", host_files.hosts_file(self.hostname), "/etc/hosts")
        self._add_file("hostname", self.hostname + "\n", "/etc/hostname")

    def _add_file(self, name: str, content: str, target: str) -> None:
        """A file that belongs to the sandbox's root, so that programs may write to it, as they do in Docker."""
        path = self.bundle / name
        path.write_text(content)
        path.chmod(0o644)
        if self.ids is not None:
            os.chown(path, self.ids.to_host(0), self.ids.to_host(0))
        self._binds.append(Bind(self._staged(name), target))

    def _staged(self, name: str) -> str:
        return f"{self._stage}/{name}" if name else self._stage

    def _attach(self, fd: int, name: str) -> None:
        self.attach.append(Attach(fd, self._staged(name)))

    def _attach_clone(self, path: Path, name: str) -> None:
        fd = syscalls.open_tree(path)
        self._stack.callback(os.close, fd)
        self._attach(fd, name)

    def _wishes(self) -> list[Wish]:
        spec = self.spec
        wishes = [Wish(path, is_dir=True) for path in ("/proc", "/dev", "/sys")]
        wishes += [Wish(bind.target, is_dir=False) for bind in self._binds]
        wishes += [Wish(mount.path, is_dir=_is_dir(mount.host)) for mount in spec.mounts]
        return wishes

    def _open_root(self) -> int:
        spec = self.spec
        layers = [*([spec.upper] if spec.upper is not None else []), *spec.lowers]
        view = MergedView(layers)
        wishes = self._wishes()
        if spec.path_additions and view.resolve("/etc/profile.d").is_dir:
            script = host_files.profile_script(spec.path_additions)
            wishes.append(Wish(host_files.PROFILE_PATH, is_dir=False, content=script))
        if spec.host_trust:
            wishes += self._trust(view)
        extra = (self.bundle if _tmpfs_is_able() else self._folder) / "extra"
        self.provided = provide(extra, view, wishes)
        lowers = [extra, *spec.lowers] if self.provided else list(spec.lowers)
        return open_root(self._stack, lowers, self.upper, self._work, self.ids)

    def _trust(self, view: MergedView) -> list[Wish]:
        """The host's CA bundle for programs that look in the usual places, and for those that follow variables."""
        bundle = host_files.host_ca_bundle()
        (self.bundle / "ca.pem").touch()
        self._binds.append(Bind(self._staged("ca.pem"), host_files.CA_INSIDE, readonly=True))
        # A bind mount in /etc would make `update-ca-certificates` fail: it renames over its bundle.
        content = bundle.read_bytes()
        first, *others = host_files.CA_BUNDLES
        places = [first, *(path for path in others if view.resolve(path).status is not None)]
        return [Wish(path, is_dir=False, content=content) for path in places]

    def _add_mount(self, number: int, mount: Mount) -> None:
        name = f"m{number}"
        is_dir = _is_dir(mount.host)
        point = self.bundle / name
        if is_dir:
            point.mkdir()
        else:
            point.touch()
        if self.ids is not None:
            self._attach(open_mapped(self._stack, mount.host, self.ids), name)
        else:
            self._attach_clone(mount.host, name)
        # Flags that the host's mount has cannot be taken off in a user namespace, only repeated.
        flags = os.statvfs(mount.host).f_flag
        readonly = mount.readonly or bool(flags & os.ST_RDONLY)
        self._binds.append(Bind(self._staged(name), mount.path, readonly, noexec=bool(flags & os.ST_NOEXEC)))

    def _write_config(self) -> None:
        layout: CgroupLayout = self._cgroup.layout
        if self.spec.host_trust:
            self._attach_clone(host_files.host_ca_bundle(), "ca.pem")
        config = oci_config(
            BundleSpec(
                root=self._staged("root"),
                agent=self._staged("agent"),
                hostname=self.hostname,
                cgroup_path=self._cgroup.oci_path,
                cgroup_version=2 if layout.mode == "v2" else 1,
                limits=self.spec.limits,
                network=self.spec.network,
                ids=self.ids,
                seccomp=self._seccomp(),
                open_files=max_open_files(),
                limit_swap=layout.accounts_swap(),
                binds=self._binds,
            )
        )
        (self.bundle / "config.json").write_text(json.dumps(config, separators=(",", ":")))

    def _seccomp(self) -> bytes | dict[str, Any]:
        machine = os.uname().machine
        if self.spec.runtime == "crun":
            return default_filter(machine, CAPABILITIES)
        return oci_seccomp(machine, CAPABILITIES)

    def command(self, program: str) -> list[str]:
        """The OCI runtime's command line, to be run by the launcher."""
        return [
            program, "--root", self._staged("state"), "run", "--detach", "--bundle", self._stage,
            "--pid-file", self._staged("pid"), "--preserve-fds", "1", self.id,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """What every command gets, before its own."""
        return {**(host_files.ca_environment() if self.spec.host_trust else {}), **self.spec.env}


def open_bundle() -> int:
    """An empty tmpfs, mounted nowhere. Raises HostError."""
    try:
        context = syscalls.fsopen("tmpfs")
        try:
            syscalls.fsconfig_string(context, "size", BUNDLE_SIZE)
            syscalls.fsconfig_string(context, "mode", "0755")
            syscalls.fsconfig_create(context)
            return syscalls.fsmount(context, _BUNDLE_ATTRIBUTES)
        finally:
            os.close(context)
    except OSError as error:
        raise HostError(f"no tmpfs for a bundle: {error.strerror}") from error


def _tmpfs_is_able() -> bool:
    """Whether a tmpfs can be idmapped (Linux 6.3) and keeps user.* xattrs (6.6)."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor.split("-")[0])) >= (6, 6)


def _is_dir(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise InputError(f"cannot be mounted: {error.strerror}", where=str(path)) from error


def _repeat_root(lower: Path, upper: Path) -> None:
    """The root folder's attributes are those of the upper directory: take them from the topmost layer."""
    status = os.stat(lower)
    os.chown(upper, status.st_uid, status.st_gid)
    upper.chmod(stat.S_IMODE(status.st_mode))
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
