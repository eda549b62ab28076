"""Words, flags and quotes of an instruction's text; no variables yet. Pure functions.

A word keeps its quotes and escapes: they go when variables are put in (`substitute`), as in BuildKit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from layerkit.build.layerfile.lexer import SPACES

_BLANK = "[" + SPACES + "]"
BLANKS = re.compile(r"[\t\v\f\r ]+")


@dataclass(frozen=True, slots=True)
class Word:
    """Raw text with quotes, escapes and variables as written, and where it begins."""

    raw: str
    line: int
    column: int

    def __str__(self) -> str:
        return self.raw


@dataclass(frozen=True, slots=True)
class Flag:
    """`--name=value` before an instruction's arguments; value None when there is no `=`."""

    name: str
    value: Word | None
    line: int
    column: int


@lru_cache(maxsize=4)
def _word_pattern(escape: str) -> re.Pattern[str]:
    # Possessive throughout: a word of a megabyte is read once. An escape with nothing behind it matches nowhere, and
    # is dropped that way.
    token = re.escape(escape)
    return re.compile(rf"(?:{token}.|'[^']*+'?|\"(?:{token}.|[^\"{token}])*+\"?|[^'\"{token}{SPACES}])++", re.DOTALL)


def split_words(text: str, escape: str) -> Iterator[tuple[int, str]]:
    """(offset, word) of each word; blanks part words, not inside quotes and not after an escape.

    An unclosed quote runs to the end; `substitute` complains about it.
    """
    for match in _word_pattern(escape).finditer(text):
        yield match.start(), match[0]


def split_blanks(text: str) -> Iterator[tuple[int, str]]:
    """(offset, word) of each word, parted by blanks alone: quotes mean nothing."""
    for match in re.finditer(r"[^\t\v\f\r ]+", text):
        yield match.start(), match[0]


def split_flags(text: str) -> tuple[list[tuple[int, str]], int]:
    """The `--…` words at the start with quotes and backslashes resolved, and the offset of what follows them.

    A bare `--` ends the flags and is dropped.
    """
    flags: list[tuple[int, str]] = []
    position = 0
    while True:
        position = _skip_blanks(text, position)
        if not text.startswith("--", position):
            return flags, position
        start = position
        word, position = _flag_word(text, position)
        if word == "--":
            return flags, _skip_blanks(text, position)
        flags.append((start, word))


_BLANK_RUN = re.compile(f"{_BLANK}*")
_FLAG_PART = re.compile(rf"\\(.?)|'((?:\\.|[^'\\])*+)'?|\"((?:\\.|[^\"\\])*+)\"?|([^'\"\\{SPACES}]++)", re.DOTALL)


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANK_RUN.match(text, position)
    return match.end() if match else position


def _flag_word(text: str, position: int) -> tuple[str, int]:
    parts: list[str] = []
    while match := _FLAG_PART.match(text, position):
        escaped, single, double, plain = match.groups()
        if plain is not None:
            parts.append(plain)
        elif escaped is not None:
            parts.append(escaped)
        else:
            parts.append(re.sub(r"(?s)\\(.)", r"\1", single if single is not None else double))
        position = match.end()
    return "".join(parts), position
