"""A layerkit of its own for tests of the compiler: store, home, build context, and executors that really change files.

`UpperExecutor` lets a script write an overlay's upper directory by hand; `OverlayExecutor` mounts a real overlay over
the layers and lets the script work in it (privileged).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from layerkit.build.compile import BuildOptions, BuildResult, Compiler
from layerkit.build.emitter import BuiltLayer, EmissionOptions
from layerkit.build.events import Event, StepDone
from layerkit.build.executor import Executor, Output, RunRequest
from layerkit.build.import_layer import import_layer
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.layerfile.parser import parse_layerfile
from layerkit.build.stage_files import StageFiles
from layerkit.build.stages import plan_build
from layerkit.build.step_kit import StepOptions
from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.ids import Platform, Ref
from layerkit.layer.tree import Content, Inode, find, new_directory, walk
from layerkit.store.params import StoreParams
from layerkit.store.store import open_store

HOST = Platform("linux", "amd64")
SMALL = StoreParams(frame_size=64 << 10, pack_size=1 << 20)
TIME_NS = 1_600_000_000 * 10**9
Script = Callable[[Path], object]
libc = ctypes.CDLL(None, use_errno=True)


class Bench:
    """Everything that a build needs, below one folder."""

    def __init__(self, folder: Path, *, params: StoreParams = SMALL) -> None:
        self.folder = folder
        self.context = folder / "context"
        self.context.mkdir(parents=True, exist_ok=True)
        self.store = open_store(str(folder / "store"), create=True, params=params, home=folder / "home")
        self.knowledge = BuildKnowledge(folder / "home", self.store)
        self.events: list[Event] = []

    def files(self, **files: str | bytes) -> None:
        """Write files of the context; `__` in a name stands for a slash, and every time is the same."""
        for name, data in files.items():
            self.file(name.replace("__", "/"), data)

    def file(self, name: str, data: str | bytes, mode: int = 0o644) -> Path:
        path = self.context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        path.chmod(mode)
        self.settle()
        return path

    def settle(self) -> None:
        """Give everything in the context one time."""
        for path, _, names in os.walk(self.context, topdown=False):
            for name in (*names, "."):
                os.utime(os.path.join(path, name), ns=(TIME_NS, TIME_NS), follow_symlinks=False)

    def build(
        self,
        text: str,
        *,
        tag: str | None = None,
        executor: Executor | None = None,
        args: Mapping[str, str] | None = None,
        target: str = "",
        emit_all: bool = False,
        epoch: int | None = None,
        use_cache: bool = True,
        drop_outside: bool = False,
        platform: Platform = HOST,
        env: dict[str, str] | None = None,
    ) -> BuildResult:
        layerfile = parse_layerfile(text.encode(), "Layerfile")
        plan = plan_build(
            layerfile, build_args=args, target=target, platform=platform, build_platform=HOST, emit_all=emit_all
        )
        steps = StepOptions(platform, (epoch or 0) * 10**9, extra_env=env, use_cache=use_cache)
        emission = EmissionOptions(Ref.parse(tag) if tag else None, epoch, drop_outside)
        compiler = Compiler(
            self.store, self.knowledge, layerfile=layerfile, context=self.context,
            layerfile_path=self.context / "Layerfile", executor=executor,
            options=BuildOptions(steps, emission), report=self.events.append,
        )  # fmt: skip
        return compiler.run(plan)

    def one(self, text: str, *, tag: str | None = "workspace/w", executor: Executor | None = None) -> BuiltLayer:
        """The target's layer."""
        return self.build(text, tag=tag, executor=executor).layers[-1]

    def base(self, root: Path, ref: str = "base/b:1", platform: Platform = HOST) -> str:
        """Import a folder; its digest."""
        parsed = Ref.parse(ref)
        made = import_layer(self.store, self.knowledge, root, parsed, platform)
        self.store.local_refs.set(parsed, platform, made.digest)
        return made.digest

    def layer(self, digest: str) -> StoredLayer:
        return StoredLayers(self.store).get(digest)

    def stack(self, digest: str) -> StageFiles:
        """The layer on those that it stands on."""
        library = StoredLayers(self.store)
        return StageFiles(library, library.stack_of(digest))

    def cached(self) -> list[bool]:
        """Of each step that ran since the last call whether it came from the cache."""
        found = [event.cached for event in self.events if isinstance(event, StepDone)]
        self.events.clear()
        return found


def paths(root: Inode) -> list[str]:
    """Every path of a tree but its root."""
    return sorted(os.fsdecode(path) for path, _ in walk(root) if path)


def at(root: Inode, path: str) -> Inode:
    inode = find(root, os.fsencode(path))
    assert inode is not None, f"{path} is not there"
    return inode


def access(root: Inode, path: str) -> tuple[int, int, int]:
    """Permission bits, uid, gid."""
    inode = at(root, path)
    return stat.S_IMODE(inode.mode), inode.uid, inode.gid


def content(files: StageFiles, path: str) -> bytes:
    body = at(files.tree, path).body
    assert isinstance(body, Content | bytes)
    return files.read(body)


def make_root(folder: Path, **files: str | bytes) -> Path:
    """A small root file system; all times are the same."""
    for name in ("etc", "usr/bin", "usr/lib", "var/lib", "tmp", "opt"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\napp:x:1001:\nstaff:x:50:\n")
    (folder / "bin").symlink_to("usr/bin")
    for name, data in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    set_times(folder)
    return folder


def set_times(folder: Path, time_ns: int = TIME_NS) -> None:
    for path, folders, names in os.walk(folder, topdown=False):
        for name in (*names, *folders, "."):
            os.utime(os.path.join(path, name), ns=(time_ns, time_ns), follow_symlinks=False)


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    exit_code: int
    signal: int | None
    upper: Path
    oom_killed: bool = False


@dataclass
class UpperExecutor:
    """Scripts by the command's line; each gets the upper directory.

    Attributes:
        requests: what was asked for, in order.
        code: how commands end.
    """

    scripts: dict[str, Script]
    requests: list[RunRequest] = field(default_factory=list)
    code: int = 0

    @contextmanager
    def run(self, request: RunRequest, output: Output) -> Iterator[Outcome]:
        self.requests.append(request)
        line = request.argv[-1]
        with tempfile.TemporaryDirectory(prefix="layerkit-upper-") as folder:
            upper = Path(folder) / "upper"
            upper.mkdir()
            upper.chmod(0o755)
            output("stdout", f"ran {line}\n".encode())
            if self.code:
                output("stderr", b"it went wrong\n")
            self.scripts[line](upper)
            yield Outcome(self.code, None, upper)


@dataclass
class OverlayExecutor:
    """Mounts a real overlay on the layers, extracted to a folder; scripts work in the mounted tree."""

    bench: Bench
    scripts: Mapping[str, Script]
    runs: int = 0

    @contextmanager
    def run(self, request: RunRequest, output: Output) -> Iterator[Outcome]:
        self.runs += 1
        files = StageFiles(StoredLayers(self.bench.store), (*request.layers, *request.toolkits))
        with tempfile.TemporaryDirectory(prefix="layerkit-overlay-") as folder:
            lower, upper, work, target = (Path(folder) / name for name in ("lower", "upper", "work", "merged"))
            for path in (lower, upper, work, target):
                path.mkdir()
            extract(files, lower)
            shutil.copystat(lower, upper)
            os.chown(upper, lower.stat().st_uid, lower.stat().st_gid)
            options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off,metacopy=off,index=off"
            _call("mount", b"overlay", bytes(target), b"overlay", 0, options.encode())
            try:
                self.scripts[request.argv[-1]](target)
            finally:
                _call("umount2", bytes(target), 0)
            yield Outcome(0, None, upper)


def _call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def extract(files: StageFiles, target: Path) -> None:
    """Write a merged tree to an empty folder, as root with every attribute but xattrs of overlays."""
    made: dict[int, bytes] = {}
    folders = []
    for path, inode in walk(files.tree):
        where = os.path.join(os.fsencode(target), path)
        if id(inode) in made and not inode.is_dir:
            os.link(made[id(inode)], where, follow_symlinks=False)
            continue
        made[id(inode)] = where
        if inode.is_dir:
            if path:
                os.mkdir(where)
            folders.append((where, inode))
        elif inode.is_symlink:
            assert isinstance(inode.body, bytes)
            os.symlink(inode.body, where)
        elif inode.is_regular:
            assert isinstance(inode.body, Content | bytes)
            Path(os.fsdecode(where)).write_bytes(files.read(inode.body))
        else:
            os.mknod(where, inode.mode, inode.rdev)
        if not inode.is_dir:
            set_attributes(where, inode)
    for where, inode in reversed(folders):
        set_attributes(where, inode)


def set_attributes(where: bytes, inode: Inode) -> None:
    if os.geteuid() == 0:
        os.lchown(where, inode.uid, inode.gid)
    if not inode.is_symlink:
        os.chmod(where, stat.S_IMODE(inode.mode))
    for name, value in inode.xattrs.items():
        os.setxattr(where, name, value, follow_symlinks=False)
    os.utime(where, ns=(inode.mtime_ns, inode.mtime_ns), follow_symlinks=False)


def write(upper: Path, name: str, data: str | bytes = "x", mode: int = 0o644) -> None:
    """A file at a fixed time, its folders made where they are missing."""
    path = upper / name
    for parent in [*reversed(path.relative_to(upper).parents)][1:]:
        if not (upper / parent).exists():
            (upper / parent).mkdir()
            (upper / parent).chmod(0o755)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)
    os.utime(path, ns=(TIME_NS, TIME_NS))
    for parent in [*path.relative_to(upper).parents][:-1]:
        os.utime(upper / parent, ns=(TIME_NS, TIME_NS))


def whiteout(upper: Path, name: str) -> None:
    """What overlayfs leaves of a deleted name."""
    path = upper / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, 0)
    os.utime(path.parent, ns=(TIME_NS, TIME_NS))


def tree_of(**files: bytes) -> Inode:
    """A tree of small files, folders by `__` in their names."""
    root = new_directory()
    for name, data in files.items():
        here = root
        *folders, last = name.encode().split(b"__")
        for folder in folders:
            here = here.entries.setdefault(folder, new_directory())
        here.entries[last] = Inode(stat.S_IFREG | 0o644, body=data)
    return root
