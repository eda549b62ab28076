"""`layerkit doctor`: what this host can do, what it lacks, what to install. Works for any user; imported by the CLI.

Single-threaded callers only: some probes fork.
"""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerkit import settings
from layerkit._util.process import find_program, run_program
from layerkit.errors import LayerkitError
from layerkit.fuse import kernel_probes, probes
from layerkit.fuse.kvm_probe import kvm_problem

HOST_PACKAGES = ("pyfuse3", "trio", "aiohttp", "prometheus_client")
_MIN_FILES = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """One finding.

    Attributes:
        name: stable, kebab-case.
        ok: whether the host can do it.
        detail: what was found.
        fix: what to do where it cannot; '' when it can.
        needed_for: what does not work without it.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed_for: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    problem: Callable[[], str]
    fix: str
    needed_for: str
    good: Callable[[], str] = lambda: "works"


def run_doctor() -> list[Probe]:
    """Every probe, in the order in which one would mend."""
    return [_run(check) for check in (*_kernel_checks(), *_process_checks(), *_program_checks())]


def _run(check: _Check) -> Probe:
    try:
        problem = check.problem()
        detail = problem or check.good()
    except (OSError, LayerkitError, ValueError) as error:
        problem = detail = f"{type(error).__name__}: {error}"
    return Probe(check.name, not problem, detail, check.fix if problem else "", check.needed_for)


def _needs_root(problem: Callable[[], str]) -> Callable[[], str]:
    def checked() -> str:
        return problem() if probes.has_capability(probes.CAP_SYS_ADMIN) else "needs CAP_SYS_ADMIN to be tried"

    return checked


def _kernel_checks() -> list[_Check]:
    mounts = "lazy mounts"
    newer = "use a kernel of 6.12 or newer"
    return [
        _Check("kernel", _kernel_problem, "use a kernel of 5.15 or newer; 6.14 for everything", "everything",
               lambda: os.uname().release),
        _Check("cap-sys-admin", _capability_problem, "run as root, or in a container that may mount", mounts),
        _Check("erofs", _erofs_problem, "load the module: modprobe erofs", mounts, lambda: "in /proc/filesystems"),
        _Check("erofs-from-files", _needs_root(lambda: probes.erofs_problem(loop=False)), newer, mounts),
        _Check("erofs-by-loop", _needs_root(lambda: probes.erofs_problem(loop=True)),
               "load the modules loop and erofs, and let /dev/loop* be used", "lazy mounts on kernels before 6.12"),
        _Check("short-reads", _needs_root(probes.short_read_problem), newer + "; until then loop devices are used",
               "file-backed mounts"),
        _Check("fuse", probes.fuse_problem, "load the module fuse, install layerkit[host]", "the fuse frontend"),
        _Check("overlay", _needs_root(kernel_probes.overlay_problem),
               "load the module overlay; keep LAYERKIT_HOME off overlay and NFS", "stacks"),
        _Check("overlay-lowers", _needs_root(kernel_probes.many_lowers_problem), "use a kernel of 6.7 or newer",
               "stacks of more than about 200 layers"),
        _Check("user-namespaces", kernel_probes.user_namespace_problem,
               "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone", "sandboxes with userns=require"),
        _Check("idmapped-mounts", _needs_root(kernel_probes.idmapped_mount_problem), "use a kernel of 5.19 or newer",
               "sandboxes with userns=require"),
        _Check("fanotify-pre-content", _needs_root(_fanotify_problem),
               "use a kernel of 6.14 or newer and keep LAYERKIT_HOME on ext4, xfs or btrfs", "the fanotify frontend"),
        _Check("kvm", kvm_problem, "virtual machines run emulated (TCG), slower", "fast virtual machines",
               lambda: "a virtual CPU runs; whether a guest kernel does shows its first boot"),
    ]  # fmt: skip


def _process_checks() -> list[_Check]:
    return [
        _Check("cgroups", _cgroup_problem, "mount cgroup2 at /sys/fs/cgroup", "limits of sandboxes",
               kernel_probes.cgroup_mode),
        _Check("open-files", _files_problem, "raise the hard limit of open files (ulimit -Hn)", "many sandboxes",
               lambda: str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        _Check("home", lambda: _folder_problem(settings.home_dir()),
               "make LAYERKIT_HOME a folder that this user may write", "everything", lambda: str(settings.home_dir())),
        _Check("run", lambda: _folder_problem(settings.run_dir()),
               "make LAYERKIT_RUN a folder that this user may write", "mounts and sandboxes",
               lambda: str(settings.run_dir())),
        _Check("python-packages", _packages_problem, "install layerkit[host]", "mounts and sandboxes",
               lambda: ", ".join(HOST_PACKAGES)),
    ]  # fmt: skip


def _program_checks() -> list[_Check]:
    rows = (
        (("crun", "runc"), "crun", "sandboxes"),
        (("nft",), "nftables", "network=nat"),
        (("ip",), "iproute2", "network=nat"),
        (("mkfs.erofs",), "erofs-utils", "tests, export --format erofs"),
        (("skopeo",), "skopeo", "imports from registries"),
        (("qemu-system-x86_64", "qemu-system-aarch64"), "qemu-system", "virtual machines"),
    )
    return [
        _Check(
            names[0], lambda names=names: _program_problem(names), f"install the package {package}", needed_for,  # type: ignore[misc]
            lambda names=names: _program_detail(names),  # type: ignore[misc]
        )
        for names, package, needed_for in rows
    ]  # fmt: skip


def _kernel_problem() -> str:
    return "" if probes.kernel_version() >= (5, 15) else f"{os.uname().release} is older than 5.15"


def _capability_problem() -> str:
    return "" if probes.has_capability(probes.CAP_SYS_ADMIN) else "this process may not mount"


def _erofs_problem() -> str:
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    return "" if "erofs" in known else "not in /proc/filesystems (a module may still be loaded when it is needed)"


def _fanotify_problem() -> str:
    return kernel_probes.fanotify_problem(_existing(settings.home_dir()))


def _cgroup_problem() -> str:
    return "no cgroups are mounted" if kernel_probes.cgroup_mode() == "none" else ""


def _files_problem() -> str:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"at most {hard}" if hard != resource.RLIM_INFINITY and hard < _MIN_FILES else ""


def _existing(folder: Path) -> Path:
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _folder_problem(folder: Path) -> str:
    there = _existing(folder)
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written by uid {os.geteuid()}"


def _packages_problem() -> str:
    missing = [name for name in HOST_PACKAGES if importlib.util.find_spec(name) is None]
    return f"missing: {', '.join(missing)}" if missing else ""


def _program_problem(names: tuple[str, ...]) -> str:
    return "" if any(find_program(name) for name in names) else f"no {' or '.join(names)}"


def _program_detail(names: tuple[str, ...]) -> str:
    path = next(found for name in names if (found := find_program(name)))
    done = run_program([path, "-V" if path.endswith("/ip") else "--version"], check=False, timeout_s=10.0)
    lines = (done.stdout or done.stderr).decode("utf-8", "replace").splitlines()
    return f"{path}: {lines[0].strip()}" if lines else path


def frontend_choice() -> dict[str, str]:
    """For each frontend '' when it is used here, else why not; what `auto` chooses from."""
    support = probes.frontend_support()
    return {
        "local": support.local_problem,
        "fuse": support.fuse_problem,
        "fanotify": "not available in this version",
    }
