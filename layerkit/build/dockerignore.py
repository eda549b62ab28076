"""`.dockerignore`: which files of the build context are left out. Pure; safe from any thread.

Patterns as moby's patternmatcher reads them: Go's `filepath.Match` plus `**` for any number of folders; `!` makes an
exception; a pattern also covers everything below what it matches; the last line that matches decides.
Paths are relative, with `/` and without a leading one. Names that are not UTF-8 carry surrogate escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from layerkit.build import gomatch
from layerkit.build.layerfile.lexer import SPACES
from layerkit.errors import InputError

_MAX_BYTES = 16 << 20
_DOUBLE = "**"


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One line: the cleaned pattern without its `!`, and the expression that finds it."""

    text: str
    negated: bool
    line: int
    expression: re.Pattern[str] | None
    exact: str = ""
    prefix: str = ""
    suffix: str | None = None

    def matches(self, path: str) -> bool:
        """Whether the pattern names this very path, its parents aside."""
        if self.expression is not None:
            return self.expression.fullmatch(path) is not None
        if self.suffix is not None:
            return path.endswith(self.suffix) or (self.suffix.startswith("/") and path == self.suffix[1:])
        return path.startswith(self.prefix) if self.prefix else path == self.exact

    def may_match_below(self, folder: str) -> bool:
        """False when nothing below the folder can be named by this pattern."""
        literal = re.split(r"[*?\[\\]", self.text, maxsplit=1)[0]
        below = folder + "/"
        return literal.startswith(below) or below.startswith(literal)


class IgnoreRules:
    """The patterns of one file, in order. Immutable.

    A walk asks `enter` once for each folder, with the state of the folder above it, and `ignores_entry` for the rest.
    """

    def __init__(self, patterns: Iterable[IgnorePattern]) -> None:
        self.patterns = tuple(patterns)
        self._numbers_from_last = tuple(range(len(self.patterns) - 1, -1, -1))
        self._exceptions = tuple(pattern for pattern in self.patterns if pattern.negated)

    @classmethod
    def parse(cls, data: bytes, file: str = ".dockerignore") -> IgnoreRules:
        """Read the file.

        Raises:
            InputError: too large, a lone `!`, or a malformed pattern, with file and line.
        """
        if len(data) > _MAX_BYTES:
            raise InputError(f"the file has {len(data)} bytes, more than {_MAX_BYTES}", where=file)
        text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        return cls(
            pattern
            for number, line in enumerate(text.split("\n"), 1)
            if (pattern := parse_line(line, number, file)) is not None
        )

    @property
    def root(self) -> tuple[bool, ...]:
        """The state of the context's root, which no pattern matches."""
        return (False,) * len(self.patterns)

    def enter(self, state: tuple[bool, ...], folder: str) -> tuple[bool, tuple[bool, ...]]:
        """Whether a folder is left out, and its state.

        Args:
            state: of the folder above, from `enter` or `root`.
            folder: its path.
        """
        inside = tuple(above or pattern.matches(folder) for above, pattern in zip(state, self.patterns, strict=True))
        ignored = False
        for matched, pattern in zip(inside, self.patterns, strict=True):
            if matched:
                ignored = not pattern.negated
        return ignored, inside

    def ignores_entry(self, state: tuple[bool, ...], path: str) -> bool:
        """Whether a file is left out; `state` is that of its folder."""
        for number in self._numbers_from_last:
            pattern = self.patterns[number]
            if state[number] or pattern.matches(path):
                return not pattern.negated
        return False

    def may_keep_below(self, folder: str) -> bool:
        """Whether a folder that is left out may hold exceptions; when False a walk need not enter it.

        A kept file brings the folders above it along, even ignored ones.
        """
        return any(pattern.may_match_below(folder) for pattern in self._exceptions)

    def ignores(self, path: str) -> bool:
        """Whether one path is left out, by itself or through a folder above it."""
        path = clean_path(path)
        if path == ".":
            return False
        state = self.root
        parts = path.split("/")
        for depth in range(1, len(parts)):
            _, state = self.enter(state, "/".join(parts[:depth]))
        return self.ignores_entry(state, path)


def parse_line(line: str, number: int, file: str) -> IgnorePattern | None:
    """The pattern of one line, None for comments and blank lines; raises InputError."""
    if line.startswith("#") or not (text := line.strip(SPACES)):
        return None
    negated = text.startswith("!")
    if negated:
        text = text[1:].strip(SPACES)
    if not text:
        raise InputError(
            "! excepts nothing", where=f"{file}:{number}", hint="write !PATTERN behind what it excepts from"
        )
    text = clean_path(text)
    if len(text) > 1:
        text = text.removeprefix("/")
    try:
        gomatch.tokenize(text)
    except gomatch.PatternError as error:
        raise InputError(error.message, where=f"{file}:{number}") from error
    return _compile(text, negated, number)


def clean_path(path: str) -> str:
    """Go's `filepath.Clean`: no `.`, no doubled `/`, `..` resolved where that is possible; '.' for nothing."""
    rooted = path.startswith("/")
    kept: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            kept.append(part)
        elif kept and kept[-1] != "..":
            kept.pop()
        elif not rooted:
            kept.append(part)
    return ("/" if rooted else "") + "/".join(kept) or "."


def _compile(text: str, negated: bool, number: int) -> IgnorePattern:
    stem = text.removesuffix(_DOUBLE)
    if text.startswith(_DOUBLE) and _is_plain(text[2:]):
        return IgnorePattern(text, negated, number, None, suffix=text[2:])
    if stem != text and stem and _is_plain(stem):
        return IgnorePattern(text, negated, number, None, prefix=stem)
    if _is_plain(text):
        return IgnorePattern(text, negated, number, None, exact=text)
    return IgnorePattern(text, negated, number, re.compile(_expression(text), re.DOTALL))


def _is_plain(text: str) -> bool:
    return not re.search(r"[*?\[\]\\]", text)


def _expression(text: str) -> str:
    """A regular expression for a pattern with wildcards; `**` takes a `/` behind it along."""
    parts = re.findall(r"\*\*/?|(?:(?!\*\*)(?:\\.|\[(?:\\.|[^\]\\])*+\]|[^\\\[]))++", text, re.DOTALL)
    built: list[str] = []
    for index, part in enumerate(parts):
        if not part.startswith(_DOUBLE):
            built.append(gomatch.translate(gomatch.tokenize(part)))
        elif index == len(parts) - 1:
            built.append(".*")
        elif not built or built[-1] != "(?:.*/)?":
            # One `**/` behind another adds nothing but time.
            built.append("(?:.*/)?")
    return "".join(built)
