"""Where an instruction's text asks for heredocs: `<<NAME`, `<<-NAME`, quoted names, several in one line. Pure.

As BuildKit (dockerfile 1.15: blanks between << and the name are allowed), with one leniency: an unquoted name ends
where a shell's word would, so `cat <<EOF>file` and `$(cat <<EOF)` mean what the shell makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from layerkit.build.layerfile.words import split_words

_OPENING = re.compile(r"\d*<<(-?)")
_NAME = re.compile(r"((?:\\.|'[^']*+'|\"[^\"]*+\"|[^<'\"\\;&|()>])++)(.*)", re.DOTALL)
_QUOTED_PART = re.compile(r"\\(.)|'([^']*)'|\"([^\"]*)\"", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HeredocMark:
    """A request for a body: its end line, whether tabs are cut, whether variables in it count, and its place.

    `whole` says that nothing else is in its word; `offset` and `end` bound it in the text it was found in.
    """

    name: str
    strip_tabs: bool
    expand: bool
    whole: bool
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A heredoc with its body as it stands in the file, line feeds normalised, tabs not yet cut."""

    name: str
    body: str
    strip_tabs: bool
    expand: bool

    @property
    def content(self) -> str:
        """The body with leading tabs cut where `<<-` asks for it."""
        return re.sub(r"(?m)^\t+", "", self.body) if self.strip_tabs else self.body


def find_heredocs(text: str) -> list[HeredocMark]:
    """Every heredoc that the text asks for, in order; none when a quote in it is not closed."""
    if "<<" not in text:
        return []
    words = list(split_words(text, "\\"))
    marks: list[HeredocMark] = []
    skip = False
    for index, (offset, word) in enumerate(words):
        if _is_unclosed(word):
            return []
        if skip:
            skip = False
            continue
        opening = _OPENING.fullmatch(word)
        if opening:
            mark = _separated(words, index)
            skip = mark is not None
        else:
            mark = parse_mark(word, offset)
        if mark is not None:
            marks.append(mark)
    return marks


def parse_mark(word: str, offset: int = 0) -> HeredocMark | None:
    """The heredoc that a word begins with, or None."""
    match = _OPENING.match(word)
    return _mark(match[1] == "-", word[match.end() :], offset, offset + len(word)) if match else None


def _separated(words: Sequence[tuple[int, str]], index: int) -> HeredocMark | None:
    """`<< NAME`: only before a word that looks like a name, as `$((1 << 4))` is no heredoc."""
    if index + 1 == len(words):
        return None
    offset, opening = words[index]
    following, name = words[index + 1]
    if not re.match(r"[A-Za-z_'\"\\$-]", name):
        return None
    return _mark(opening.endswith("-"), name, offset, following + len(name))


def _mark(strip_tabs: bool, rest: str, offset: int, end: int) -> HeredocMark | None:
    match = _NAME.fullmatch(rest)
    if not match or match[2].startswith(("<", "'", '"')):
        return None
    name, quoted = _unquote(match[1])
    return HeredocMark(name, strip_tabs, not quoted, not match[2], offset, end) if name else None


def _unquote(text: str) -> tuple[str, bool]:
    quoted = False

    def plain(match: re.Match[str]) -> str:
        nonlocal quoted
        if match[1] is not None:
            return match[1]
        quoted = True
        return match[2] if match[2] is not None else match[3]

    return _QUOTED_PART.sub(plain, text), quoted


def _is_unclosed(word: str) -> bool:
    rest = re.sub(r"(?s)\\.|'[^']*+'|\"(?:\\.|[^\"\\])*+\"", "", word)
    return "'" in rest or '"' in rest
