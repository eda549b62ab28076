"""The text of a Layerfile and errors that point into it; imported by the front end and the planner. Immutable.

Lines and columns count from 1, columns in characters. A carriage return before a line feed belongs to the line's
end and is dropped everywhere, heredoc bodies included: a checkout with CRLF builds what the one with LF builds.
"""

from __future__ import annotations

from dataclasses import dataclass

from layerkit.errors import LayerfileError

MAX_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_EXCERPT_WIDTH = 110
_CARET_MAX = 60


@dataclass(frozen=True, slots=True)
class Span:
    """The lines `first` to `last` of a file."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.first}"


class Source:
    """The lines of one file, decoded."""

    __slots__ = ("file", "lines")

    def __init__(self, data: bytes, file: str) -> None:
        """Decode `data`; `file` is how errors name it.

        Raises:
            LayerfileError: larger than MAX_BYTES, not UTF-8, or a NUL byte, with the line where.
        """
        self.file = file
        self.lines: list[str] = []
        if len(data) > MAX_BYTES:
            raise LayerfileError(f"the file has more than {MAX_BYTES} bytes", where=file)
        if data.startswith(_BOM):
            data = data[len(_BOM) :]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._undecodable(data, error.start) from error
        self.lines = [line.rstrip("\r") for line in text.split("\n")]
        if "\0" in text:
            line = text[: text.index("\0")].count("\n") + 1
            raise self.error("a NUL byte in the text", line, column=self.lines[line - 1].index("\0") + 1)

    def _undecodable(self, data: bytes, at: int) -> LayerfileError:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        line = data.count(b"\n", 0, at) + 1
        self.lines = [""] * (line - 1) + [data[start : end if end >= 0 else len(data)].decode("utf-8", "replace")]
        column = len(data[start:at].decode("utf-8", "replace")) + 1
        hint = "save the file as UTF-8"
        return self.error(f"byte 0x{data[at]:02x} is not UTF-8", line, column=column, hint=hint)

    def error(self, message: str, line: int, *, column: int = 0, width: int = 1, hint: str = "") -> LayerfileError:
        """An error at a line, its caret below `width` characters from `column`; column 0 marks the whole line."""
        where = f"{self.file}:{line}"
        return LayerfileError(message, where=where, hint=hint, excerpt=self.excerpt(line, column, width))

    def excerpt(self, line: int, column: int = 0, width: int = 1) -> str:
        """The line with its number and a caret line; a long line is cut around the place."""
        if not 1 <= line <= len(self.lines):
            return ""
        text = self.lines[line - 1]
        if not column:
            column = len(text) - len(text.lstrip()) + 1
            width = len(text.strip())
        start = max(0, column - 1 - _EXCERPT_WIDTH // 2) if len(text) > _EXCERPT_WIDTH else 0
        shown = text[start : start + _EXCERPT_WIDTH]
        # A tab stays a tab in the caret line, so that the caret stands below its character whatever the tab width.
        lead = "".join("\t" if char == "\t" else " " for char in shown[: column - 1 - start])
        carets = "^" * max(1, min(width, _CARET_MAX, len(shown) - (column - 1 - start)))
        number = f"{line:>5}"
        shown = "".join(char if char == "\t" or char.isprintable() else "\ufffd" for char in shown)
        return f"{number} | {shown}\n{' ' * len(number)} | {lead}{carets}"
