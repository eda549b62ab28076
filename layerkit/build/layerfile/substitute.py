"""Quotes, escapes and `$variables` of one word: `substitute`. Pure; safe from any thread.

The rules are those of BuildKit's shell lexer (frontend/dockerfile/shell): single quotes keep everything; in double
quotes an escape counts before `"`, `$` and itself; elsewhere before everything. An unset variable is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from layerkit.build.layerfile import glob

MAX_DEPTH = 50
MAX_RESULT = 16 << 20
_SPECIAL = frozenset("@*#?-$!0")
_NAME = re.compile(r"[^\W\d]\w*|\d+")


class SubstitutionError(Exception):
    """What is wrong in a word, and at which offset; callers turn it into a LayerfileError with a place.

    `unset` names the variable that strict substitution missed.
    """

    def __init__(self, message: str, offset: int, unset: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.unset = unset


class _UnclosedError(SubstitutionError):
    """The character that ends a part was not found."""


@dataclass(slots=True)
class Substitution:
    """The outcome: the text, and the names that were used and found, or used and not found."""

    text: str = ""
    found: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


def substitute(
    raw: str, variables: Mapping[str, str], escape: str = "\\", *, quotes: bool = True, strict: bool = False
) -> Substitution:
    """Put variables in and take quotes and escapes away.

    Args:
        raw: the word as written.
        variables: names to values; values are not read again.
        escape: the file's escape character.
        quotes: whether quotes are special; they are not in the body of a heredoc.
        strict: whether a plain `$name` that is not set is an error rather than empty.

    Raises:
        SubstitutionError: an open quote or brace, an unknown operator, `${v?}` of an unset variable, a result
            larger than MAX_RESULT.
    """
    result = Substitution()
    if not any(char in raw for char in ("$", escape, *("'\"" if quotes else ""))):
        result.text = raw
        return result
    reader = _Reader(raw, variables, result, escape=escape, quotes=quotes, strict=strict)
    result.text = reader.read("")
    return result


class _Reader:
    """A cursor over one word."""

    def __init__(
        self, raw: str, variables: Mapping[str, str], result: Substitution, *, escape: str, quotes: bool, strict: bool
    ) -> None:
        self._raw = raw
        self._variables = variables
        self._escape = escape
        self._strict = strict
        self._result = result
        self._position = 0
        self._depth = 0
        self._size = 0
        self._special: dict[str, Callable[[], str]] = {"$": self._dollar}
        if quotes:
            self._special |= {"'": self._single, '"': self._double}
        stops = "".join(map(re.escape, (*self._special, escape)))
        self._plain = re.compile(rf"[^{stops}}}/]+")
        self._in_double = re.compile(rf'[^"${re.escape(escape)}]+')

    def _fail(self, message: str, offset: int | None = None) -> SubstitutionError:
        return SubstitutionError(message, self._position if offset is None else offset)

    def _peek(self) -> str:
        return self._raw[self._position : self._position + 1]

    def _take(self) -> str:
        char = self._peek()
        self._position += 1
        return char

    def _count(self, text: str) -> str:
        """Bound what nested defaults and repeated values may grow to."""
        self._size += len(text)
        if self._size > MAX_RESULT:
            raise self._fail(f"the result is larger than {MAX_RESULT >> 20} MiB")
        return text

    def read(self, stop: str, *, keep_escapes: bool = False) -> str:
        """Up to the stop character, which is taken; to the end when stop is ''."""
        start = self._position
        parts: list[str] = []
        while char := self._peek():
            if char == stop:
                self._position += 1
                return self._count("".join(parts))
            if match := self._plain.match(self._raw, self._position):
                parts.append(match[0])
                self._position = match.end()
            elif special := self._special.get(char):
                parts.append(special())
            elif char == self._escape:
                parts.append(self._escaped(keep_escapes=keep_escapes))
            else:
                parts.append(self._take())
        if stop:
            raise _UnclosedError(f"no {stop} ends what begins here", max(start - 1, 0))
        return self._count("".join(parts))

    def _escaped(self, *, keep_escapes: bool) -> str:
        self._position += 1
        char = self._take()
        # As BuildKit: an escape that ends the word is dropped, and kept where a pattern will be read again.
        return self._escape + char if keep_escapes else char

    def _single(self) -> str:
        start = self._position
        end = self._raw.find("'", start + 1)
        if end < 0:
            raise self._fail("the single quote is not closed", start)
        self._position = end + 1
        return self._raw[start + 1 : end]

    def _double(self) -> str:
        start = self._position
        self._position += 1
        parts: list[str] = []
        while char := self._peek():
            if match := self._in_double.match(self._raw, self._position):
                parts.append(match[0])
                self._position = match.end()
            elif char == '"':
                self._position += 1
                return "".join(parts)
            elif char == "$":
                parts.append(self._dollar())
            else:
                self._position += 1
                parts.append(self._take() if self._peek() in ('"', "$", self._escape) else char)
        raise self._fail("the double quote is not closed", start)

    def _name(self) -> str:
        if match := _NAME.match(self._raw, self._position):
            self._position = match.end()
            return match[0]
        return self._take() if self._peek() in _SPECIAL else ""

    def _look_up(self, name: str) -> str | None:
        value = self._variables.get(name)
        (self._result.missing if value is None else self._result.found).add(name)
        return value

    def _plain_value(self, name: str, start: int) -> str:
        value = self._look_up(name)
        if value is None and self._strict:
            raise SubstitutionError(f"${name} is not set", start, unset=name)
        return self._count(value or "")

    def _dollar(self) -> str:
        start = self._position
        self._position += 1
        if self._peek() != "{":
            name = self._name()
            return self._plain_value(name, start) if name else "$"
        self._position += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fail(f"more than {MAX_DEPTH} substitutions inside one another", start)
        value = self._braced(start)
        self._depth -= 1
        return value

    def _braced(self, start: int) -> str:
        name = self._name()
        operator = self._take()
        if not operator:
            raise self._fail("no } ends the substitution that begins here", start)
        if not name or operator == "{":
            raise self._fail("this substitution has no variable's name", start)
        if operator == "}":
            return self._plain_value(name, start)
        if operator == "/":
            return self._replaced(name, start)
        if operator in "#%":
            return self._trimmed(name, operator, start)
        empty_counts = operator == ":"
        if empty_counts:
            operator = self._take()
        if not operator or operator not in "-+?":
            shown = (":" if empty_counts else "") + operator
            raise self._fail(f"${{{name}{shown}…}} is no substitution; there are :- :+ :? - + ? # ## % %% / //", start)
        word = self._until_brace(start)
        value = self._look_up(name)
        return self._chosen(name, operator, word, value, empty_counts=empty_counts, start=start)

    def _until_brace(self, start: int, *, keep_escapes: bool = False) -> str:
        try:
            return self.read("}", keep_escapes=keep_escapes)
        except _UnclosedError as error:
            raise self._fail("no } ends the substitution that begins here", start) from error

    def _chosen(self, name: str, operator: str, word: str, value: str | None, *, empty_counts: bool, start: int) -> str:
        is_set = value is not None and not (empty_counts and not value)
        if operator == "-":
            return self._count(value or "") if is_set else word
        if operator == "+":
            return word if is_set else ""
        if not is_set:
            state = "unset" if value is None else "empty"
            raise self._fail(f"{name}: {word or f'must not be {state}'}", start)
        return self._count(value or "")

    def _trimmed(self, name: str, operator: str, start: int) -> str:
        longest = self._peek() == operator
        if longest:
            self._position += 1
        pattern = self._pattern(self._until_brace(start, keep_escapes=True), start)
        value = self._look_up(name) or ""
        strip = glob.strip_prefix if operator == "#" else glob.strip_suffix
        return self._count(strip(value, pattern, longest=longest))

    def _replaced(self, name: str, start: int) -> str:
        every = self._peek() == "/"
        if every:
            self._position += 1
        try:
            text = self.read("/", keep_escapes=True)
        except _UnclosedError as error:
            raise self._fail(f"${{{name}/…}} needs a second /, before the replacement", start) from error
        pattern = self._pattern(text, start)
        replacement = self._until_brace(start, keep_escapes=True)
        value = self._look_up(name) or ""
        if len(value) * max(1, len(replacement)) > MAX_RESULT:
            raise self._fail(f"the result may be larger than {MAX_RESULT >> 20} MiB", start)
        return self._count(glob.replace(value, pattern, replacement, every=every))

    def _pattern(self, text: str, start: int) -> list[int]:
        try:
            return glob.parse_pattern(text, self._escape)
        except ValueError as error:
            raise self._fail(str(error), start) from error
