"""Directories that toolkits share with the stack below them keep the attributes they have there (B12).

overlayfs shows a joined directory with the attributes of its topmost part. A toolkit holds the directories above its
prefix with the attributes of the base it was built on; on another base those may differ. Then a small directory tree,
the *skeleton*, goes on top: it holds just these directories as the layers below have them. Imported by the command line
and the backends; functions over mounted layers, any thread and process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from layerkit._util.files import make_dirs, temp_name
from layerkit.runtime.stack import StackLayer

_OVERLAY_XATTRS = ("trusted.overlay.", "user.overlay.")


def shared_directories(layers: Sequence[StackLayer]) -> dict[str, Path]:
    """The directories whose attributes a toolkit would change: path in the stack to where the right ones are.

    Args:
        layers: of a stack, bottom first.
    """
    below = [layer for layer in layers if layer.config.kind != "toolkit" or layer.config.bound]
    found: dict[str, Path] = {}
    for toolkit in layers:
        if toolkit.config.kind != "toolkit" or toolkit.config.bound:
            continue
        for path in _above(toolkit.config.prefixes):
            model = next((layer.path / path for layer in reversed(below) if _is_dir(layer.path / path)), None)
            if model is not None and _attributes(model) != _attributes(toolkit.path / path):
                found[path] = model
    return found


def lowers_with_skeleton(layers: Sequence[StackLayer], home: Path) -> list[Path]:
    """The stack's lowers, topmost first, with a skeleton on top where one is needed.

    Skeletons are kept below `home` under a digest of what they hold, so that equal stacks share one.
    """
    lowers = [layer.path for layer in reversed(layers)]
    shared = shared_directories(layers)
    if not shared:
        return lowers
    # Every directory of the skeleton lies on top: also those on the way must look as they do below.
    settled = [layer for layer in layers if layer.config.kind != "toolkit" or layer.config.bound]
    models = dict(shared)
    for path in list(shared):
        for way in _above([path + "/x"]):
            model = next((layer.path / way for layer in reversed(settled) if _is_dir(layer.path / way)), None)
            if model is not None:
                models[way] = model
    key = hashlib.sha256(repr(sorted((path, _attributes(model)) for path, model in models.items())).encode())
    folder = home / "skeletons" / key.hexdigest()[:24]
    if not folder.is_dir():
        _make(folder, models)
    return [folder, *lowers]


def _above(prefixes: Sequence[str]) -> list[str]:
    paths = {""}
    for prefix in prefixes:
        parts = prefix.strip("/").split("/")
        paths.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return sorted(paths)


def _is_dir(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _attributes(path: Path) -> tuple[object, ...]:
    status = os.lstat(path)
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, tuple(sorted(_xattrs(path).items()))


def _xattrs(path: Path) -> dict[str, bytes]:
    names = [name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith(_OVERLAY_XATTRS)]
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def _make(folder: Path, models: dict[str, Path]) -> None:
    """Complete under another name first: a half-made one must never be taken for whole."""
    make_dirs(folder.parent, 0o700)
    made = temp_name(folder)
    made.mkdir()
    for path in sorted(models):
        (made / path).mkdir(parents=True, exist_ok=True)
    for path in sorted(models, reverse=True):  # children first: making one changes its parent's time
        _copy_attributes(models[path], made / path)
    try:
        made.rename(folder)
    except OSError:
        # Somebody else was first; theirs is the same.
        with suppress(FileNotFoundError):
            shutil.rmtree(made)
        if not folder.is_dir():
            raise


def _copy_attributes(model: Path, target: Path) -> None:
    status = os.lstat(model)
    os.chown(target, status.st_uid, status.st_gid)
    for name, value in _xattrs(model).items():
        os.setxattr(target, name, value)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
