"""Facts: ELF files against readelf, scripts, packages, the JSON form, merging of steps, hostile bytes."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.errors import CorruptError, UnsupportedError
from layerkit.layer.elf import ElfFacts, read_elf
from layerkit.layer.facts import (
    FactKind,
    Facts,
    FactsCollector,
    FileFacts,
    PackageFacts,
    ScriptFacts,
    path_bytes,
    path_text,
    read_fact,
    wanted,
)
from layerkit.layer.packages import Package, read_dpkg, read_python_metadata
from layerkit.layer.whiteouts import make_whiteout, set_opaque
from tests.layer.layer_trees import directory, file, symlink


def elf_of(path: Path | str) -> ElfFacts:
    facts = read_fact(FactKind.ELF, Path(path).read_bytes())
    assert isinstance(facts, ElfFacts)
    return facts


def compiled(folder: Path, *flags: str, source: str = "int main(void) { return 0; }\n") -> Path:
    (folder / "x.c").write_text(source)
    subprocess.run(["cc", "-o", folder / "x", folder / "x.c", *flags], check=True)
    return folder / "x"


def readelf(*argv: object) -> str:
    return subprocess.run(["readelf", "-W", *map(str, argv)], capture_output=True, text=True, check=True).stdout


def system_elf_files() -> list[Path]:
    folders = [Path("/usr/bin"), *Path("/usr/lib").glob("*-linux-gnu")]
    found = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".o"]
    return [path for path in found if path.open("rb").read(4) == b"\x7fELF"][::12][:60]


def test_elf_facts_agree_with_readelf() -> None:
    files = system_elf_files()
    assert files
    for path in files:
        facts, dynamic, versions = elf_of(path), readelf("-d", "-l", path), readelf("-V", path)
        assert list(facts.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic), path
        assert [facts.soname] == (re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) or [""]), path
        assert [facts.interpreter] == (re.findall(r"interpreter: (.*)\]", dynamic) or [""]), path
        assert ":".join(facts.runpath) == "".join(re.findall(r"\(RUNPATH\).*\[(.*)\]", dynamic)), path
        needs = versions.partition("Version needs section")[2]
        numbers = [tuple(map(int, text.split("."))) for text in re.findall(r"Name: GLIBC_([0-9.]+)\s", needs)]
        assert facts.needs.get("GLIBC", "") == ".".join(map(str, max(numbers, default=()))), path


def test_libc_flavours(tmp_path: Path) -> None:
    dynamic = elf_of(compiled(tmp_path))
    assert dynamic.libc == "glibc"
    assert dynamic.needed == ("libc.so.6",)
    assert dynamic.interpreter.startswith("/lib")
    assert elf_of(compiled(tmp_path, "-static")).libc == "static"
    assert elf_of(compiled(tmp_path, "-static-pie")).libc == "static"
    assert elf_of(compiled(tmp_path, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")).libc == "musl"
    assert elf_of(compiled(tmp_path, "-shared", "-nostdlib", "-fPIC")).libc == ""


def test_run_paths_soname_and_machine(tmp_path: Path) -> None:
    new = elf_of(
        compiled(tmp_path, "-shared", "-fPIC", "-Wl,-soname,libx.so.1", "-Wl,--enable-new-dtags,-rpath,$ORIGIN:/b")
    )
    assert (new.soname, new.runpath, new.rpath) == ("libx.so.1", ("$ORIGIN", "/b"), ())
    old = elf_of(compiled(tmp_path, "-Wl,--disable-new-dtags,-rpath,/a"))
    assert (old.rpath, old.runpath, old.soname) == (("/a",), (), "")
    assert new.machine == os.uname().machine
    assert new.bits == 64


def test_libc_says_which_glibc_it_is() -> None:
    libc = elf_of(next(iter(Path("/usr/lib").glob("*-linux-gnu/libc.so.6"))))
    version = os.confstr("CS_GNU_LIBC_VERSION")
    assert version is not None
    assert version.split()[1].startswith(libc.defines["GLIBC"])


def test_object_files_and_cut_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int x;\n")
    subprocess.run(["cc", "-c", "-o", tmp_path / "x.o", tmp_path / "x.c"], check=True)
    assert read_fact(FactKind.ELF, (tmp_path / "x.o").read_bytes()) is None
    whole = compiled(tmp_path).read_bytes()
    for size in (4, 5, 51, 63, 64, 200, 700):
        assert read_fact(FactKind.ELF, whole[:size]) is None


def test_big_endian_32_bit() -> None:
    """An ELF made by hand: a big-endian 32-bit program with an interpreter."""
    interpreter = b"/lib/ld.so.1\0"
    head = b"\x7fELF\1\2\1" + bytes(9) + struct.pack(">HHIIIIIHHHHHH", 2, 8, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    phdr = struct.pack(">IIIIIIII", 3, 84, 84, 84, len(interpreter), len(interpreter), 4, 1)
    facts = read_fact(FactKind.ELF, head + phdr + interpreter)
    assert isinstance(facts, ElfFacts)
    assert (facts.machine, facts.bits, facts.interpreter, facts.libc) == ("mips", 32, "/lib/ld.so.1", "")


def test_little_is_read_of_a_large_file(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    os.truncate(path, 5 << 30)
    read: list[int] = []
    with path.open("rb") as stream:

        def read_at(offset: int, length: int) -> bytes:
            read.append(length)
            return os.pread(stream.fileno(), length, offset)

        assert read_elf(read_at) is not None
    assert sum(read) < 1 << 20


SAMPLE = Path(sys.executable).resolve().read_bytes()[: 64 << 10]


@given(
    st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=8)), max_size=12), st.integers(0, 64 << 10)
)
@settings(max_examples=300, deadline=2000)
def test_l32_fuzzed_elf_files_neither_raise_nor_hang(patches: list[tuple[int, bytes]], size: int) -> None:
    data = bytearray(SAMPLE)
    for at, patch in patches:
        data[at : at + len(patch)] = patch
    for cut in (bytes(data), bytes(data[:size])):
        read_fact(FactKind.ELF, cut)


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_l32_fuzzed_texts_neither_raise_nor_hang(data: bytes) -> None:
    for kind in FactKind:
        read_fact(kind, data)
    read_fact(FactKind.SCRIPT, b"#!" + data)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"#!/bin/sh\necho\n", ScriptFacts("/bin/sh")),
        (b"#! /usr/bin/env python3 -u\r\n", ScriptFacts("/usr/bin/env", "python3 -u")),
        (b"#!\n/bin/sh", None),
        (b"#!/bin/\xff", ScriptFacts("/bin/\ufffd")),
    ],
)
def test_scripts(head: bytes, expected: FileFacts | None) -> None:
    assert read_fact(FactKind.SCRIPT, head) == expected


def test_wanted() -> None:
    assert wanted(b"usr/bin/x", b"\x7fELF\2") is FactKind.ELF
    assert wanted(b"usr/bin/x", b"#!/bin/sh") is FactKind.SCRIPT
    assert wanted(b"usr/lib/x.py", b"#!/bin/sh", 0o644) is None
    assert wanted(b"var/lib/dpkg/status", b"Package: a") is FactKind.DPKG
    assert wanted(b"var/lib/dpkg/status.d/tzdata", b"") is FactKind.DPKG
    assert wanted(b"var/lib/dpkg/status-old", b"") is None
    assert wanted(b"var/lib/dpkg/status.d/tzdata.md5sums", b"") is None
    assert wanted(b"usr/lib/python3/dist-packages/a-1.dist-info/METADATA", b"") is FactKind.PYTHON
    assert wanted(b"usr/share/METADATA", b"Name: x") is None


def test_dpkg_status() -> None:
    data = (
        b"Package: b\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.3-4\n"
        b"Description: x\n Version: 9\n\n"
        b"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        b"Package: half\nStatus: install ok half-installed\nVersion: 1\n\n\n"
        b"nonsense\n\nPackage: a\nVersion: 2\n"
    )
    assert read_dpkg(data) == (Package("a", "2"), Package("b", "1:2.3-4", "amd64"))


def test_python_metadata() -> None:
    data = b"Metadata-Version: 2.1\nName: Six\nVersion: 1.16.0\n\nName: not this\n"
    assert read_python_metadata(data) == (Package("Six", "1.16.0"),)
    assert read_python_metadata(b"Name: x\n\nVersion: 1\n") == ()


def test_this_machine_has_packages() -> None:
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("no dpkg on this machine")
    facts = read_fact(FactKind.DPKG, Path("/var/lib/dpkg/status").read_bytes())
    assert isinstance(facts, PackageFacts)
    assert "dpkg" in {package.name for package in facts.packages}


def sample_facts() -> Facts:
    elf = ElfFacts("x86_64", 64, "liba.so.1", "", ("libc.so.6",), (), ("$ORIGIN",), "glibc", {"GLIBC": "2.34"}, {})
    return Facts(
        {
            b"usr/lib/liba.so.1": elf,
            b"usr/bin/caf\xe9%": ScriptFacts("/usr/bin/env", "python3"),
            b"var/lib/dpkg/status": PackageFacts("dpkg", (Package("a", "1", "all"), Package("b", "2"))),
        }
    )


def test_facts_come_back_and_are_canonical() -> None:
    facts = sample_facts()
    data = facts.to_bytes()
    assert Facts.from_bytes(data) == facts
    assert Facts(dict(reversed(facts.files.items()))).to_bytes() == data
    assert Facts.from_bytes(Facts().to_bytes()) == Facts()
    assert facts.packages("dpkg") == [Package("a", "1", "all"), Package("b", "2")]
    assert list(facts.elf) == [b"usr/lib/liba.so.1"]
    assert list(facts.scripts) == [b"usr/bin/caf\xe9%"]


@given(st.binary(max_size=40))
def test_b33_paths_come_back(path: bytes) -> None:
    text = path_text(path)
    text.encode()
    assert path_bytes(text) == path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"files":{}}',
        b'{"formatVersion":1,"files":[]}',
        b'{"formatVersion":1,"files":{"a":{"type":"other"}}}',
        b'{"formatVersion":1,"files":{"a":{"type":"script"}}}',
        b'{"formatVersion":1,"files":{"a":{"type":"script","interpreter":1}}}',
        b'{"formatVersion":1,"files":{"a":{"type":"script","interpreter":"x","more":1}}}',
        b'{"formatVersion":1,"files":{"%zz":{"type":"script","interpreter":"x"}}}',
        b'{"formatVersion":1,"extra":1}',
    ],
)
def test_l32_hostile_facts_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        Facts.from_bytes(data)


def test_facts_of_a_newer_layerkit_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="format version 2"):
        Facts.from_bytes(b'{"formatVersion":2,"anything":1}')


def test_collector_knows_every_name_of_a_hard_link() -> None:
    linked = file(b"#!/bin/sh\n", 0o755)
    tree = directory({b"a": linked, b"d": directory({b"b": linked}), b"c": file(b"text")})
    collector = FactsCollector()
    for path, data in ((b"a", b"#!/bin/sh\n"), (b"gone", b"#!/bin/sh\n")):
        kind = collector.wants(path, data, 0o755)
        assert kind is FactKind.SCRIPT
        assert collector.add(path, kind, data) == ScriptFacts("/bin/sh")
    assert collector.wants(b"c", b"text", 0o755) is None
    assert sorted(collector.finish(tree).files) == [b"a", b"d/b"]


def test_steps_merge_and_what_they_hide_is_gone() -> None:
    script = ScriptFacts("/bin/sh")
    names = [b"kept", b"replaced", b"removed", b"d/in-removed", b"o/in-opaque", b"l/under-link", b"again"]
    lower = Facts(dict.fromkeys(names, script) | {b"elsewhere": script})
    opaque = directory({b"new": file()})
    set_opaque(opaque)
    middle_tree = directory(
        {
            b"replaced": file(b"text"),
            b"removed": make_whiteout(),
            b"d": make_whiteout(),
            b"o": opaque,
            b"l": symlink(b"k"),
        }
    )
    upper = Facts({b"again": ScriptFacts("/bin/bash")})
    upper_tree = directory({b"again": file(b"2")})
    final = directory(
        {b"kept": file(), b"replaced": file(b"text"), b"d": directory({b"in-removed": file()}),
         b"o": directory({b"in-opaque": file()}), b"again": file(b"2")}
    )  # fmt: skip
    steps = [(lower, directory({})), (Facts(), middle_tree), (upper, upper_tree)]
    assert Facts.merged(steps, final).files == {b"kept": script, b"again": ScriptFacts("/bin/bash")}
