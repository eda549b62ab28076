"""What a stage says of its layer: LAYER, REQUIRES, PROVIDES, CONFLICTS, PREFIX, EXPORT, MTIME, SETTING. Pure.

Their words may use ARGs and ENVs that the file sets above them. An unset variable is an error here, unlike in the
instructions of a Dockerfile: a layer with half a name helps nobody.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.expand import error_at, expand
from layerkit.build.layerfile.nodes import Declaration, Layer, Layerfile
from layerkit.build.layerfile.words import Word
from layerkit.errors import LayerfileError, RefError
from layerkit.ids import DEV_TAG, KINDS, check_kind, check_name, check_version_or_tag
from layerkit.layer.config import Export

_CLAUSE = r"(?:===|[<>]=?|[=!~]=)[0-9A-Za-z][0-9A-Za-z._+*-]*"
_REQUIREMENT = re.compile(rf"([a-z0-9][A-Za-z0-9._/+-]*?)({_CLAUSE}(?:,{_CLAUSE})*)?")
_PROVIDED = re.compile(r"([a-z0-9][A-Za-z0-9._/+-]*)(?:=([0-9A-Za-z][0-9A-Za-z._+-]*))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_EPOCH = 1 << 40

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "drop-outside": ("true", "false"),
    "network": ("none", "nat"),
}
"""Keys of SETTING and the values they take: drop what a toolkit writes outside its PREFIX; the network of its RUNs."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """`toolkit/node>=22,<24` or `glibc>=2.35`: a layer (`kind` set) or a fact, and the range as written."""

    kind: str
    name: str
    range: str
    word: Word

    @property
    def text(self) -> str:
        """As configs keep it."""
        return (f"{self.kind}/" if self.kind else "") + self.name + self.range


@dataclass(frozen=True, slots=True)
class Mtime:
    """`keep` (the default), `clamp` to SOURCE_DATE_EPOCH, or `fixed` to `epoch` seconds."""

    mode: str = "keep"
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The declarations of one stage. `implicit` when it has no LAYER: then `kind` and `name` are still empty."""

    kind: str = ""
    name: str = ""
    version: str = DEV_TAG
    bound: bool = False
    implicit: bool = True
    requires: tuple[Requirement, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[Requirement, ...] = ()
    prefixes: tuple[str, ...] = ()
    exports: tuple[Export, ...] = ()
    mtime: Mtime = field(default_factory=Mtime)
    settings: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Word] = field(default_factory=dict)
    """The first word of each kind of declaration, for errors about the whole."""


class HeaderReader:
    """Collects the declarations of one stage in order. One thread."""

    def __init__(self, layerfile: Layerfile) -> None:
        self._layerfile = layerfile
        self.header = Header()
        self._readers: Mapping[str, Callable[[Word, str], None]] = {
            "REQUIRES": self._requires,
            "PROVIDES": self._provides,
            "CONFLICTS": self._conflicts,
            "PREFIX": self._prefix,
            "EXPORT": self._export,
            "MTIME": self._mtime,
            "SETTING": self._setting,
        }

    def add(self, node: Layer | Declaration, variables: Mapping[str, str]) -> None:
        """Take one more instruction; `variables` are those set above it. Raises LayerfileError."""
        first = node.kind if isinstance(node, Layer) else node.words[0]
        if node.keyword in ("LAYER", "MTIME") and node.keyword in self.header.words:
            raise error_at(self._layerfile, first, f"{node.keyword} is given twice in this stage")
        self.header = replace(self.header, words={node.keyword: first, **self.header.words})
        if isinstance(node, Layer):
            self._layer(node, variables)
            return
        read = self._readers[node.keyword]
        for word in node.words:
            read(word, expand(self._layerfile, word, variables, strict=True))

    def _fail(self, word: Word, message: str, hint: str = "") -> LayerfileError:
        return error_at(self._layerfile, word, message, hint=hint)

    def _layer(self, node: Layer, variables: Mapping[str, str]) -> None:
        values = []
        checks = [(node.kind, check_kind), (node.name, check_name)]
        if node.version is not None:
            checks.append((node.version, check_version_or_tag))
        for word, check in checks:
            try:
                values.append(check(expand(self._layerfile, word, variables, strict=True)))
            except RefError as error:
                raise self._fail(word, error.message, error.hint) from error
        kind, name, *version = values
        if node.bound and kind != "toolkit":
            raise self._fail(node.kind, f"only toolkits can be BOUND, a {kind} cannot")
        self.header = replace(
            self.header,
            kind=kind,
            name=name,
            version=version[0] if version else DEV_TAG,
            bound=node.bound,
            implicit=False,
        )

    def _requirement(self, word: Word, value: str) -> Requirement:
        match = _REQUIREMENT.fullmatch(value)
        if not match:
            hint = "write NAME or NAME>=VERSION without blanks, several clauses joined by commas"
            if ":" in value:
                name, _, version = value.partition(":")
                hint = f"write {name}=={version} for that very version"
            raise self._fail(word, f"not a requirement: {value[:100]!r}", hint)
        name, clauses = match[1], match[2] or ""
        kind, slash, rest = name.partition("/")
        if not slash:
            return Requirement("", name, clauses, word)
        if kind not in KINDS:
            raise self._fail(word, f"{kind!r} is no kind of layer", did_you_mean(kind, KINDS))
        try:
            return Requirement(kind, check_name(rest), clauses, word)
        except RefError as error:
            raise self._fail(word, error.message, error.hint) from error

    def _requires(self, word: Word, value: str) -> None:
        requirement = self._requirement(word, value)
        if any((old.kind, old.name) == (requirement.kind, requirement.name) for old in self.header.requires):
            name = replace(requirement, range="").text
            raise self._fail(word, f"{name} is required twice", "join the clauses with a comma")
        self.header = replace(self.header, requires=(*self.header.requires, requirement))

    def _conflicts(self, word: Word, value: str) -> None:
        self.header = replace(self.header, conflicts=(*self.header.conflicts, self._requirement(word, value)))

    def _provides(self, word: Word, value: str) -> None:
        if not _PROVIDED.fullmatch(value):
            raise self._fail(word, f"not a fact: {value[:100]!r}", "write NAME or NAME=VERSION")
        self.header = replace(self.header, provides=(*self.header.provides, value))

    def _prefix(self, word: Word, value: str) -> None:
        path = self._absolute(word, value)
        if path == "/":
            raise self._fail(word, "PREFIX / would be the whole file system", "write LAYER toolkit NAME BOUND for that")
        for other in self.header.prefixes:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise self._fail(word, f"PREFIX {path} lies within {other}, or the reverse")
        self.header = replace(self.header, prefixes=(*self.header.prefixes, path))

    def _absolute(self, word: Word, value: str) -> str:
        if not value.startswith("/") or ".." in value.split("/") or "\0" in value:
            raise self._fail(word, f"not an absolute path: {value[:100]!r}", "it begins with / and holds no ..")
        return "/" + posixpath.normpath(value).lstrip("/")

    def _export(self, word: Word, value: str) -> None:
        name, equals, text = value.partition("=")
        append = name.endswith("+")
        name = name.removesuffix("+")
        if not equals or not _VARIABLE.fullmatch(name):
            raise self._fail(word, f"not an export: {value[:100]!r}", "write NAME=VALUE, or PATH+=/absolute/bin")
        if append:
            if not name.endswith("PATH"):
                raise self._fail(word, f"{name}+= has no meaning: only variables that end in PATH are lists of folders")
            text = ":".join(self._absolute(word, part) for part in text.split(":"))
        elif name == "PATH":
            raise self._fail(word, "EXPORT PATH= would replace the stack's PATH", f"write EXPORT PATH+={text[:60]}")
        if any(old.name == name and not (append and old.append) for old in self.header.exports):
            raise self._fail(word, f"{name} is exported twice")
        self.header = replace(self.header, exports=(*self.header.exports, Export(name, text, append)))

    def _mtime(self, word: Word, value: str) -> None:
        if value in ("keep", "clamp"):
            mtime = Mtime(value)
        elif re.fullmatch(r"-?\d{1,13}", value, re.ASCII) and abs(int(value)) <= _MAX_EPOCH:
            mtime = Mtime("fixed", int(value))
        else:
            raise self._fail(word, f"not an MTIME: {value[:60]!r}", "write keep, clamp, or seconds since 1970")
        self.header = replace(self.header, mtime=mtime)

    def _setting(self, word: Word, value: str) -> None:
        key, equals, text = value.partition("=")
        if not equals:
            raise self._fail(word, f"not a setting: {value[:60]!r}", "write SETTING key=value")
        if key not in SETTINGS:
            hint = did_you_mean(key, SETTINGS) or f"there are {', '.join(SETTINGS)}"
            raise self._fail(word, f"{key[:60]!r} is no setting", hint)
        if text not in SETTINGS[key]:
            raise self._fail(word, f"{key}={text[:60]} is not possible", f"it takes {' or '.join(SETTINGS[key])}")
        if key in self.header.settings:
            raise self._fail(word, f"{key} is set twice")
        self.header = replace(self.header, settings={**self.header.settings, key: text})
