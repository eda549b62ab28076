"""Go's `filepath.Match`, which COPY's sources and `.dockerignore` use. Pure; safe from any thread.

    pattern:  { term }
    term:     '*' any run without '/'   '?' any character but '/'   '\\\\' c  the character c
              '[' [ '^' ] { c | lo '-' hi } ']'  one of a class, never empty; other characters stand for themselves

Texts may hold surrogate escapes, so that names which are not UTF-8 can be matched (`os.fsdecode`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from layerkit.errors import InputError


class PatternError(InputError):
    """A pattern with an open class, an empty class, or an escape at its end."""

    code = "bad-pattern"


def has_wildcards(text: str) -> bool:
    """Whether the text holds an unescaped `*`, `?` or `[`."""
    return re.match(r"(?:[^\\*?\[]|\\.)*+[*?\[]", text, re.DOTALL) is not None


def match(pattern: str, name: str) -> bool:
    """Whether the pattern matches the whole name.

    Raises:
        PatternError: a malformed pattern, whatever the name.
    """
    return compile_pattern(pattern).fullmatch(name) is not None


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression without backtracking over more than its last `*`; raises PatternError."""
    return re.compile(translate(tokenize(pattern)), re.DOTALL)


STAR = "*"


def tokenize(pattern: str) -> list[str]:
    """The pattern as regular expressions for one character each, and STAR for every `*`; raises PatternError."""
    tokens: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            tokens.append(STAR)
        elif char == "?":
            tokens.append("[^/]")
        elif char == "[":
            token, position = _character_class(pattern, position)
            tokens.append(token)
        elif char == "\\":
            if position == len(pattern):
                raise PatternError(f"the pattern {pattern[:100]!r} ends in an escape")
            tokens.append(re.escape(pattern[position]))
            position += 1
        else:
            tokens.append(re.escape(char))
    return tokens


def _character_class(pattern: str, position: int) -> tuple[str, int]:
    """Read behind `[`; returns the class as a regular expression and the position behind `]`."""
    negated = pattern.startswith("^", position)
    position += negated
    ranges: list[str] = []
    while not (ranges and pattern.startswith("]", position)):
        low, position = _class_character(pattern, position)
        high = low
        if pattern.startswith("-", position):
            high, position = _class_character(pattern, position + 1)
        # Go accepts a range that runs backward; it matches nothing.
        ranges.append(f"{re.escape(low)}-{re.escape(high)}" if low <= high else "")
    inside = "".join(ranges)
    if not inside:
        return (r"[\s\S]" if negated else r"(?!)"), position + 1
    return f"[{'^' if negated else ''}{inside}]", position + 1


def _class_character(pattern: str, position: int) -> tuple[str, int]:
    escaped = pattern.startswith("\\", position)
    position += escaped
    char = pattern[position : position + 1]
    # A class must also be closed behind its last character.
    if not char or position + 1 >= len(pattern) or (char in "-]" and not escaped):
        raise PatternError(f"the character class in the pattern {pattern[:100]!r} is malformed")
    return char, position + 1


def translate(tokens: list[str]) -> str:
    """Tokens to a regular expression.

    What stands between two stars may be matched at the first place that fits and never again, as the second star
    takes the difference: an atomic group, which keeps matching linear. Only the last star backtracks.
    """
    if STAR not in tokens:
        return "".join(tokens)
    chunks: list[list[str]] = [[]]
    for token in tokens:
        if token == STAR:
            chunks.append([])
        else:
            chunks[-1].append(token)
    head, *middle, tail = ["".join(chunk) for chunk in chunks]
    return head + "".join(f"(?>[^/]*?{chunk})" for chunk in middle if chunk) + "[^/]*" + tail
