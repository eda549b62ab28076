"""The typed tree of a Layerfile; imported by the front end and everything that plans or builds. Immutable values.

A `Word` is kept as written: variables are put in when the instruction is evaluated (`build.config_effect`,
`build.resolve`), because their values depend on the stages and bases before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layerkit.build.layerfile.heredoc import Heredoc
from layerkit.build.layerfile.lexer import Note
from layerkit.build.layerfile.source import Source, Span
from layerkit.build.layerfile.words import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What every instruction has: its lines, its keyword in capitals, and its joined text for display."""

    span: Span
    keyword: str
    text: str


@dataclass(frozen=True, slots=True)
class ShellForm:
    """A command line for the stage's shell, heredocs already inside it."""

    line: str


@dataclass(frozen=True, slots=True)
class ExecForm:
    """An argument vector, from a JSON array; may be empty in CMD and ENTRYPOINT."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScriptForm:
    """A heredoc that begins with `#!`: to be run as a file of its own, without the stage's shell."""

    name: str
    content: str


Command = ShellForm | ExecForm | ScriptForm


@dataclass(frozen=True, slots=True)
class Pair:
    """`key=value`, or `key value` in the old form (`legacy`)."""

    key: Word
    value: Word
    legacy: bool = False


@dataclass(frozen=True, slots=True)
class ArgItem:
    """One name of an ARG, with its default where one is given."""

    name: str
    default: Word | None
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class From(Instruction):
    image: Word
    name: str
    platform: Word | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Instruction):
    """`network` is '', none, nat or host; '' leaves the choice to the stage's setting and the build."""

    command: Command
    network: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Instruction):
    """COPY and ADD. `from_stage` holds --from as written, '' for the build context."""

    sources: tuple[Word, ...]
    files: tuple[Heredoc, ...]
    destination: Word
    from_stage: str
    chown: Word | None
    chmod: Word | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Copy):
    """As COPY, from the build context only; local tars are unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Env(Instruction):
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Instruction):
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg(Instruction):
    items: tuple[ArgItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir(Instruction):
    path: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Instruction):
    user: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell(Instruction):
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cmd(Instruction):
    command: ShellForm | ExecForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrypoint(Instruction):
    command: ShellForm | ExecForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose(Instruction):
    ports: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume(Instruction):
    paths: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignal(Instruction):
    signal: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck(Instruction):
    """`command` None is HEALTHCHECK NONE. Times in nanoseconds, 0 for the runtime's default."""

    command: ShellForm | ExecForm | None
    interval_ns: int = 0
    timeout_ns: int = 0
    start_period_ns: int = 0
    start_interval_ns: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintainer(Instruction):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(Instruction):
    """LAYER KIND NAME [VERSION] [BOUND]."""

    kind: Word
    name: Word
    version: Word | None
    bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Instruction):
    """REQUIRES, PROVIDES, CONFLICTS, PREFIX, EXPORT, MTIME and SETTING: words that `build.headers` reads."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and the instructions below it."""

    index: int
    source: From
    instructions: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        """What AS calls it, '' when it has no name."""
        return self.source.name

    @property
    def title(self) -> str:
        """How messages call it."""
        return self.name or f"stage {self.index}"


@dataclass(frozen=True, slots=True)
class Layerfile:
    """A whole file. `text` gives errors their excerpts."""

    text: Source
    escape: str
    directives: Mapping[str, str]
    global_args: tuple[Arg, ...]
    stages: tuple[Stage, ...]
    notes: tuple[Note, ...]

    @property
    def file(self) -> str:
        """The name that errors use."""
        return self.text.file
