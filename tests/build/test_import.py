"""Imports end to end: a directory or archive becomes a published layer whose every attribute and byte is read back."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layerkit.build.import_layer import import_layer
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.making import MadeLayer
from layerkit.build.stack_view import StackView
from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.build.verify_parts import stored_chunks, verify_parts
from layerkit.errors import InputError, LimitError, SourceChangedError
from layerkit.ids import Platform, Ref
from layerkit.layer.compare import differences
from layerkit.layer.tree import Content, Inode, find, walk
from layerkit.store.store import Store, open_store
from layerkit.store.verify import Verification
from tests.layer.layer_trees import materialise, read_view
from tests.support.random_trees import random_tree

AMD64 = Platform("linux", "amd64")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make devices and owners")


class Importer:
    """A store with its knowledge."""

    def __init__(self, instance: Path) -> None:
        self.instance = instance
        self.store: Store = open_store(create=True)
        self.knowledge = BuildKnowledge(instance / "home", self.store)

    def make(self, source: Path, ref: str = "base/x:1") -> MadeLayer:
        return import_layer(self.store, self.knowledge, source, Ref.parse(ref), AMD64)

    def layer(self, source: Path) -> StoredLayer:
        return StoredLayers(self.store).get(self.make(source).digest)

    def read(self, layer: StoredLayer, path: bytes) -> bytes:
        view = StackView(StoredLayers(self.store), (layer.digest,))
        return b"".join(view.read(view.find(path)[1], "x"))

    def verify(self) -> None:
        run = Verification(self.store.objects, stored_chunks=stored_chunks)
        assert list(run.verify_store()) == []


@pytest.fixture
def importer(instance: Path) -> Importer:
    return Importer(instance)


def tar_of(folder: Path, target: Path, *options: str) -> Path:
    kept = ("--format=posix", "--xattrs", "--xattrs-include=*", "--acls", *options)
    subprocess.run(["tar", "-C", folder, *kept, "-cf", target, "."], check=True, capture_output=True)
    return target


def assert_equal(one: Inode, other: Inode) -> None:
    assert [(found.path, found.kind, found.fields) for found in differences(one, other)][:9] == []


def get(tree: Inode, path: bytes) -> Inode:
    found = find(tree, path)
    assert found is not None, path
    return found


def small_tree(seed: int) -> Inode:
    """A random tree of inline files that a scan keeps whole: no foreign labels, no overlay's xattrs."""
    root = random_tree(seed, size=150).root
    for _, inode in walk(root):
        inode.xattrs = {
            name: value for name, value in inode.xattrs.items()
            if b"overlay" not in name and b"selinux" not in name and b"posix_acl" not in name and len(value) < 2000
            and (not name.startswith(b"user.") or inode.is_dir or inode.is_regular)
        }  # fmt: skip
        inode.mtime_ns = max(-(1 << 31) * 10**9, min(inode.mtime_ns, (1 << 33) * 10**9))
        if isinstance(inode.body, Content):
            inode.body = b"x" * (inode.size % 200)
        if inode.is_symlink:
            inode.body = inode.body[:1000] if isinstance(inode.body, bytes) else b"t"
    return root


@root_only
@pytest.mark.parametrize("seed", range(4))
def test_b17_a_directory_and_its_tar_are_one_digest(importer: Importer, tmp_path: Path, seed: int) -> None:
    """With every attribute as it lies on disk, read back from the store."""
    folder = tmp_path / "folder"
    folder.mkdir()
    materialise(small_tree(seed), folder)
    # Sockets have no place in a tar, and GNU tar knows hard links of files and symlinks only.
    seen = set()
    for path in folder.rglob("*"):
        found = path.lstat()
        is_other = not (path.is_dir() or stat.S_ISREG(found.st_mode) or path.is_symlink())
        if path.is_socket() or (is_other and found.st_ino in seen):
            path.unlink()
        seen.add(found.st_ino)
    materialised = read_view(folder)
    layer = importer.layer(folder)
    assert_equal(materialised, layer.tree)
    assert importer.make(tar_of(folder, tmp_path / "a.tar")).digest == layer.digest
    assert list(verify_parts(StoredLayers(importer.store), layer.digest)) == []


def test_l24_readdir_order_zone_umask_and_place_do_not_matter(instance: Path, tmp_path: Path) -> None:
    files = [(f"d{number % 7}/f{number}", random.Random(number).randbytes(number * 97)) for number in range(80)]
    digests = set()
    for turn, (zone, umask) in enumerate([("UTC", 0o022), ("Asia/Kathmandu", 0o077), ("America/Caracas", 0)]):
        folder = tmp_path / f"copy {turn}"
        folder.mkdir()
        random.Random(turn).shuffle(files)
        for name, data in files:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o644)
        for path in [*folder.rglob("*"), folder]:
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, ns=(0, 1_700_000_000_123_456_789))
        environment = {
            **os.environ, "TZ": zone, "LC_ALL": "C", "PYTHONHASHSEED": str(turn),
            "LAYERKIT_STORE": str(tmp_path / f"store{turn}"), "LAYERKIT_HOME": str(tmp_path / f"home{turn}"),
        }  # fmt: skip
        command = [sys.executable, "-m", "layerkit", "import", str(folder), "-t", "base/x:1", "--json"]
        done = subprocess.run(command, env=environment, umask=umask, check=True, capture_output=True, text=True)
        digests.add(done.stdout.partition('"digest":"')[2][:71])
    assert len(digests) == 1


def test_b06_b01_contents_decide_and_not_times(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "f"
    path.write_bytes(b"a" * 5000)
    os.utime(path, ns=(0, 10**18))
    time.sleep(2.1)  # until then files are too young to be remembered
    first = importer.make(folder)
    assert importer.make(folder).digest == first.digest
    path.write_bytes(b"b" * 5000)
    os.utime(path, ns=(0, 10**18))
    second = importer.layer(folder)
    assert second.digest != first.digest
    assert importer.read(second, b"f") == b"b" * 5000


def test_an_unchanged_import_reads_nothing_and_stores_nothing(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(20):
        (folder / f"f{number}").write_bytes(random.Random(number).randbytes(20_000))
    time.sleep(2.1)
    first = importer.make(folder)
    again = importer.make(folder)
    assert (again.digest, again.existed, again.stored_bytes) == (first.digest, True, 0)
    moved = importer.make(folder, "base/other:1")
    assert moved.digest != first.digest  # the name is part of the config
    assert moved.stored_bytes == 0


def test_l19_b29_hard_links_are_one_inode(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "a/b").mkdir(parents=True)
    data = random.Random(1).randbytes(200_000)
    (folder / "one").write_bytes(data)
    os.link(folder / "one", folder / "a/two")
    os.link(folder / "one", folder / "a/b/three")
    (folder / "copy").write_bytes(data)
    os.utime(folder / "copy", ns=(0, (folder / "one").stat().st_mtime_ns))
    made = importer.make(folder)
    tree = StoredLayers(importer.store).get(made.digest).tree
    assert get(tree, b"one") is get(tree, b"a/two") is get(tree, b"a/b/three")
    assert get(tree, b"copy") is not get(tree, b"one")
    assert made.plain_bytes == 200_000  # the copy shares its blocks


@pytest.mark.privileged
def test_b29_equal_inode_numbers_of_two_devices_are_no_link(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    mounts = [folder / "m1", folder / "m2"]
    for mount in mounts:
        mount.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    try:
        for mount in mounts:
            (mount / "f").write_text(str(mount))
            os.link(mount / "f", mount / "g")
        numbers = {(mount / "f").stat().st_ino for mount in mounts}
        tree = importer.layer(folder).tree
    finally:
        for mount in mounts:
            subprocess.run(["umount", mount], check=True)
    assert len(numbers) == 1
    assert get(tree, b"m1/f") is get(tree, b"m1/g")
    assert get(tree, b"m1/f") is not get(tree, b"m2/f")
    assert get(tree, b"m2/f").body == str(mounts[1]).encode()


@root_only
def test_l20_hard_links_of_every_type(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.symlink("t", folder / "symlink")
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    for name in ("symlink", "fifo", "device", "socket"):
        os.link(folder / name, folder / f"{name} 2", follow_symlinks=False)
    tree = importer.layer(folder).tree
    for name in (b"symlink", b"fifo", b"device", b"socket"):
        assert get(tree, name) is get(tree, name + b" 2")


@root_only
def test_l21_l22_xattrs_acls_and_capabilities(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "f").write_bytes(b"x")
    capability = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
    os.setxattr(folder / "f", "security.capability", capability)
    os.setxattr(folder / "f", "user.empty", b"")
    subprocess.run(["setfacl", "-m", "u:1000:rwx", folder / "f"], check=True)
    xattrs = get(importer.layer(folder).tree, b"f").xattrs
    assert xattrs[b"security.capability"] == capability
    assert xattrs[b"user.empty"] == b""
    assert xattrs[b"system.posix_acl_access"] == os.getxattr(folder / "f", "system.posix_acl_access")


def xattr_archive(size: int) -> bytes:
    from tests.support.raw_tar import END, member, pax

    return pax((b"SCHILY.xattr.user.long", b"v" * size)) + member(b"f") + END


def test_l22_the_longest_xattr_and_a_longer_one(importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(xattr_archive(65_535))
    assert len(get(importer.layer(path).tree, b"f").xattrs[b"user.long"]) == 65_535
    path.write_bytes(xattr_archive(65_536))
    with pytest.raises(LimitError) as caught:
        importer.make(path)
    assert "f" in caught.value.where


def test_b34_names_and_targets_that_are_too_long(importer: Importer, tmp_path: Path) -> None:
    from tests.support.raw_tar import END, long_name, member, pax

    path = tmp_path / "a.tar"
    path.write_bytes(pax((b"path", b"d/" + b"n" * 255)) + member(b"x") + long_name(b"t" * 4095, b"K")
                     + member(b"l", kind=b"2") + END)  # fmt: skip
    assert get(importer.layer(path).tree, b"l").size == 4095
    for data, where in ((pax((b"path", b"dir/" + b"n" * 256)) + member(b"x"), "dir"),
                        (long_name(b"t" * 4096, b"K") + member(b"link", kind=b"2"), "link")):  # fmt: skip
        path.write_bytes(data + END)
        with pytest.raises(LimitError) as caught:
            importer.make(path)
        assert where in str(caught.value)


def test_b30_times_are_kept(importer: Importer, tmp_path: Path) -> None:
    from tests.support.raw_tar import END, member, pax

    times = {b"zero": "0", b"minus": "-1", b"fraction": "1.000000001", b"before": "-1.5", b"far": str((1 << 33) + 7),
             b"farther": str((1 << 34) + 1)}  # fmt: skip
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(pax((b"mtime", text.encode())) + member(name) for name, text in times.items()) + END)
    tree = importer.layer(path).tree
    assert {name: get(tree, name).mtime_ns for name in times} == {
        b"zero": 0, b"minus": -(10**9), b"fraction": 10**9 + 1, b"before": -1_500_000_000,
        b"far": ((1 << 33) + 7) * 10**9, b"farther": ((1 << 34) + 1) * 10**9,
    }  # fmt: skip


def test_b33_names_that_are_no_utf8(importer: Importer, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "folder")
    os.makedirs(folder + b"/\xff\xfe")
    for name in (b"caf\xe9", b"\xff\xfe/\xc3\x28", b"n" * 255):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(name)
    layer = importer.layer(Path(os.fsdecode(folder)))
    assert importer.read(layer, b"\xff\xfe/\xc3\x28") == b"\xff\xfe/\xc3\x28"
    assert get(layer.tree, b"n" * 255).size == 255


@pytest.mark.parametrize("kind", ["directory", "gnu", "posix"])
def test_b27_b26_a_tib_of_nothing_is_kib(importer: Importer, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with open(folder / "lastlog", "wb") as file:
        file.write(b"begin")
        file.seek((1 << 40) - 3)
        file.write(b"end")
    (folder / "blocks").write_bytes(b"x" * 4097)  # two blocks, 4097 bytes
    source = folder
    if kind != "directory":
        source = tmp_path / "a.tar"
        command = ["tar", "-C", folder, "--sparse", "--hole-detection=seek", f"--format={kind}", "-cf", source, "."]
        subprocess.run(command, check=True)
    start = time.monotonic()
    made = importer.make(source)
    assert time.monotonic() - start < 20
    layer = StoredLayers(importer.store).get(made.digest)
    assert get(layer.tree, b"lastlog").size == 1 << 40
    assert get(layer.tree, b"blocks").size == 4097
    assert made.meta_bytes < 128 << 10
    assert made.stored_bytes < 64 << 10
    content = get(layer.tree, b"lastlog").body
    assert isinstance(content, Content)
    assert sum(chunk.length for chunk in content.chunks if chunk.id) < 512 << 10


def test_b31_l31_empty_things(importer: Importer, tmp_path: Path) -> None:
    from tests.support.raw_tar import END

    folder = tmp_path / "folder"
    (folder / "empty folder").mkdir(parents=True)
    (folder / "empty file").touch()
    (folder / "zeros").write_bytes(bytes(5000))
    (folder / "edge").write_bytes(b"x" * 262_144)
    layer = importer.layer(folder)
    assert importer.read(layer, b"zeros") == bytes(5000)
    assert importer.read(layer, b"edge") == b"x" * 262_144
    (tmp_path / "empty").mkdir()
    assert importer.layer(tmp_path / "empty").tree.entries == {}
    (tmp_path / "a.tar").write_bytes(END)
    assert importer.layer(tmp_path / "a.tar").tree.entries == {}
    importer.verify()


@root_only
def test_b24_a_folder_with_an_overlay_s_marks_is_refused(importer: Importer, tmp_path: Path) -> None:
    for number, spoil in enumerate([
        lambda path: os.mknod(path / "w", stat.S_IFCHR, 0),
        lambda path: os.setxattr(path, "trusted.overlay.opaque", b"y"),
        lambda path: os.setxattr(path, "user.overlay.opaque", b"y"),
    ]):  # fmt: skip
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        spoil(folder)
        with pytest.raises(InputError, match="overlayfs"):
            importer.make(folder)


def test_l18_opaque_marks_never_come_in_by_an_import(importer: Importer, tmp_path: Path) -> None:
    """`.wh.` names are OCI's, in layers; in a root file system they are names like any other."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".wh..wh..opq", ".wh.gone"):
        (folder / name).touch()
    assert set(importer.layer(folder).tree.entries) == {b".wh..wh..opq", b".wh.gone"}


def test_l23_files_beyond_4_gib_read_back_equal(importer: Importer, tmp_path: Path) -> None:
    """Bytes on both sides of 4 GiB, and a second file with the same content, behind which more follows."""
    folder = tmp_path / "folder"
    folder.mkdir()
    edge = random.Random(1).randbytes(3 << 20)
    for name in ("a", "b"):
        with open(folder / name, "wb") as file:
            file.write(b"begin")
            file.seek((4 << 30) - (1 << 20))
            file.write(edge)
            file.truncate(5 << 30)
    (folder / "c").write_bytes(b"behind" * 1000)
    layer = importer.layer(folder)
    for name in (b"a", b"b"):
        content = get(layer.tree, name).body
        assert isinstance(content, Content)
        assert content.size == 5 << 30
        view = StackView(StoredLayers(importer.store), (layer.digest,))
        at = 0
        with open(folder / os.fsdecode(name), "rb") as file:
            for piece in view.read(get(layer.tree, name), "x"):
                if piece.count(0) != len(piece) or at < 1 << 20:
                    assert os.pread(file.fileno(), len(piece), at) == piece
                at += len(piece)
        assert at == 5 << 30
    assert importer.read(layer, b"c") == b"behind" * 1000


@pytest.mark.slow
def test_l25_a_directory_of_200_000_entries(importer: Importer, tmp_path: Path) -> None:
    from tests.support.raw_tar import END, member

    names = [b"d/%06d" % number for number in range(200_000)]
    (tmp_path / "a.tar").write_bytes(b"".join(map(member, names)) + END)
    tree = importer.layer(tmp_path / "a.tar").tree
    assert len(get(tree, b"d").entries) == 200_000


def test_a_folder_that_somebody_writes_to_is_refused(importer: Importer, tmp_path: Path) -> None:
    """The layer would be a state that never was; nothing of it is published."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "f"
    path.write_bytes(b"x" * 5000)
    reader = importer.knowledge.files.view

    def racing() -> object:
        path.write_bytes(b"y" * 6000)
        return reader()

    importer.knowledge.files.view = racing  # type: ignore[method-assign,assignment]
    importer.make(folder)
    # Between the scan's look at a file and the end of its reading:
    real = os.pread

    def growing(fd: int, size: int, offset: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"more")
        return real(fd, size, offset)

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "pread", growing)
    try:
        with pytest.raises(SourceChangedError) as caught:
            importer.make(folder)
    finally:
        patch.undo()
    assert caught.value.where == "f"
    importer.verify()


def test_an_image_archive_is_named_as_what_it_is(importer: Importer, tmp_path: Path) -> None:
    from tests.support.raw_tar import END, member

    (tmp_path / "image.tar").write_bytes(member(b"oci-layout", b"{}") + member(b"index.json", b"{}") + END)
    with pytest.raises(InputError, match="image archive"):
        importer.make(tmp_path / "image.tar")
