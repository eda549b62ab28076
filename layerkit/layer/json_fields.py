"""Reading JSON objects of our own formats field by field, with types checked; imported within `layer`. Pure.

Every mistake is a CorruptError that names the document and the field; a field that nobody asked for is one too.
"""

from __future__ import annotations

from typing import Any, TypeVar

from layerkit.errors import CorruptError, UnsupportedError

_T = TypeVar("_T")
_ITEMS_MAX = 1 << 20


class Fields:
    """One JSON object; each getter takes a field out, `finish` refuses what is left."""

    def __init__(self, value: dict[str, Any], what: str) -> None:
        self._left = dict(value)
        self._what = what

    def version(self, name: str, newest: int) -> int:
        """The format version, which says whether the rest can be understood.

        Raises:
            UnsupportedError: the document was written by a newer layerkit.
        """
        version = self.integer(name, low=1)
        if version > newest:
            raise UnsupportedError(
                f"{self._what} has format version {version}, this layerkit reads up to {newest}",
                hint="update layerkit on this machine",
            )
        return version

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required unless there is a default."""
        value = self._take(name, str, default)
        if "\0" in value:
            raise self.wrong(name, "holds a NUL")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """A whole number within bounds."""
        value = self._take(name, int, default)
        if isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"is not a number from {low} to {high}")
        return value

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """true or false."""
        return self._take(name, bool, default)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when it is missing."""
        values = self._take(name, list, [])
        if len(values) > _ITEMS_MAX or not all(isinstance(value, str) and "\0" not in value for value in values):
            raise self.wrong(name, "is not a list of strings")
        return tuple(values)

    def text_map(self, name: str) -> dict[str, str]:
        """An object of strings; empty when it is missing."""
        values = self._take(name, dict, {})
        if not all(isinstance(value, str) and "\0" not in value for value in values.values()):
            raise self.wrong(name, "is not an object of strings")
        return dict(values)

    def object(self, name: str) -> Fields | None:
        """An object with fields of its own, or None."""
        if name not in self._left:
            return None
        return Fields(self._take(name, dict, None), f"{self._what}.{name}")

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; empty when it is missing."""
        values = self._take(name, list, [])
        if len(values) > _ITEMS_MAX or not all(isinstance(value, dict) for value in values):
            raise self.wrong(name, "is not a list of objects")
        return [Fields(value, f"{self._what}.{name}[{number}]") for number, value in enumerate(values)]

    def has(self, name: str) -> bool:
        """Whether the field is there and nobody took it yet."""
        return name in self._left

    def names(self) -> list[str]:
        """The fields that nobody took yet."""
        return list(self._left)

    def finish(self) -> None:
        """Refuse what nobody asked for; raises CorruptError."""
        if self._left:
            names = ", ".join(sorted(self._left)[:5])
            raise CorruptError(f"{self._what} has fields that its version does not know: {names[:200]}")

    def wrong(self, name: str, why: str) -> CorruptError:
        """The error for a field with a wrong value."""
        return CorruptError(f"{self._what}.{name} {why}")

    def _take(self, name: str, kind: type[_T], default: _T | None) -> _T:
        value = self._left.pop(name, default)
        if value is None:
            raise CorruptError(f"{self._what} lacks {name}")
        if not isinstance(value, kind):
            raise self.wrong(name, f"is not a {kind.__name__}")
        return value
