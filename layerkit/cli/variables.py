"""Variables on the command line: `NAME=VALUE`, or `NAME` for the caller's own value. `cli` only."""

from __future__ import annotations

from collections.abc import Sequence

from layerkit import settings
from layerkit.errors import InputError


def read_variables(words: Sequence[str], option: str) -> dict[str, str]:
    """The variables of an option that may be given several times; a later one wins.

    Raises:
        InputError: a word without a name.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise InputError(f"not a variable: {word!r}", hint=f"write {option} NAME=VALUE")
        known = value if equals else settings.environment_value(name)
        if known is not None:
            found[name] = known
    return found
