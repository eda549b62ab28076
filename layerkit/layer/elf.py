"""What an ELF file needs and offers, read from its headers alone; imported by `layer.facts`. Pure; any thread.

Reads by offset and with bounds: the file may be hostile, and most of it is never looked at. Layouts: the generic ABI
(gabi, chapters 4 and 5) and, for symbol versions, the LSB core specification, chapter 10.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> the bytes there; fewer at the end of the file, none behind it."""

MAGIC = b"\x7fELF"

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_ET_EXEC, _ET_DYN = 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 14, 15, 29
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DT_FLAGS_1, _DF_1_PIE = 0x6FFFFFFB, 0x08000000
_HEADERS_MAX = 512
_DYNAMIC_MAX_BYTES = 64 << 10
_VERSIONS_MAX_BYTES = 256 << 10
_VERSIONS_MAX = 4096
_STRING_MAX = 4096
_VERSIONED = re.compile(r"(GLIBC|GLIBCXX)_(\d{1,6}(?:\.\d{1,6}){0,3})")
_MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 43: "sparc64", 62: "x86_64",
             183: "aarch64", 243: "riscv64", 258: "loongarch64"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """Facts about one ELF file.

    Attributes:
        machine: `x86_64`, `aarch64`, …, or `em-<number>`.
        bits: 32 or 64.
        soname, interpreter: '' where there is none.
        needed: libraries, in the file's order.
        rpath, runpath: the folders as they stand there, `$ORIGIN` and all.
        libc: glibc, musl, static (a program that loads nothing), or '' where the file does not say.
        needs: highest symbol version needed of GLIBC and GLIBCXX.
        defines: highest symbol version defined of them (that is how libc.so.6 says which glibc it is).
    """

    machine: str
    bits: int
    soname: str
    interpreter: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    libc: str
    needs: dict[str, str]
    defines: dict[str, str]


class _NotElf(Exception):
    """The bytes are no ELF file that can be followed."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The shape of this file's records: byte order and word size."""

    phdr: struct.Struct
    dyn: struct.Struct
    order: str
    is_64: bool


@dataclass(frozen=True, slots=True)
class _Dynamic:
    """The dynamic section: tags to values (the last one counts), the needed and where the strings are."""

    values: dict[int, int]
    needed: tuple[int, ...]


_FORMS = {
    (bits, order): _Form(
        struct.Struct(order + ("IIQQQQQQ" if bits == 2 else "IIIIIIII")),
        struct.Struct(order + ("qQ" if bits == 2 else "iI")),
        order,
        bits == 2,
    )
    for bits in (1, 2)
    for order in "<>"
}


def read_elf(read_at: ReadAt) -> ElfFacts | None:
    """The facts of an ELF file; None when it is no program or library, or cannot be followed.

    Never raises on bad bytes: an odd file in an image is not an error of the image.
    """
    try:
        return _read(read_at)
    except (_NotElf, struct.error):
        return None


def _read(read_at: ReadAt) -> ElfFacts:
    head = read_at(0, 64)
    if len(head) < 52 or head[:4] != MAGIC:
        raise _NotElf
    form = _FORMS.get((head[4], "<" if head[5] == 1 else ">" if head[5] == 2 else ""))
    if form is None:
        raise _NotElf
    kind, machine = struct.unpack_from(form.order + "HH", head, 16)
    if kind not in (_ET_EXEC, _ET_DYN):
        raise _NotElf
    segments = _segments(read_at, head, form)
    interpreter = ""
    dynamic = _Dynamic({}, ())
    for segment, offset, _, size in segments:
        if segment == _PT_INTERP:
            interpreter = _text(read_at(offset, min(size, _STRING_MAX)))
        elif segment == _PT_DYNAMIC:
            dynamic = _read_dynamic(read_at(offset, min(size, _DYNAMIC_MAX_BYTES)), form)
    strings = _Strings(read_at, segments, dynamic)
    needs = _highest(_verneed(read_at, segments, dynamic, form, strings))
    needed = tuple(strings.get(at) for at in dynamic.needed)
    is_pie = bool(dynamic.values.get(_DT_FLAGS_1, 0) & _DF_1_PIE)
    is_static = not interpreter and not needed and (kind == _ET_EXEC or is_pie)
    return ElfFacts(
        machine=_MACHINES.get(machine, f"em-{machine}"),
        bits=64 if form.is_64 else 32,
        soname=strings.find(_DT_SONAME),
        interpreter=interpreter,
        needed=needed,
        rpath=_folders(strings.find(_DT_RPATH)),
        runpath=_folders(strings.find(_DT_RUNPATH)),
        libc="static" if is_static else _libc(interpreter, needed, needs),
        needs=needs,
        defines=_highest(_verdef(read_at, segments, dynamic, form, strings)),
    )


def _segments(read_at: ReadAt, head: bytes, form: _Form) -> list[tuple[int, int, int, int]]:
    """(type, file offset, address, file size) of the program headers."""
    (table,) = struct.unpack_from(form.order + ("Q" if form.is_64 else "I"), head, 32 if form.is_64 else 28)
    size, count = struct.unpack_from(form.order + "HH", head, 54 if form.is_64 else 42)
    if size != form.phdr.size or not 0 < count <= _HEADERS_MAX:
        raise _NotElf
    data = read_at(table, size * count)
    if len(data) != size * count:
        raise _NotElf
    if form.is_64:
        return [(row[0], row[2], row[3], row[5]) for row in form.phdr.iter_unpack(data)]
    return [(row[0], row[1], row[2], row[4]) for row in form.phdr.iter_unpack(data)]


def _read_dynamic(data: bytes, form: _Form) -> _Dynamic:
    values: dict[int, int] = {}
    needed = []
    whole = len(data) - len(data) % form.dyn.size
    for tag, value in form.dyn.iter_unpack(memoryview(data)[:whole]):
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        else:
            values[tag] = value
    return _Dynamic(values, tuple(needed))


def _file_offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    for segment, offset, start, size in segments:
        if segment == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise _NotElf


class _Strings:
    """The dynamic string table, read string by string: it may be megabytes."""

    def __init__(self, read_at: ReadAt, segments: list[tuple[int, int, int, int]], dynamic: _Dynamic) -> None:
        self._read_at = read_at
        self._values = dynamic.values
        self._size = dynamic.values.get(_DT_STRSZ, 0)
        self._start = _file_offset(segments, dynamic.values[_DT_STRTAB]) if _DT_STRTAB in dynamic.values else 0
        self._small = read_at(self._start, self._size) if self._size <= 64 << 10 else None

    def get(self, at: int) -> str:
        """The string at an offset into the table."""
        if not 0 <= at < self._size:
            raise _NotElf
        if self._small is not None:
            return _text(self._small[at : at + _STRING_MAX])
        for length in (128, _STRING_MAX):
            data = self._read_at(self._start + at, min(length, self._size - at))
            if b"\0" in data:
                break
        return _text(data)

    def find(self, tag: int) -> str:
        """The string that a tag of the dynamic section names; '' without the tag."""
        return self.get(self._values[tag]) if tag in self._values else ""


def _verneed(
    read_at: ReadAt, segments: list[tuple[int, int, int, int]], dynamic: _Dynamic, form: _Form, strings: _Strings
) -> set[str]:
    """Names of the symbol versions that the file needs."""
    names: set[str] = set()
    data, count = _version_table(read_at, segments, dynamic, _DT_VERNEED, _DT_VERNEEDNUM)
    need, aux = struct.Struct(form.order + "HHIII"), struct.Struct(form.order + "IHHII")
    at = 0
    for _ in range(count):
        _, entries, _, first, following = need.unpack_from(data, at)
        entry = at + first
        for _ in range(entries):
            if len(names) > _VERSIONS_MAX:
                raise _NotElf
            *_, name, next_entry = aux.unpack_from(data, entry)
            names.add(strings.get(name))
            if not next_entry:
                break
            entry += next_entry
        if not following:
            break
        at += following
    return names


def _verdef(
    read_at: ReadAt, segments: list[tuple[int, int, int, int]], dynamic: _Dynamic, form: _Form, strings: _Strings
) -> set[str]:
    """Names of the symbol versions that the file defines."""
    names: set[str] = set()
    data, count = _version_table(read_at, segments, dynamic, _DT_VERDEF, _DT_VERDEFNUM)
    definition, aux = struct.Struct(form.order + "HHHHIII"), struct.Struct(form.order + "II")
    at = 0
    for _ in range(count):
        *_, first, following = definition.unpack_from(data, at)
        name, _ = aux.unpack_from(data, at + first)
        names.add(strings.get(name))
        if not following:
            break
        at += following
    return names


def _version_table(
    read_at: ReadAt, segments: list[tuple[int, int, int, int]], dynamic: _Dynamic, tag: int, count_tag: int
) -> tuple[bytes, int]:
    count = dynamic.values.get(count_tag, 0)
    if tag not in dynamic.values or not 0 < count <= _VERSIONS_MAX:
        return b"", 0
    return read_at(_file_offset(segments, dynamic.values[tag]), _VERSIONS_MAX_BYTES), count


def _highest(names: set[str]) -> dict[str, str]:
    """The highest version of each family, `GLIBC_2.34` and `GLIBC_2.9` giving `GLIBC: 2.34`."""
    best: dict[str, tuple[int, ...]] = {}
    for name in names:
        if match := _VERSIONED.fullmatch(name):
            version = tuple(int(part) for part in match[2].split("."))
            best[match[1]] = max(best.get(match[1], ()), version)
    return {family: ".".join(map(str, best[family])) for family in sorted(best)}


def _libc(interpreter: str, needed: tuple[str, ...], needs: dict[str, str]) -> str:
    if "ld-musl" in interpreter or any(name.startswith("libc.musl-") for name in needed):
        return "musl"
    if "libc.so.6" in needed or "GLIBC" in needs or "/ld-linux" in interpreter or "/ld64.so" in interpreter:
        return "glibc"
    return ""


def _folders(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(":") if part)


def _text(data: bytes) -> str:
    """Up to the first NUL; bytes that are no UTF-8 become U+FFFD, these strings are for checks, not for opening."""
    return data.partition(b"\0")[0].decode("utf-8", "replace")
