"""Patterns of `${v#p}`, `${v%p}` and `${v/p/r}`: `*`, `?` and literals. Pure, linear in the value's length.

A shell's bracket expressions mean nothing here, and `*` and `?` do not match a line feed, as in BuildKit. Matching
steps through the value with a set of pattern positions as one integer, so no pattern can make it backtrack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

STAR = -1
ANY = -2
_FREE = "*?\\"
_SEPARATORS = "}/"

Pattern = Sequence[int]


def parse_pattern(text: str, escape: str) -> list[int]:
    """A pattern as code points, STAR and ANY.

    Raises:
        ValueError: an escape before something that needs none, or at the end.
    """
    pattern: list[int] = []
    chars = iter(text)
    for char in chars:
        if char == "*":
            pattern.append(STAR)
        elif char == "?":
            pattern.append(ANY)
        elif char == escape:
            literal = next(chars, "")
            if not literal or literal not in _FREE + _SEPARATORS + escape:
                raise ValueError(f"invalid escape {escape}{literal} in the pattern")
            pattern.append(ord(literal))
        else:
            pattern.append(ord(char))
    return pattern


class _Steps:
    """The pattern as bit masks: bit i of a state means that i elements of the pattern are matched."""

    def __init__(self, pattern: Pattern) -> None:
        self.accept = 1 << len(pattern)
        self._stars = sum(1 << index for index, element in enumerate(pattern) if element == STAR)
        self._any = sum(1 << index for index, element in enumerate(pattern) if element == ANY)
        self._literals: dict[int, int] = {}
        for index, element in enumerate(pattern):
            if element >= 0:
                self._literals[element] = self._literals.get(element, 0) | 1 << index
        self.start = self.closure(1)

    def closure(self, state: int) -> int:
        """Add what a star that matches nothing reaches; runs of stars take several rounds."""
        while (passed := (state & self._stars) << 1) & ~state:
            state |= passed
        return state

    def step(self, state: int, char: str) -> int:
        moved = (state & self._literals.get(ord(char), 0)) << 1
        if char != "\n":
            moved |= (state & self._any) << 1 | state & self._stars
        return self.closure(moved)

    def ends(self, value: str, start: int = 0) -> Iterator[int]:
        """Every end of a match that begins at `start`, in order."""
        state = self.start
        if state & self.accept:
            yield start
        for index in range(start, len(value)):
            state = self.step(state, value[index])
            if not state:
                return
            if state & self.accept:
                yield index + 1


def _longest(steps: _Steps, value: str, start: int = 0) -> int:
    end = -1
    for end in steps.ends(value, start):  # noqa: B007
        pass
    return end


def strip_prefix(value: str, pattern: Pattern, *, longest: bool) -> str:
    """The value without its shortest or longest prefix that matches."""
    steps = _Steps(_single_stars(pattern))
    end = _longest(steps, value) if longest else next(steps.ends(value), -1)
    return value[end:] if end > 0 else value


def strip_suffix(value: str, pattern: Pattern, *, longest: bool) -> str:
    """The value without its shortest or longest suffix that matches."""
    return strip_prefix(value[::-1], pattern[::-1], longest=longest)[::-1]


def replace(value: str, pattern: Pattern, replacement: str, *, every: bool) -> str:
    """The value with the leftmost longest match, or every one, replaced; the replacement is taken literally."""
    steps = _Steps(_single_stars(pattern))
    starts = _starts(value, _single_stars(pattern))
    parts: list[str] = []
    position = 0
    after_match = -1
    for start in starts:
        if start < position:
            continue
        end = _longest(steps, value, start)
        # An empty match right behind another match does not count.
        if end == start == after_match:
            continue
        parts += (value[position:start], replacement)
        position = after_match = end
        if not every:
            break
    return "".join((*parts, value[position:]))


def _starts(value: str, pattern: Pattern) -> list[int]:
    """Every offset at which some match begins: the reversed pattern, run over the reversed value."""
    steps = _Steps(pattern[::-1])
    state = steps.start
    found = [len(value)] if state & steps.accept else []
    for index in range(len(value) - 1, -1, -1):
        state = steps.step(state, value[index]) | steps.start
        if state & steps.accept:
            found.append(index)
    return found[::-1]


def _single_stars(pattern: Pattern) -> list[int]:
    return [element for index, element in enumerate(pattern) if element != STAR or pattern[index - 1 : index] != [STAR]]
