"""Directories whose files are read when they are wanted, and again, and the cache of what they held."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from layerkit.build.file_cache import FileCache, KnownFile
from layerkit.build.file_reader import FileReader
from layerkit.build.host_tree import HostTree
from layerkit.errors import SourceChangedError
from layerkit.layer.facts import FactsCollector, ScriptFacts
from layerkit.layer.tree import Chunk, Content, Inode, find, walk
from tests.support.chunk_bag import ChunkBag


def inodes(root: Inode) -> list[Inode]:
    return [inode for _, inode in walk(root)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name, data in (("empty", b""), ("one", b"x"), ("sub/one", b"x"), ("small", b"s" * 200), ("big", b"b" * 9000)):
        (folder / name).write_bytes(data)
    (folder / "script").write_bytes(b"#!/bin/sh\n")
    (folder / "script").chmod(0o755)
    os.link(folder / "big", folder / "sub/link")
    return folder


def reader(bag: ChunkBag, facts: FactsCollector | None = None) -> FileReader:
    return FileReader(bag.ingester(), facts or FactsCollector(), None)


def test_files_are_read_when_they_are_wanted(folder: Path) -> None:
    tree = HostTree(folder)
    bag, facts = ChunkBag(), FactsCollector()
    big, script = find(tree.root, b"big"), find(tree.root, b"script")
    assert big is not None
    assert script is not None
    assert bag.chunks == {}
    tree.fill([big, script], reader(bag, facts))
    assert bag.read(big.body) == b"b" * 9000
    assert len(bag.chunks) == 1
    assert isinstance(facts.finish(tree.root).files[b"script"], ScriptFacts)
    tree.fill(inodes(tree.root), reader(bag))
    assert {path: bag.read(inode.body) for path, inode in walk(tree.root) if inode.is_regular} == {
        b"big": b"b" * 9000, b"empty": b"", b"one": b"x", b"script": b"#!/bin/sh\n", b"small": b"s" * 200,
        b"sub/link": b"b" * 9000, b"sub/one": b"x",
    }  # fmt: skip
    assert big is find(tree.root, b"sub/link")


def test_contents_once_more(folder: Path) -> None:
    tree = HostTree(folder)
    bag = ChunkBag()
    assert list(tree.contents(lambda content: True)) == []  # nothing has been read yet
    tree.fill(inodes(tree.root), reader(bag))
    found = {path: b"".join(pieces) for path, _, pieces in tree.contents(lambda content: True)}  # type: ignore[arg-type]
    assert found == {b"big": b"b" * 9000, b"sub/link": b"b" * 9000}


@pytest.mark.parametrize("change", ["rewrite", "remove", "symlink", "folder", "parent"])
def test_a_file_that_changed_since_the_scan_is_named(folder: Path, change: str) -> None:
    tree = HostTree(folder)
    path = folder / "sub/one"
    path.unlink()
    if change == "rewrite":
        path.write_bytes(b"y")
    elif change == "symlink":
        path.symlink_to("../one")
    elif change == "folder":
        path.mkdir()
    elif change == "parent":
        (folder / "sub").rename(folder / "old")
        (folder / "sub").symlink_to("old")
    with pytest.raises(SourceChangedError) as caught:
        tree.fill(inodes(tree.root), reader(ChunkBag()))
    assert "sub/" in caught.value.where


def test_two_files_of_one_byte_are_two_files(folder: Path) -> None:
    """CPython keeps one object for all equal strings of one byte; the files behind them differ."""
    tree = HostTree(folder)
    (folder / "one").write_bytes(b"y")
    with pytest.raises(SourceChangedError) as caught:
        tree.fill(inodes(tree.root), reader(ChunkBag()))
    assert caught.value.where == "one"


# The cache of known files.


class Found(NamedTuple):
    """What FileCache looks at of a stat result."""

    st_dev: int = 1
    st_ino: int = 2
    st_size: int = 3000
    st_mtime_ns: int = 10**18
    st_ctime_ns: int = 10**18


BODY = Content(3000, (Chunk(1000, b"\x01" * 32), Chunk(2000, b"")))


def cached(status: object, known: KnownFile, fd: int) -> dict[bytes, bytes]:
    cache = FileCache({}.get)
    cache.add(fd, status, known)  # type: ignore[arg-type]
    return dict(cache.new)


@pytest.fixture
def fd(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY)


@pytest.mark.parametrize("known", [KnownFile(BODY, None), KnownFile(b"s" * 200, None), KnownFile(b"", None),
                                   KnownFile(b"#!/bin/sh -e", ScriptFacts("/bin/sh", "-e"))])  # fmt: skip
def test_what_is_remembered_comes_back(fd: int, known: KnownFile) -> None:
    size = len(known.body) if isinstance(known.body, bytes) else known.body.size
    records = cached(Found(st_size=size), known, fd)
    found = FileCache(records.get).find(fd, Found(st_size=size))  # type: ignore[arg-type]
    assert found is not None
    assert found.fact == known.fact
    assert (found.body.chunks if isinstance(found.body, Content) else found.body) == (
        known.body.chunks if isinstance(known.body, Content) else known.body
    )


@pytest.mark.parametrize("field", Found._fields)
def test_b01_whatever_changes_makes_a_file_unknown(fd: int, field: str) -> None:
    records = cached(Found(), KnownFile(BODY, None), fd)
    other = Found()._replace(**{field: getattr(Found(), field) + 1})
    assert FileCache(records.get).find(fd, other) is None  # type: ignore[arg-type]


def test_a_file_of_this_moment_is_not_remembered(fd: int) -> None:
    now = time.time_ns()
    for ctime in (now, now - 10**9, now + 10**12):
        assert cached(Found(st_ctime_ns=ctime), KnownFile(BODY, None), fd) == {}


def test_b30_times_beyond_64_bits_of_nanoseconds(fd: int) -> None:
    far = Found(st_mtime_ns=(1 << 34) * 10**9, st_ctime_ns=-(1 << 34) * 10**9)
    assert FileCache(cached(far, KnownFile(BODY, None), fd).get).find(fd, far) is not None  # type: ignore[arg-type]


def test_damaged_records_are_unknown_files(fd: int) -> None:
    (key, value), *_ = cached(Found(), KnownFile(BODY, ScriptFacts("/bin/sh")), fd).items()
    damaged = [value[:cut] for cut in range(len(value))] + [b"\xff" + value[1:], value[:2] + b"\xff" * 9 + value[11:]]
    for record in damaged:
        found = FileCache({key: record}.get).find(fd, Found())  # type: ignore[arg-type]
        assert found is None or found.body.size == 3000  # type: ignore[union-attr]
    assert FileCache({key: damaged[3]}.get).find(fd, Found()) is None  # type: ignore[arg-type]


@pytest.mark.privileged
def test_b01_files_of_read_only_images_are_not_remembered(tmp_path: Path) -> None:
    """Their ctimes are as old as the image says, and the next image gets the same device number."""
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    try:
        (mount / "f").write_bytes(b"x" * 1000)
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        fd = os.open(mount / "f", os.O_RDONLY)
        assert cached(Found(st_dev=os.fstat(fd).st_dev), KnownFile(BODY, None), fd) == {}
        os.close(fd)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_modes_and_times_come_from_the_folder(folder: Path) -> None:
    os.utime(folder / "small", ns=(0, -1_500_000_000))
    (folder / "small").chmod(0o4755)
    inode = find(HostTree(folder).root, b"small")
    assert inode is not None
    assert (inode.mtime_ns, stat.S_IMODE(inode.mode)) == (-1_500_000_000, 0o4755)
