"""Facts: what checks need to know of a layer without its data (docs/formats/facts.md); imported by rank 2 up.

`wanted` and `read_fact` are pure readers over untrusted bytes; FactsCollector and Facts are plain values, one thread
at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import CorruptError
from layerkit.layer.elf import MAGIC, ElfFacts, ReadAt, read_elf
from layerkit.layer.json_fields import Fields
from layerkit.layer.packages import (
    METADATA_MAX_BYTES,
    PACKAGES_MAX_BYTES,
    Package,
    is_dpkg_database,
    is_python_metadata,
    read_dpkg,
    read_python_metadata,
)
from layerkit.layer.tree import Inode, find, walk
from layerkit.layer.whiteouts import is_opaque

FORMAT_VERSION = 1
HEAD_SIZE = 256
"""How many bytes of a file's beginning `wanted` should see: as many as the kernel reads of a script's first line."""

_EXECUTABLE = 0o111


class FactKind(enum.Enum):
    """What there is to learn from a file."""

    ELF = "elf"
    SCRIPT = "script"
    DPKG = "dpkg"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """The first line of a script: interpreter, and the rest of the line as the kernel passes it."""

    interpreter: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """The packages that one file lists; `manager` is dpkg or python."""

    manager: str
    packages: tuple[Package, ...]


FileFacts = ElfFacts | ScriptFacts | PackageFacts


def wanted(path: bytes, head: bytes, mode: int = _EXECUTABLE) -> FactKind | None:
    """What there is to learn from a regular file; None for nearly all.

    Args:
        path: within the layer, without a leading slash.
        head: its first bytes, HEAD_SIZE or all.
        mode: its mode; a text with `#!` that nobody can execute is no script.
    """
    if head[:4] == MAGIC:
        return FactKind.ELF
    if head[:2] == b"#!":
        return FactKind.SCRIPT if mode & _EXECUTABLE else None
    if path.startswith(b"var/lib/dpkg/") and is_dpkg_database(path):
        return FactKind.DPKG
    if is_python_metadata(path):
        return FactKind.PYTHON
    return None


def read_fact(kind: FactKind, source: bytes | ReadAt) -> FileFacts | None:
    """Learn it; None when the file turns out to say nothing.

    Args:
        kind: what `wanted` said.
        source: the whole file, or a function that reads (offset, length) of it. Of ELF files little is read.
    """
    read_at = _reader_of(source) if isinstance(source, bytes) else source
    if kind is FactKind.ELF:
        return read_elf(read_at)
    if kind is FactKind.SCRIPT:
        return _read_script(read_at(0, HEAD_SIZE))
    if kind is FactKind.PYTHON:
        return PackageFacts("python", read_python_metadata(read_at(0, METADATA_MAX_BYTES)))
    data = read_at(0, PACKAGES_MAX_BYTES + 1)
    return PackageFacts("dpkg", read_dpkg(data)) if len(data) <= PACKAGES_MAX_BYTES else None


def _reader_of(data: bytes) -> ReadAt:
    return lambda offset, length: data[offset : offset + length] if length > 0 else b""


def _read_script(head: bytes) -> ScriptFacts | None:
    """The first line as the kernel cuts it (fs/binfmt_script.c)."""
    words = head[2:].partition(b"\n")[0].replace(b"\0", b" ").strip(b" \t\r").split(None, 1)
    if not words:
        return None
    argument = words[1] if len(words) > 1 else b""
    return ScriptFacts(words[0].decode("utf-8", "replace"), argument.decode("utf-8", "replace"))


@dataclass(slots=True)
class Facts:
    """Facts by path."""

    files: dict[bytes, FileFacts] = field(default_factory=dict)

    @property
    def elf(self) -> dict[bytes, ElfFacts]:
        """The ELF files."""
        return {path: fact for path, fact in self.files.items() if isinstance(fact, ElfFacts)}

    @property
    def scripts(self) -> dict[bytes, ScriptFacts]:
        """The scripts."""
        return {path: fact for path, fact in self.files.items() if isinstance(fact, ScriptFacts)}

    def packages(self, manager: str) -> list[Package]:
        """All packages of one manager, sorted."""
        found: set[Package] = set()
        for fact in self.files.values():
            if isinstance(fact, PackageFacts) and fact.manager == manager:
                found.update(fact.packages)
        return sorted(found)

    @classmethod
    def merged(cls, lower_to_upper: Sequence[tuple[Facts, Inode]], tree: Inode) -> Facts:
        """The facts of a layer that is put together from steps.

        Args:
            lower_to_upper: each step's facts with its layer tree (whiteouts and all), the lowest first. A path that a
                later step replaced, removed or hid loses its fact even where the new file has none.
            tree: the final tree; only paths of regular files in it stay.
        """
        files: dict[bytes, FileFacts] = {}
        for number, (facts, _) in enumerate(lower_to_upper):
            above = [step for _, step in lower_to_upper[number + 1 :]]
            for path, fact in facts.files.items():
                if not any(_hides(step, path) for step in above):
                    files[path] = fact
        return cls(files).restricted_to(tree)

    def restricted_to(self, tree: Inode) -> Facts:
        """The facts of paths that are regular files in a tree."""
        files = {}
        for path, fact in self.files.items():
            inode = find(tree, path)
            if inode is not None and inode.is_regular:
                files[path] = fact
        return Facts(files)

    def to_bytes(self) -> bytes:
        """Canonical JSON; its sha256 is the identity of the facts."""
        files = {path_text(path): to_json(fact) for path, fact in self.files.items()}
        return canonical_json({"formatVersion": FORMAT_VERSION, "files": files})

    @classmethod
    def from_bytes(cls, data: bytes) -> Facts:
        """Read facts from untrusted bytes.

        Raises:
            CorruptError: no facts.
            UnsupportedError: written by a newer layerkit.
        """
        document = Fields(read_json_object(data, "facts"), "facts")
        document.version("formatVersion", FORMAT_VERSION)
        files: dict[bytes, FileFacts] = {}
        entries = document.object("files")
        if entries is not None:
            for text in entries.names():
                body = entries.object(text)
                if body is not None:
                    files[path_bytes(text)] = from_json(body)
        document.finish()
        return cls(files)


class FactsCollector:
    """Gathers facts while a tree is read."""

    def __init__(self) -> None:
        self._files: dict[bytes, FileFacts] = {}

    def wants(self, path: bytes, head: bytes, mode: int = _EXECUTABLE) -> FactKind | None:
        """`wanted`: whether to `add` this file."""
        return wanted(path, head, mode)

    def add(self, path: bytes, kind: FactKind, source: bytes | ReadAt) -> FileFacts | None:
        """Learn from a file; the fact is returned too, so that a cache can keep it (`to_json`)."""
        fact = read_fact(kind, source)
        self.put(path, fact)
        return fact

    def put(self, path: bytes, fact: FileFacts | None) -> None:
        """A fact that is known already."""
        if fact is not None:
            self._files[path] = fact

    def finish(self, tree: Inode) -> Facts:
        """The facts of a tree; what was learnt under one name of a hard link goes for its other names."""
        known = {find(tree, path): fact for path, fact in self._files.items()}
        known.pop(None, None)
        return Facts({path: known[inode] for path, inode in walk(tree) if inode in known and inode.is_regular})


def _hides(step: Inode, path: bytes) -> bool:
    """Whether a layer decides alone what lies under a path: holds it, removes it, or cuts off what is below."""
    inode = step
    if is_opaque(inode):
        return True
    for name in path.split(b"/"):
        child = inode.entries.get(name)
        if child is None:
            return False
        if not child.is_dir or is_opaque(child):
            return True
        inode = child
    return True


def path_text(path: bytes) -> str:
    """A path as JSON text: UTF-8, with % and every byte that is no UTF-8 written as %XX."""
    text = path.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    if text.isascii():
        return text
    return "".join(f"%{ord(letter) - 0xDC00:02X}" if 0xDC80 <= ord(letter) <= 0xDCFF else letter for letter in text)


def path_bytes(text: str) -> bytes:
    """The inverse of `path_text`; raises CorruptError."""
    if "%" not in text:
        return text.encode()
    first, *rest = text.encode().split(b"%")
    try:
        return first + b"".join(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)
    except ValueError as error:
        raise CorruptError(f"facts name a path that cannot be read: {text[:200]!r}") from error


def to_json(fact: FileFacts) -> dict[str, object]:
    """One fact as a JSON object; empty fields are left out."""
    if isinstance(fact, ElfFacts):
        value: dict[str, object] = {
            "type": "elf", "machine": fact.machine, "bits": fact.bits, "soname": fact.soname,
            "interpreter": fact.interpreter, "needed": list(fact.needed), "rpath": list(fact.rpath),
            "runpath": list(fact.runpath), "libc": fact.libc, "needs": fact.needs, "defines": fact.defines,
        }  # fmt: skip
    elif isinstance(fact, ScriptFacts):
        value = {"type": "script", "interpreter": fact.interpreter, "argument": fact.argument}
    else:
        value = {"type": "packages", "manager": fact.manager, "packages": [package_fields(p) for p in fact.packages]}
    return {name: part for name, part in value.items() if part not in ("", [], {})}


def package_fields(package: Package) -> dict[str, str]:
    """One package as a JSON object."""
    return {name: text for name, text in package._asdict().items() if text}


def from_json(fields: Fields) -> FileFacts:
    """The inverse of `to_json`; raises CorruptError."""
    kind = fields.text("type")
    fact: FileFacts
    if kind == "elf":
        fact = ElfFacts(
            machine=fields.text("machine"), bits=fields.integer("bits"), soname=fields.text("soname", ""),
            interpreter=fields.text("interpreter", ""), needed=fields.texts("needed"), rpath=fields.texts("rpath"),
            runpath=fields.texts("runpath"), libc=fields.text("libc", ""), needs=fields.text_map("needs"),
            defines=fields.text_map("defines"),
        )  # fmt: skip
    elif kind == "script":
        fact = ScriptFacts(fields.text("interpreter"), fields.text("argument", ""))
    elif kind == "packages":
        fact = PackageFacts(fields.text("manager"), tuple(_packages(fields.objects("packages"))))
    else:
        raise CorruptError(f"facts of an unknown type: {kind[:100]!r}")
    fields.finish()
    return fact


def _packages(entries: Iterable[Fields]) -> Iterable[Package]:
    for entry in entries:
        package = Package(entry.text("name"), entry.text("version"), entry.text("arch", ""))
        entry.finish()
        yield package
