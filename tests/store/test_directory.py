"""The directory store's own promises: durability, full and read-only file systems, strangers' files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit._util import files
from layerkit.errors import CorruptError, DeniedError, MissingError, NoSpaceError, UnavailableError
from layerkit.store.directory import DirectoryStore


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def files_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.privileged
def test_full_disk_is_no_space_and_loses_nothing(small_disk: Path) -> None:
    objects = DirectoryStore(small_disk / "store")
    objects.put("kept", b"k" * 1000)
    for write in (objects.put, objects.put_if_absent):
        with pytest.raises(NoSpaceError) as caught:
            write("a/large", bytes(2 << 20))
        assert "large" in caught.value.where
    with pytest.raises(NoSpaceError):
        objects.put("kept", bytes(2 << 20))
    assert objects.get("kept") == b"k" * 1000
    assert objects.stat("a/large") is None
    assert files_below(small_disk) == [small_disk / "store/kept"]
    assert objects.put_if_absent("a/small", bytes(1000))


@pytest.mark.privileged
def test_read_only_file_system_is_denied(small_disk: Path) -> None:
    objects = DirectoryStore(small_disk / "store")
    objects.put("a/kept", b"k")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for call in (
        lambda: objects.put("a/b", b"x"),
        lambda: objects.put_if_absent("a/b", b"x"),
        lambda: objects.put("new/b", b"x"),
        lambda: objects.delete("a/kept"),
    ):
        with pytest.raises(DeniedError):
            call()
    assert objects.get("a/kept") == b"k"
    assert objects.put_if_absent("a/kept", b"other") is False
    assert [found.key for found in objects.list("")] == ["a/kept"]


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """This thread as a user without privileges, and a folder that the user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="layerkit-user-"))
    folder.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    shutil.rmtree(folder)


def test_l17_permissions_are_denied_not_missing(ordinary_user: Path) -> None:
    objects = DirectoryStore(ordinary_user / "store")
    objects.put("a/b", b"x")
    folder = ordinary_user / "store/a"
    for mode, calls in (
        (0, [lambda: objects.get("a/b"), lambda: objects.stat("a/b"), lambda: list(objects.list("a/"))]),
        (0o555, [lambda: objects.put("a/c", b""), lambda: objects.delete("a/b")]),
    ):
        folder.chmod(mode)
        for call in calls:
            with pytest.raises(DeniedError):
                call()
        folder.chmod(0o755)
    assert objects.get("a/b") == b"x"


def test_l17_a_store_that_is_not_mounted_is_unavailable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    DirectoryStore(root).put("layerkit-store.json", b"{}")
    objects = DirectoryStore(root, marker="layerkit-store.json")
    objects.put("a/b", b"x")
    with pytest.raises(MissingError):
        objects.get("a/c")
    root.rename(tmp_path / "away")
    root.mkdir()
    for call in (
        lambda: objects.get("a/b"),
        lambda: objects.stat("a/b"),
        lambda: list(objects.list("a/")),
        lambda: objects.put("new/x", b"x"),
        lambda: objects.put_if_absent("a/b", b"x"),
        lambda: objects.delete("a/b"),
    ):
        with pytest.raises(UnavailableError):
            call()
    assert list(root.iterdir()) == []
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert objects.get("a/b") == b"x"


def test_strangers_files_are_no_objects(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path / "store")
    objects.put("a/b", b"x")
    folder = tmp_path / "store/a"
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "odd name").write_bytes(b"")
    os.mkfifo(folder / "fifo")
    with pytest.raises(CorruptError, match="symbolic link"):
        objects.get("a/link")
    with pytest.raises(MissingError):
        objects.get("a/fifo")
    assert [found.key for found in objects.list("")] == ["a/b"]


def test_stale_temporary_files_are_swept_by_age(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path / "store")
    assert objects.sweep_stale() == 0
    objects.put("a/b", b"x")
    old, young = tmp_path / "store/a/.tmp-00", tmp_path / "store/.tmp-01"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert [found.key for found in objects.list("")] == ["a/b"]
    assert objects.sweep_stale() == 1
    assert files_below(tmp_path) == [young, tmp_path / "store/a/b"]
    assert objects.sweep_stale(min_age_s=0) == 1
    assert objects.get("a/b") == b"x"


def test_l10_data_is_synced_before_the_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def traced(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            what = args[0]
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
            kind = "folder" if os.path.isdir(path) else "file"
            events.append(f"{name} {kind}")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    objects = DirectoryStore(tmp_path)
    objects.put("a/first", b"x")
    for name in ("fsync", "link", "rename", "write", "unlink"):
        traced(name)
    objects.put_if_absent("a/b", b"x")
    assert events == ["write file", "fsync file", "link file", "unlink file", "fsync folder"]
    events.clear()
    objects.put("a/b", b"y")
    assert events == ["write file", "fsync file", "rename file", "fsync folder"]
    events.clear()
    assert objects.put_if_absent("a/b", b"z") is False
    assert events == ["fsync folder"], "the winner's entry may not be durable yet"


def test_nfs_finds_its_own_link_when_the_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def sent_twice(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError

    monkeypatch.setattr(files.os, "link", sent_twice)
    assert DirectoryStore(tmp_path).put_if_absent("a/b", b"x") is True
