"""`--chmod`: octal modes and the symbolic ones of chmod(1). Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)")
_ACTION = re.compile(r"([-+=])([ugo]|[rwxXst]*)")
_SHIFTS = {"u": 6, "g": 3, "o": 0}
_SPECIAL = {"u": 0o4000, "g": 0o2000}
_STICKY = 0o1000


@dataclass(frozen=True, slots=True)
class FileMode:
    """A mode to set. `octal` is None for a symbolic one; `text` is as written, for keys and history."""

    text: str
    octal: int | None

    def on(self, mode: int, *, is_directory: bool) -> int:
        """The permission bits (0 to 07777) of a file that has `mode`."""
        if self.octal is not None:
            return self.octal
        bits = mode & 0o7777
        for clause in self.text.split(","):
            match = _CLAUSE.fullmatch(clause)
            if match is None:
                raise ValueError(f"{clause!r} is no clause of a mode")
            who = set(match[1].replace("a", "ugo")) or set("ugo")
            for sign, what in _ACTION.findall(match[2]):
                bits = _act(bits, who, sign, what, is_directory=is_directory)
        return bits


def parse_mode(text: str) -> FileMode:
    """Read `755`, `0644`, `u=rwX,go=rX` or `+x`.

    Without one of `ugoa` a clause means all three, whatever the umask: builds do not depend on it.

    Raises:
        ValueError: anything else, or beyond 07777.
    """
    if re.fullmatch(r"[0-7]{1,6}", text):
        octal = int(text, 8)
        if octal > 0o7777:
            raise ValueError(f"the mode {text} is beyond 07777")
        return FileMode(text, octal)
    if len(text) > 200 or not all(_CLAUSE.fullmatch(clause) for clause in text.split(",")):
        raise ValueError(f"not a mode: {text[:60]!r}")
    return FileMode(text, None)


def _act(bits: int, who: set[str], sign: str, what: str, *, is_directory: bool) -> int:
    value = clear = 0
    for kind in who:
        shift = _SHIFTS[kind]
        value |= _permissions(bits, what, is_directory=is_directory) << shift
        clear |= 7 << shift
        if "s" in what:
            value |= _SPECIAL.get(kind, 0)
        clear |= _SPECIAL.get(kind, 0)
    if "t" in what and who == set("ugo"):
        value |= _STICKY
    if sign == "+":
        return bits | value
    if sign == "-":
        return bits & ~value
    if who == set("ugo"):
        clear |= _STICKY
    return bits & ~clear | value


def _permissions(bits: int, what: str, *, is_directory: bool) -> int:
    if what in _SHIFTS:
        return bits >> _SHIFTS[what] & 7
    value = (4 if "r" in what else 0) | (2 if "w" in what else 0)
    if "x" in what or ("X" in what and (is_directory or bits & 0o111)):
        value |= 1
    return value
