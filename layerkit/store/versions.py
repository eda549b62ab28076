"""Versions and ranges: PEP 440 by `packaging`, with what it refuses handled as docs/refs.md says; pure values.

Imported by references and by whoever checks requirements. The author's spelling is kept everywhere: it names the
object in the store, and two spellings of one version are two names.

- A version that PEP 440 does not know (`22.04-lts`, `2024-01-01`, `9.8p1`) is *opaque*: it is found by its exact
  spelling, matches no range but `==` it, and sorts below all others, digits by value.
- `1.0-1` is PEP 440's post-release 1.0.post1, above 1.0, which is what a packager's revision means.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.version import InvalidVersion, Version

from layerkit.errors import RefError
from layerkit.ids import is_version

_CLAUSE = re.compile(r"\s*(===|==|!=|<=|>=|<|>|~=)?\s*([^\s<>=!~]*)\s*")
_REQUIREMENT = re.compile(r"([^\s<>=!~]+)\s*([<>=!~].*)?", re.DOTALL)
_RUNS = re.compile(r"[0-9]+|[^0-9]+")
_RANGE_HINT = "ranges look like >=12,<14 or ~=3.11 or ==1.2.*"


@functools.lru_cache(maxsize=4096)
def find_pep440(text: str) -> Version | None:
    """The version as PEP 440 reads it, None when it is opaque."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@functools.total_ordering
class VersionKey:
    """Sorts versions: opaque below PEP 440; among opaque ones runs of digits by value; then by spelling."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._version = find_pep440(text)
        # Letters sort below digits, as everywhere where 1.0 is above 1.a.
        self._runs = [(run.isdigit(), int(run) if run.isdigit() else 0, run) for run in _RUNS.findall(text)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionKey) and self._text == other._text

    def __lt__(self, other: VersionKey) -> bool:
        if self._version is None or other._version is None:
            if self._version is None and other._version is None:
                return (self._runs, self._text) < (other._runs, other._text)
            return self._version is None
        return (self._version, self._text) < (other._version, other._text)


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Lowest first."""
    return sorted(versions, key=VersionKey)


def is_prerelease(text: str) -> bool:
    """Whether PEP 440 calls it a pre-release or development release; opaque versions are not."""
    version = find_pep440(text)
    return version is not None and version.is_prerelease


def highest(versions: Iterable[str]) -> str | None:
    """The version that no version means: the highest release, else the highest pre-release, else opaque one."""
    ranked = sort_versions(versions)
    parsed = [text for text in ranked if find_pep440(text) is not None]
    releases = [text for text in parsed if not is_prerelease(text)]
    return next((group[-1] for group in (releases, parsed, ranked) if group), None)


@dataclass(frozen=True)
class VersionRange:
    """Clauses that must all hold; no clause at all allows everything.

    Attributes:
        text: the author's spelling.
    """

    text: str
    _specifiers: tuple[Specifier, ...]
    _exact: tuple[tuple[bool, str], ...]

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read `>=12,<14`; raises RefError with what to write instead."""
        specifiers: list[Specifier] = []
        exact: list[tuple[bool, str]] = []
        for clause in text.split(",") if text.strip() else ():
            match = _CLAUSE.fullmatch(clause)
            if not match or not match[1] or not match[2]:
                raise RefError(f"not a clause of a range: {clause.strip()[:100]!r} in {text[:100]!r}", hint=_RANGE_HINT)
            operator, version = match[1], match[2]
            if operator == "===" or (operator in ("==", "!=") and _is_opaque(version)):
                exact.append((operator != "!=", version))
            else:
                specifiers.append(_specifier(operator, version))
        return cls(text.strip(), tuple(specifiers), tuple(exact))

    def __contains__(self, version: str) -> bool:
        """Whether the version is in the range; pre-releases too, when they are (`choose` prefers releases)."""
        if any((version == other) is not wanted for wanted, other in self._exact):
            return False
        parsed = find_pep440(version)
        if parsed is None:
            # Nothing can be said of an opaque version but that it is this one.
            return not self._specifiers and (not self._exact or any(wanted for wanted, _ in self._exact))
        return all(specifier.contains(parsed, prereleases=True) for specifier in self._specifiers)

    def choose(self, versions: Iterable[str]) -> str | None:
        """The highest release within the range, a pre-release only when there is no release or a clause names one."""
        allowed = [version for version in versions if version in self]
        if any(specifier.prereleases for specifier in self._specifiers):
            return sort_versions(allowed)[-1] if allowed else None
        return highest(allowed)

    def __str__(self) -> str:
        return self.text


def split_requirement(text: str) -> tuple[str, VersionRange]:
    """`toolkit/node>=22` or `glibc >= 2.35` as name and range; raises RefError."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if not match:
        raise RefError(f"not a requirement: {text[:200]!r}", hint="write NAME or NAME>=VERSION")
    return match[1], VersionRange.parse(match[2] or "")


def _is_opaque(version: str) -> bool:
    return is_version(version) and find_pep440(version) is None


def _specifier(operator: str, version: str) -> Specifier:
    if _is_opaque(version):
        raise RefError(
            f"{version!r} cannot be compared: it is not a version by PEP 440",
            hint="only == and != take such a version",
        )
    if operator == "~=" and version.isdigit():
        raise RefError(f"~={version} needs two numbers", hint=f"write >={version},<{int(version) + 1}")
    try:
        return Specifier(operator + version)
    except InvalidSpecifier as error:
        raise RefError(f"not a clause of a range: {(operator + version)[:100]!r}", hint=_RANGE_HINT) from error
