"""Physical lines to logical ones: directives, comments, continuations, heredoc bodies. Pure; one thread an object.

The rules are those of BuildKit's parser (frontend/dockerfile/parser): a line goes on in the next one when it ends in
a single escape character and blanks; comment lines and blank lines inside are skipped; directives stand at the top.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.source import Source

# What Go's unicode.IsSpace accepts; Python's str.isspace also takes the four ASCII separators.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
DIRECTIVES = ("syntax", "escape", "check")
_DIRECTIVE = re.compile(r"#[\t ]*([A-Za-z][A-Za-z0-9]*)[\t ]*=[\t ]*(.*)")
_FRONTEND = re.compile(r"(?:docker\.io/)?docker/dockerfile(?:-upstream)?(?:[:@].*)?")


@dataclass(frozen=True, slots=True)
class Note:
    """Something an author should know that does not stop the build."""

    code: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class LogicalLine:
    """An instruction's text, joined from the lines `first` to `last`.

    `pieces` holds, in order, (offset in `text`, line, column) of each physical line's part.
    """

    text: str
    first: int
    last: int
    pieces: tuple[tuple[int, int, int], ...]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character of `text`; an offset past the end means the last line's end."""
        index = bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1
        start, line, column = self.pieces[max(index, 0)]
        return line, column + offset - start


@dataclass(slots=True)
class Lexer:
    """Reads one source from top to bottom: `read_directives` once, then `next_line` and `read_body` in turns."""

    source: Source
    escape: str = "\\"
    directives: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _position: int = 0

    def read_directives(self) -> None:
        """Take `# key=value` lines from the top until something else comes.

        Raises:
            LayerfileError: a directive given twice, an escape character that is neither \\ nor `, a foreign syntax.
        """
        for number, line in enumerate(self.source.lines, 1):
            match = _DIRECTIVE.fullmatch(line.strip(SPACES))
            if not match or match[1].lower() not in DIRECTIVES or not match[2]:
                return
            name, value = match[1].lower(), match[2].strip(SPACES)
            if name in self.directives:
                raise self.source.error(f"the directive {name} is given twice", number)
            self.directives[name] = value
            self._check_directive(name, value, number)

    def _check_directive(self, name: str, value: str, number: int) -> None:
        if name == "escape":
            if value not in ("\\", "`"):
                raise self.source.error(
                    f"escape must be \\ or `, not {value!r}", number, hint="write # escape=` or leave the line out"
                )
            self.escape = value
        elif name == "syntax":
            if not _FRONTEND.fullmatch(value):
                raise self.source.error(
                    f"the syntax {value!r} is a foreign front end, which layerkit does not run",
                    number,
                    hint="remove the line if the file is an ordinary Dockerfile",
                )
            self.notes.append(Note("syntax-ignored", number, f"layerkit reads {value} files itself"))

    def next_line(self) -> LogicalLine | None:
        """The next logical line with any text in it, or None at the end of the file."""
        while (first := self._skip_blank()) is not None:
            line = self._join(first)
            if line.text.strip(SPACES):
                return line
        return None

    def _skip_blank(self) -> int | None:
        lines = self.source.lines
        while self._position < len(lines):
            text = lines[self._position].lstrip(SPACES)
            if text and not text.startswith("#"):
                return self._position
            self._position += 1
        return None

    def _join(self, index: int) -> LogicalLine:
        lines = self.source.lines
        first = lines[index]
        text = first.lstrip(SPACES)
        column = len(first) - len(text) + 1
        parts: list[str] = []
        pieces: list[tuple[int, int, int]] = []
        size = 0
        while True:
            body, goes_on = self._cut_continuation(text)
            parts.append(body)
            pieces.append((size, index + 1, column))
            size += len(body)
            last, index = index, index + 1
            index, blank = self._next_continued(index) if goes_on else (index, 0)
            if blank:
                self.notes.append(Note("empty-continuation", blank, "an empty line inside an instruction"))
            if not goes_on or index >= len(lines):
                break
            text, column = lines[index], 1
        self._position = index
        return LogicalLine("".join(parts), pieces[0][1], last + 1, tuple(pieces))

    def _next_continued(self, index: int) -> tuple[int, int]:
        """Index of the line that continues, past comments and blank lines, and the number of a blank one or 0."""
        blank = 0
        lines = self.source.lines
        while index < len(lines):
            text = lines[index].lstrip(SPACES)
            if text and not text.startswith("#"):
                return index, blank
            if not text and index + 1 < len(lines):
                blank = index + 1
            index += 1
        return index, 0

    def _cut_continuation(self, text: str) -> tuple[str, bool]:
        bare = text.rstrip("\t ")
        if bare.endswith(self.escape) and not bare[:-1].endswith(self.escape):
            return bare[:-1], True
        return text, False

    def read_body(self, name: str, *, strip_tabs: bool, start: LogicalLine, offset: int) -> str:
        """The lines up to the one that is `name`, each with a line feed; with strip_tabs tabs before the name go.

        Raises:
            LayerfileError: the file ends first.
        """
        lines = self.source.lines
        for index in range(self._position, len(lines)):
            text = lines[index].lstrip("\t") if strip_tabs else lines[index]
            if text == name:
                body = lines[self._position : index]
                self._position = index + 1
                return "".join(f"{line}\n" for line in body)
        number, column = start.place(offset)
        raise self.source.error(
            f"the heredoc {name!r} is not closed", number, column=column, width=len(name) + 2, hint=self._lost(name)
        )

    def _lost(self, name: str) -> str:
        """A hint for a missing end: a line that nearly is the delimiter, or the rule."""
        for number, line in enumerate(self.source.lines[self._position :], self._position + 1):
            if line.strip(SPACES) == name:
                return f"line {number} has blanks around {name}; it must stand alone (or behind tabs with <<-)"
        near = did_you_mean(name, {line.strip(SPACES)[:80] for line in self.source.lines[self._position :][:1000]})
        return near or f"end it with a line that holds only {name}; a << that is no heredoc must be quoted"

    @property
    def last_line(self) -> int:
        """Number of the last line taken so far."""
        return self._position
