"""From the bytes of a Layerfile to its tree: `parse_layerfile`. Pure; safe from any thread."""

from __future__ import annotations

from types import MappingProxyType

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.heredoc import Heredoc, find_heredocs
from layerkit.build.layerfile.lexer import SPACES, Lexer
from layerkit.build.layerfile.nodes import Arg, From, Instruction, Layerfile, Stage
from layerkit.build.layerfile.read_config import CONFIG_READERS
from layerkit.build.layerfile.read_layer import LAYER_READERS
from layerkit.build.layerfile.read_steps import STEP_READERS
from layerkit.build.layerfile.source import Source
from layerkit.build.layerfile.statement import Statement
from layerkit.build.layerfile.words import BLANKS
from layerkit.errors import LayerfileError

_READERS = {**STEP_READERS, **CONFIG_READERS, **LAYER_READERS}
KEYWORDS = tuple(sorted(_READERS))
_LATER = {"ONBUILD": "put the instructions into the Layerfiles that are built on this one"}
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


def parse_layerfile(data: bytes, file: str = "Layerfile") -> Layerfile:
    """Read a Layerfile or Dockerfile.

    Args:
        data: the file's bytes.
        file: its name in errors.

    Raises:
        LayerfileError: the first thing that is wrong, with file, line, excerpt and hint.
    """
    lexer = Lexer(Source(data, file))
    lexer.read_directives()
    tree = _Tree(lexer)
    previous: Statement | None = None
    while (line := lexer.next_line()) is not None:
        statement = Statement.cut(lexer.source, line, lexer.escape, lexer.notes)
        reader = _READERS.get(statement.keyword)
        if reader is None:
            raise _unknown(statement, previous)
        if statement.keyword in _WITH_HEREDOCS:
            _read_bodies(lexer, statement)
        tree.add(statement, reader(statement))
        previous = statement
    return tree.finish()


def _read_bodies(lexer: Lexer, statement: Statement) -> None:
    if "<<" not in statement.body or statement.json_body() is not None:
        return
    bodies: list[Heredoc] = []
    for mark in find_heredocs(statement.body):
        body = lexer.read_body(
            mark.name,
            strip_tabs=mark.strip_tabs,
            start=statement.line,
            offset=statement.body_offset + mark.offset,
        )
        bodies.append(Heredoc(mark.name, body, mark.strip_tabs, mark.expand))
    statement.heredocs = tuple(bodies)
    if bodies:
        statement.last = lexer.last_line


def _unknown(statement: Statement, previous: Statement | None) -> LayerfileError:
    keyword = statement.keyword
    shown = BLANKS.split(statement.text, maxsplit=1)[0][:40]
    shown = shown if shown.isprintable() else repr(shown)
    if keyword in _LATER:
        return statement.error(f"{keyword} is not supported yet", hint=_LATER[keyword])
    hint = did_you_mean(keyword[:40], (*KEYWORDS, *_LATER))
    if not hint and previous is not None and "<<" in previous.body and not previous.heredocs:
        hint = f"the << in line {previous.line.first} is no heredoc: it must begin a word, outside quotes"
    if not hint and previous is not None:
        hint = f"a line that belongs to {previous.keyword} in line {previous.line.first} needs a {statement.escape}"
        hint += " at the end of the line before it"
    return statement.error(f"unknown instruction {shown}", hint=hint)


class _Tree:
    """Collects instructions into stages."""

    def __init__(self, lexer: Lexer) -> None:
        self._lexer = lexer
        self._global_args: list[Arg] = []
        self._stages: list[Stage] = []
        self._from: From | None = None
        self._instructions: list[Instruction] = []

    def add(self, statement: Statement, node: Instruction) -> None:
        if isinstance(node, From):
            self._close()
            self._from = node
        elif self._from is not None:
            self._instructions.append(node)
        elif isinstance(node, Arg):
            self._global_args.append(node)
        else:
            raise statement.error(
                f"{node.keyword} stands before the first FROM; only ARG may",
                hint="begin with FROM scratch, a layer such as base/debian:12, or an image's name",
            )

    def _close(self) -> None:
        if self._from is not None:
            self._stages.append(Stage(len(self._stages), self._from, tuple(self._instructions)))
            self._instructions = []

    def finish(self) -> Layerfile:
        self._close()
        source = self._lexer.source
        if not self._stages:
            empty = not any(line.strip(SPACES) for line in source.lines)
            raise source.error(
                "the file is empty" if empty else "the file has no FROM",
                1,
                hint="begin with FROM scratch, a layer such as base/debian:12, or an image's name",
            )
        return Layerfile(
            source,
            self._lexer.escape,
            MappingProxyType(self._lexer.directives),
            tuple(self._global_args),
            tuple(self._stages),
            tuple(self._lexer.notes),
        )
