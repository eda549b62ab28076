"""One instruction before it is understood: keyword, flags, arguments, heredocs, and errors at their places.

Between `parser`, which makes it, and the `read_*` modules, which turn it into nodes. One thread an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.heredoc import Heredoc
from layerkit.build.layerfile.lexer import SPACES, LogicalLine, Note
from layerkit.build.layerfile.source import Source, Span
from layerkit.build.layerfile.words import BLANKS, Flag, Word, split_blanks, split_flags, split_words
from layerkit.errors import LayerfileError


@dataclass(slots=True)
class Statement:
    """Text of an instruction cut into keyword, flags and body; `body_offset` is where the body begins in the line."""

    source: Source
    line: LogicalLine
    escape: str
    notes: list[Note]
    keyword: str = ""
    body: str = ""
    body_offset: int = 0
    last: int = 0
    flags: list[Flag] = field(default_factory=list)
    heredocs: tuple[Heredoc, ...] = ()

    @classmethod
    def cut(cls, source: Source, line: LogicalLine, escape: str, notes: list[Note]) -> Statement:
        """Find keyword, flags and body in a logical line."""
        statement = cls(source, line, escape, notes, last=line.last)
        text = line.text.rstrip(SPACES)
        start = len(text) - len(text.lstrip(SPACES))
        blank = BLANKS.search(text, start)
        statement.keyword = (text[start : blank.start()] if blank else text[start:]).upper()
        rest = blank.end() if blank else len(text)
        flags, skipped = split_flags(text[rest:])
        for offset, raw in flags:
            name, equals, value = raw[2:].partition("=")
            number, column = line.place(rest + offset)
            word = Word(value, number, column + len(name) + 3) if equals else None
            statement.flags.append(Flag(name, word, number, column))
        statement.body_offset = rest + skipped
        statement.body = text[statement.body_offset :]
        return statement

    @property
    def span(self) -> Span:
        """The instruction's lines, heredoc bodies included."""
        return Span(self.source.file, self.line.first, self.last)

    @property
    def text(self) -> str:
        """The joined line, for display."""
        return self.line.text.strip(SPACES)

    def error(self, message: str, *, offset: int = -1, width: int = 0, hint: str = "") -> LayerfileError:
        """An error at an offset of the body; without one, at the keyword."""
        if offset < 0:
            number, column = self.line.place(0)
            width = len(self.keyword)
        else:
            number, column = self.line.place(self.body_offset + offset)
        return self.source.error(message, number, column=column, width=max(width, 1), hint=hint)

    def error_at(self, word: Word | Flag, message: str, *, hint: str = "") -> LayerfileError:
        """An error at a word or flag."""
        width = len(word.raw) if isinstance(word, Word) else len(word.name) + 2
        return self.source.error(message, word.line, column=word.column, width=max(width, 1), hint=hint)

    def note(self, code: str, message: str) -> None:
        """Keep something for the author that is no error."""
        note = Note(code, self.line.first, message)
        if note not in self.notes[-2:]:
            self.notes.append(note)

    def word(self, offset: int, raw: str) -> Word:
        """A word of the body."""
        number, column = self.line.place(self.body_offset + offset)
        return Word(raw, number, column)

    def quoted_words(self) -> list[Word]:
        """The body's words; blanks inside quotes do not part them."""
        return [self.word(offset, raw) for offset, raw in split_words(self.body, self.escape)]

    def blank_words(self) -> list[Word]:
        """The body's words, parted by blanks alone."""
        return [self.word(offset, raw) for offset, raw in split_blanks(self.body)]

    def whole_body(self, what: str) -> Word:
        """The body as one word; raises LayerfileError when it is empty."""
        if not self.body:
            raise self.error(f"{self.keyword} needs {what}")
        return self.word(0, self.body)

    def json_body(self) -> tuple[str, ...] | None:
        """The body as a JSON array of texts, None when it is anything but a JSON array.

        Raises:
            LayerfileError: an array with something else than texts in it.
        """
        return self.json_array(0)

    def json_array(self, offset: int) -> tuple[str, ...] | None:
        """As `json_body`, from an offset of the body on."""
        text = self.body[offset:].strip(SPACES)
        if not text.startswith("["):
            return None
        try:
            values = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            if text[1:].lstrip(SPACES).startswith(("'", '"')):
                self.note("looks-like-json", f"the [ after {self.keyword} begins no JSON array: taken as plain text")
            return None
        for value in values:
            if not isinstance(value, str):
                raise self.error(
                    f"the JSON array after {self.keyword} may hold texts only, not {json.dumps(value)[:40]}",
                    offset=offset,
                    width=len(text),
                )
            if "\0" in value:
                raise self.error("a NUL byte in a JSON text", offset=offset, width=len(text))
        # JSON can spell half of a surrogate pair; no byte sequence stands for it.
        return tuple(value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values)

    def take_flags(self, known: Iterable[str], later: Iterable[str] = ()) -> dict[str, Word]:
        """The flags by name.

        Args:
            known: flags that take a value.
            later: flags of the Dockerfile language that layerkit does not have yet.

        Raises:
            LayerfileError: an unknown flag, one that is not supported, given twice, or without a value.
        """
        names = set(known)
        taken: dict[str, Word] = {}
        for flag in self.flags:
            if flag.name in later:
                raise self.error_at(flag, f"{self.keyword} --{flag.name} is not supported yet")
            if flag.name not in names:
                hint = did_you_mean(f"--{flag.name}", [f"--{name}" for name in sorted(names)]) or self._flag_hint(names)
                raise self.error_at(flag, f"{self.keyword} has no flag --{flag.name}", hint=hint)
            if flag.name in taken:
                raise self.error_at(flag, f"--{flag.name} is given twice")
            if flag.value is None or not flag.value.raw:
                raise self.error_at(flag, f"--{flag.name} needs a value", hint=f"write --{flag.name}=VALUE")
            taken[flag.name] = flag.value
        return taken

    def _flag_hint(self, names: set[str]) -> str:
        if not names:
            return f"{self.keyword} takes no flags"
        return f"{self.keyword} takes {', '.join(f'--{name}' for name in sorted(names))}"


def _refuse_constant(name: str) -> float:
    raise ValueError(name)
