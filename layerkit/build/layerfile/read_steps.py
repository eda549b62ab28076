"""FROM, RUN, COPY and ADD: what changes the file system. Pure functions from statements to nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from layerkit.build.layerfile.heredoc import Heredoc, find_heredocs, parse_mark
from layerkit.build.layerfile.nodes import Add, Command, Copy, ExecForm, From, Instruction, Run, ScriptForm, ShellForm
from layerkit.build.layerfile.statement import Statement
from layerkit.build.layerfile.words import Word, split_blanks
from layerkit.errors import LayerfileError

_STAGE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_REMOTE = re.compile(r"(?:https?|ftps?|git|ssh|s3)://|git@[\w.-]+:", re.IGNORECASE)
NETWORKS = {"default": "nat", "none": "none", "host": "host"}


def read_from(statement: Statement) -> From:
    """FROM [--platform=P] IMAGE [AS NAME]."""
    flags = statement.take_flags(["platform"])
    words = statement.blank_words()
    if not words:
        raise statement.error("FROM needs a base", hint="for example FROM base/debian:12 or FROM scratch")
    name = ""
    if len(words) == 3 and words[1].raw.lower() == "as":
        name = words[2].raw.lower()
        if not _STAGE_NAME.fullmatch(name):
            raise statement.error_at(
                words[2],
                f"{words[2].raw!r} cannot name a stage",
                hint="a stage's name begins with a letter and holds letters, digits and - _ .",
            )
        if name == "scratch":
            raise statement.error_at(words[2], "scratch is the empty base and cannot name a stage")
    elif len(words) != 1:
        raise statement.error_at(words[1], "FROM takes one base, or BASE AS NAME")
    return From(
        span=statement.span,
        keyword="FROM",
        text=statement.text,
        image=words[0],
        name=name,
        platform=flags.get("platform"),
    )


def read_run(statement: Statement) -> Run:
    """RUN in shell, exec and heredoc form."""
    flags = statement.take_flags(["network"], later=["mount", "security", "device"])
    network = flags.get("network")
    if network is not None and network.raw not in NETWORKS:
        raise statement.error_at(
            network, f"{network.raw!r} is no network of RUN", hint="write --network=default, none or host"
        )
    return Run(
        span=statement.span,
        keyword="RUN",
        text=statement.text,
        command=_run_command(statement),
        network=NETWORKS[network.raw] if network else "",
    )


def _run_command(statement: Statement) -> Command:
    argv = statement.json_body()
    if argv is not None:
        if not argv or not argv[0]:
            raise statement.error("RUN needs a command", offset=0, width=len(statement.body))
        return ExecForm(argv)
    if not statement.body:
        raise statement.error("RUN needs a command")
    if not statement.heredocs:
        return ShellForm(statement.body)
    marks = find_heredocs(statement.body)
    only = marks[0]
    if len(marks) == 1 and only.whole and only.offset == 0 and only.end == len(statement.body):
        # As BuildKit: the body is the script, whatever the delimiter's quotes say, and a shebang chooses who runs it.
        content = statement.heredocs[0].content
        return ScriptForm(only.name, content) if content.startswith("#!") else ShellForm(content)
    parts = [statement.body]
    for heredoc in statement.heredocs:
        parts.append(f"\n{heredoc.body}{heredoc.name}")
    return ShellForm("".join(parts))


def read_copy(statement: Statement) -> Copy:
    """COPY [--from=…] [--chown=…] [--chmod=…] SOURCE… DESTINATION, also as JSON and with heredoc sources."""
    flags = statement.take_flags(["from", "chown", "chmod"], later=["link", "parents", "exclude"])
    origin = flags.get("from")
    if origin is not None and "$" in origin.raw:
        raise statement.error_at(
            origin,
            "--from takes no variables",
            hint="give the source a stage: FROM $IMAGE AS name, then COPY --from=name",
        )
    sources, files, destination = _sources_and_destination(statement)
    for source in sources:
        if is_remote(source.raw):
            raise statement.error_at(source, "COPY copies files, not URLs", hint="fetch it in a RUN")
    return Copy(
        span=statement.span,
        keyword="COPY",
        text=statement.text,
        sources=sources,
        files=files,
        destination=destination,
        from_stage=origin.raw if origin else "",
        chown=flags.get("chown"),
        chmod=flags.get("chmod"),
    )


def read_add(statement: Statement) -> Add:
    """ADD [--chown=…] [--chmod=…] SOURCE… DESTINATION; local tars only."""
    later = ["link", "exclude", "keep-git-dir", "checksum", "unpack"]
    flags = statement.take_flags(["chown", "chmod"], later=later)
    sources, files, destination = _sources_and_destination(statement)
    for source in sources:
        if is_remote(source.raw):
            raise refuse_remote(statement.error_at, source)
    return Add(
        span=statement.span,
        keyword="ADD",
        text=statement.text,
        sources=sources,
        files=files,
        destination=destination,
        from_stage="",
        chown=flags.get("chown"),
        chmod=flags.get("chmod"),
    )


def is_remote(source: str) -> bool:
    """Whether a source is a URL or git repository rather than a path of the build context."""
    return bool(_REMOTE.match(source))


def refuse_remote(error_at: Callable[..., LayerfileError], source: Word) -> LayerfileError:
    """The error for a URL in ADD."""
    return error_at(
        source,
        "ADD from URLs and git repositories is not supported yet",
        hint="fetch it in a RUN, or put the file into the build context",
    )


def _sources_and_destination(statement: Statement) -> tuple[tuple[Word, ...], tuple[Heredoc, ...], Word]:
    array = statement.json_body()
    if array is not None:
        words = [statement.word(0, text) for text in array]
        spots = 0
    else:
        words, spots = _paths_beside_heredocs(statement)
    if len(words) + spots < 2:
        raise statement.error(f"{statement.keyword} needs at least a source and a destination")
    *sources, destination = words
    if not destination.raw:
        raise statement.error_at(destination, "the destination is empty")
    return tuple(sources), statement.heredocs, destination


def _paths_beside_heredocs(statement: Statement) -> tuple[list[Word], int]:
    """The words that are paths, and the number of heredocs; the last word of all must be a path."""
    marks = find_heredocs(statement.body) if statement.heredocs else []
    words: list[Word] = []
    last_is_path = True
    index = 0
    for offset, raw in split_blanks(statement.body):
        while index < len(marks) and marks[index].end <= offset:
            index += 1
        last_is_path = index == len(marks) or offset < marks[index].offset
        if not last_is_path:
            if not marks[index].whole:
                raise statement.error("a heredoc's name ends at the blank behind it", offset=offset, width=len(raw))
            continue
        if parse_mark(raw):
            hint = "check the quotes in this line"
            raise statement.error(f"the heredoc {raw} cannot be read", offset=offset, width=len(raw), hint=hint)
        words.append(statement.word(offset, raw))
    if not last_is_path:
        raise statement.error(f"{statement.keyword} cannot have a heredoc as its destination")
    return words, len(marks)


STEP_READERS: Mapping[str, Callable[[Statement], Instruction]] = {
    "FROM": read_from,
    "RUN": read_run,
    "COPY": read_copy,
    "ADD": read_add,
}
