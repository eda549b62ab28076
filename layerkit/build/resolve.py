"""RUN, COPY and ADD with everything put in that the stage knows: what to execute, what to copy where. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from layerkit.build.config_effect import StageState, absolute, command_argv
from layerkit.build.filemode import FileMode, parse_mode
from layerkit.build.layerfile.expand import error_at, expand, expand_heredoc
from layerkit.build.layerfile.nodes import Add, Copy, Layerfile, Run, ScriptForm
from layerkit.build.layerfile.read_steps import is_remote, refuse_remote
from layerkit.build.layerfile.words import Word
from layerkit.errors import LayerfileError

_OWNER = re.compile(r"[^:\s]+(?::[^:\s]+)?")
SCRIPT_FOLDER = "/dev/pipes"


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file whose content stands in the Layerfile."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """What a RUN executes.

    Attributes:
        argv: the command.
        script: for a heredoc with a shebang the file that argv runs: `name` is its absolute path, to be shown read-only
            with mode 0755 while the step runs, as BuildKit does. Never by standard input, from which a command in the
            script could read the rest of it away.
        env: the stage's variables, ARGs among them; proxy settings and the like are the caller's to add.
        workdir: where it starts, absolute.
        user: as USER has it, '' for root.
        network: '', none, nat or host, as the instruction asks.
    """

    argv: tuple[str, ...]
    script: InlineFile | None
    env: Mapping[str, str]
    workdir: str
    user: str
    network: str


@dataclass(frozen=True, slots=True)
class ResolvedCopy:
    """What a COPY or ADD copies.

    Attributes:
        sources: paths relative to the build context or to the root of the other stage, without a leading `/`; they
            may hold wildcards (`gomatch`); '' is the whole of it.
        files: heredocs.
        destination: absolute, in plain form.
        into_directory: whether the destination was written as a directory (`/` or `.` at its end).
        from_stage: --from as written, '' for the build context.
        owner: --chown as `user[:group]`, '' when not given.
        mode: --chmod, None when not given.
        unpack: whether local tars are unpacked (ADD).
    """

    sources: tuple[str, ...]
    files: tuple[InlineFile, ...]
    destination: str
    into_directory: bool
    from_stage: str
    owner: str
    mode: FileMode | None
    unpack: bool


def resolve_run(run: Run, state: StageState) -> ResolvedRun:
    """A RUN ready to be executed."""
    script: InlineFile | None
    if isinstance(run.command, ScriptForm):
        name = run.command.name if _is_file_name(run.command.name) else "script"
        script = InlineFile(posixpath.join(SCRIPT_FOLDER, name), run.command.content.encode())
        argv: tuple[str, ...] = (script.name,)
    else:
        script, argv = None, command_argv(state, run.command)
    return ResolvedRun(argv, script, dict(state.variables), state.workdir, state.image.user, run.network)


def resolve_copy(layerfile: Layerfile, copy: Copy, state: StageState) -> ResolvedCopy:
    """A COPY or ADD ready to be carried out; raises LayerfileError."""

    def value(word: Word) -> str:
        return expand(layerfile, word, state.variables)

    sources = tuple(_source(layerfile, copy, word, value(word)) for word in copy.sources)
    files = tuple(
        InlineFile(_file_name(layerfile, copy, heredoc.name), expand_heredoc(layerfile, copy, heredoc, state.variables))
        for heredoc in copy.files
    )
    destination = value(copy.destination)
    return ResolvedCopy(
        sources=sources,
        files=files,
        destination=absolute(state.workdir, destination),
        into_directory=destination in ("", ".", "..") or destination.endswith(("/", "/.", "/..")),
        from_stage=copy.from_stage,
        owner=_owner(layerfile, copy.chown, value(copy.chown)) if copy.chown else "",
        mode=_mode(layerfile, copy.chmod, value(copy.chmod)) if copy.chmod else None,
        unpack=isinstance(copy, Add),
    )


def _source(layerfile: Layerfile, copy: Copy, word: Word, path: str) -> str:
    def fail(word: Word, message: str, *, hint: str = "") -> LayerfileError:
        return error_at(layerfile, word, message, hint=hint)

    if is_remote(path):
        if isinstance(copy, Add):
            raise refuse_remote(fail, word)
        raise fail(word, "COPY copies files, not URLs", hint="fetch it in a RUN")
    # Like BuildKit: an absolute source and one that climbs out both begin at the root of what is copied from.
    return absolute("/", path)[1:]


def _file_name(layerfile: Layerfile, copy: Copy, name: str) -> str:
    if not _is_file_name(name):
        raise layerfile.text.error(
            f"the heredoc's name {name!r} cannot name a file", copy.span.first, hint="give it a name without /"
        )
    return name


def _is_file_name(name: str) -> bool:
    return "/" not in name and name not in (".", "..") and len(name.encode()) <= 255


def _owner(layerfile: Layerfile, word: Word, text: str) -> str:
    if text and not _OWNER.fullmatch(text):
        raise error_at(layerfile, word, f"not an owner: {text[:60]!r}", hint="write USER, UID, USER:GROUP or UID:GID")
    return text


def _mode(layerfile: Layerfile, word: Word, text: str) -> FileMode:
    try:
        return parse_mode(text)
    except ValueError as error:
        raise error_at(
            layerfile, word, str(error), hint="write for example --chmod=0755 or --chmod=u=rwX,go=rX"
        ) from error
