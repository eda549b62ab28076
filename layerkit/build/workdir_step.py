"""WORKDIR: its directory is created where it is missing. `build` only; one thread."""

from __future__ import annotations

from layerkit.build.config_effect import StageState
from layerkit.build.edit import TreeEditor
from layerkit.build.knowledge import StepResult
from layerkit.build.owners import find_owner
from layerkit.build.paths import resolve
from layerkit.build.stage_files import StageFiles
from layerkit.build.step_kit import Outcome, StepKit
from layerkit.errors import InputError


def make_workdir(kit: StepKit, files: StageFiles, state: StageState) -> Outcome:
    """The stage with its WORKDIR: new folders belong to the USER, as BuildKit has it; an existing one stays (B15).

    Args:
        kit: of the build.
        files: what the stage holds.
        state: after the instruction.

    Raises:
        InputError: something else is there.
    """
    path, user = state.workdir, state.image.user

    def create() -> StepResult:
        where = resolve(files.tree, path.encode("utf-8", "surrogateescape"))
        if where.inode is not None:
            if not where.inode.is_dir:
                raise InputError(f"WORKDIR {path} is not a directory")
            return StepResult("", 0)
        uid, gid = find_owner(files.tree, user, files.read) if user else (0, 0)
        editor = TreeEditor(files.tree)
        editor.make_directories(where.parts, mode=0o755, uid=uid, gid=gid, mtime_ns=kit.options.mtime_ns)
        with kit.making(files.find_place) as making:
            return kit.keep(making, files, editor.difference())

    return kit.cached(kit.key("workdir", files.layers, path, user), create)
