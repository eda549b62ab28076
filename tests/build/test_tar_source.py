"""Trees from archives: equal to the directory they were made of, whoever made them; escapes refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import struct
import subprocess
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest
import zstandard

from layerkit.build.posix_acl import acl_to_xattr
from layerkit.build.tar_source import TarSource, is_tar
from layerkit.errors import ArchiveError, DeniedError, InputError
from layerkit.layer.compare import differences
from layerkit.layer.facts import FactsCollector
from layerkit.layer.tree import Content, Inode, find, walk
from tests.support.chunk_bag import ChunkBag
from tests.support.raw_tar import END, header, member, pax

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make devices and owners")


class Archive:
    """An archive that has been read."""

    def __init__(self, path: Path) -> None:
        self.bag = ChunkBag()
        self.facts = FactsCollector()
        self.source = TarSource(path, self.bag.ingester(), self.facts)
        self.root = self.source.root

    def get(self, path: bytes) -> Inode:
        inode = find(self.root, path)
        assert inode is not None, path
        return inode

    def read(self, path: bytes) -> bytes:
        return self.bag.read(self.get(path).body)


def archive_of(folder: Path, data: bytes) -> Archive:
    path = folder / "archive.tar"
    path.write_bytes(data)
    return Archive(path)


def paths_in(root: Inode) -> list[bytes]:
    return [path for path, _ in walk(root)]


def assert_equal(one: Inode, other: Inode) -> None:
    assert [(found.path, found.kind, found.fields) for found in differences(one, other)] == []


# Who writes what.


def random_members(folder: Path) -> None:
    """A folder with every kind of file, odd names and times."""
    pick = random.Random(5)
    names = [b"plain", b"caf\xe9", b"new\nline", b"n" * 255, b" ", b"sub/deep/file", b"sub/" + b"d" * 120 + b"/x"]
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(pick.randbytes((0, 1, 256, 257, 5000, 300_000, 1_500_000)[number]))
        os.utime(path, ns=(0, (0, 1, 1_700_000_000_123_456_789, -1, -1_500_000_000, 1 << 33, 7)[number]))
    os.link(folder / "plain", folder / "sub/hard link")
    os.symlink("../plain", folder / "sub/symlink")
    os.symlink("t" * 300, folder / "long target")
    os.mkfifo(folder / "fifo", 0o640)
    os.mkdir(folder / "empty", 0o1777)
    os.chmod(folder / "plain", 0o4755)
    os.utime(folder, ns=(0, 42))


def scanned(folder: Path, bag: ChunkBag) -> Inode:
    from layerkit.build.host_tree import HostTree
    from layerkit.build.pieces import file_pieces

    ingester = bag.ingester()
    return HostTree(
        folder, read_now=lambda fd, status, path: ingester.read(
            file_pieces(fd, status.st_size, sparse=True), status.st_size, path
        ),
    ).root  # fmt: skip


@pytest.mark.parametrize("form", ["posix", "gnu"])
def test_b17_gnu_tar_of_a_directory_is_the_directory(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    random_members(folder)
    # GNU's own format has whole seconds only.
    if form == "gnu":
        for path in [folder, *folder.rglob("*")]:
            os.utime(path, ns=(0, os.lstat(path).st_mtime_ns // 10**9 * 10**9), follow_symlinks=False)
    command = ["tar", "-C", folder, f"--format={form}", "--sparse", "-cf", tmp_path / "a.tar", "."]
    subprocess.run(command, check=True, capture_output=True)
    archive = Archive(tmp_path / "a.tar")
    assert_equal(scanned(folder, ChunkBag()), archive.root)
    assert archive.read(b"plain") == (folder / "plain").read_bytes()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_python_s_tarfile_of_a_directory_has_its_files(tmp_path: Path, form: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    random_members(folder)
    with tarfile.open(tmp_path / "a.tar", "w", format=form, errors="surrogateescape") as writer:
        writer.add(folder, ".")
    archive = Archive(tmp_path / "a.tar")
    wanted = scanned(folder, ChunkBag())
    assert paths_in(archive.root) == paths_in(wanted)
    assert archive.read(b"n" * 255) == (folder / ("n" * 255)).read_bytes()
    assert archive.get(b"plain") is archive.get(b"sub/hard link")


@root_only
def test_b17_owners_devices_xattrs_and_acls_by_way_of_gnu_tar(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("file", "folder", "capable"):
        (folder / name).mkdir() if name == "folder" else (folder / name).write_bytes(b"x")
    os.mknod(folder / "device", stat.S_IFBLK | 0o660, os.makedev(259, 70_000))
    os.lchown(folder / "file", 4_000_000_000, 2_097_152)
    os.setxattr(folder / "file", "user.nul", b"a\0b\n=\xff")
    os.setxattr(folder / "file", "user.empty", b"")
    os.setxattr(folder / "file", "trusted.kept", b"1")
    os.setxattr(folder / "file", "user.long", b"v" * 3000)
    os.setxattr(folder / "capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    # Whoever has 12345 here: GNU tar writes names where it finds them, and those in the archive count.
    (folder / "etc").mkdir()
    (folder / "etc/passwd").write_bytes(Path("/etc/passwd").read_bytes())
    subprocess.run(["setfacl", "-m", "u:1:r-x,u:12345:r-x,g:777777:rwx", folder / "file"], check=True)
    subprocess.run(["setfacl", "-m", "u:4000000000:rw-,d:u:5:r--,d:g::-w-", folder / "folder"], check=True)
    command = ["tar", "-C", folder, "--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "-cf"]
    subprocess.run([*command, tmp_path / "a.tar", "."], check=True)
    archive = Archive(tmp_path / "a.tar")
    assert_equal(scanned(folder, ChunkBag()), archive.root)
    assert archive.get(b"file").xattrs[b"user.nul"] == b"a\0b\n=\xff"
    assert archive.get(b"file").xattrs[b"user.empty"] == b""
    assert archive.get(b"capable").xattrs[b"security.capability"][4:8] == b"\0\x20\0\0"


def test_l22_acl_text_in_all_its_spellings() -> None:
    def known(kind: str, name: str) -> int | None:
        return {"user jane": 1000}.get(f"{kind} {name}")

    wanted = acl_to_xattr(b"user::rwx,user:1000:r-x,group::r-x,mask::rwx,other::r--", known)
    assert wanted == struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in [(1, 7, 0xFFFFFFFF), (2, 5, 1000), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
    )
    short = b"u::rwx\nu:joe:r-x:1000\t#effective:r-x\ng::r-x\nm:rwx\no::r--\n# comment"
    assert acl_to_xattr(short, known) == wanted
    assert acl_to_xattr(short.replace(b"joe:r-x:1000", b"jane:r-x"), known) == wanted
    assert acl_to_xattr(b"user::rw-,group::r--,other::r--", known) == b""
    for text in (b"user:joe:rwx", b"nobody::r", b"user::rwz", b"user", b"user:4294967295:r--", b"mask:5:r--"):
        with pytest.raises(ArchiveError):
            acl_to_xattr(text, known)


def test_l22_xattrs_of_libarchive_and_of_the_host(tmp_path: Path) -> None:
    records = pax(
        (b"LIBARCHIVE.xattr.user.caf%C3%A9", b64encode(b"\0value").rstrip(b"=")),
        (b"SCHILY.xattr.security.selinux", b"system_u:object_r:bin_t:s0\0"),
        (b"SCHILY.xattr.system.nfs4_acl", b"x"), (b"SCHILY.xattr.user.a=b", b"kept"), (b"SCHILY.xattr.user.none", b""),
    )  # fmt: skip
    # The name of an xattr ends at the first = of a record, so what GNU tar escapes is another name here.
    archive = archive_of(tmp_path, records + member(b"a") + END)
    assert archive.get(b"a").xattrs == {"user.café".encode(): b"\0value", b"user.a": b"b=kept", b"user.none": b""}
    with pytest.raises(ArchiveError):
        archive_of(tmp_path, pax((b"LIBARCHIVE.xattr.user.x", b"not base64!")) + member(b"a") + END)


# What archives may say, and what not.


@pytest.mark.parametrize(
    "data",
    [
        member(b"../evil", b"x"), member(b"a/../../evil", b"x"), member(b"/etc/passwd", b"x"), member(b"..", kind=b"5"),
        member(b"link", kind=b"1", linkname=b"../../etc/passwd"), member(b"link", kind=b"1", linkname=b"/etc/passwd"),
        member(b"link", kind=b"2", linkname=b"/etc") + member(b"link/passwd", b"x"),
        member(b"link", kind=b"2", linkname=b"..") + member(b"link/link2", kind=b"2", linkname=b"x"),
        member(b"file", b"x") + member(b"file/below", b"x"),
        pax((b"path", b"a\0b")) + member(b"x"), pax((b"linkpath", b"a\0b")) + member(b"x", kind=b"2"),
        member(b"dir", kind=b"5") + member(b"link", kind=b"1", linkname=b"dir"),
        member(b"x", b"x") + member(b"./", kind=b"1", linkname=b"x"),
        member(b"", b"root as a file"), member(b"link", kind=b"1", linkname=b"nowhere"), member(b"l", kind=b"2"),
        member(b"a", kind=b"1", linkname=b"b") + member(b"b", kind=b"1", linkname=b"a"),
        member(b"a", uid=b"\xff" * 8), pax((b"gid", b"4294967296")) + member(b"a"),
    ],
)  # fmt: skip
def test_l38_hostile_names_and_links_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArchiveError) as caught:
        archive_of(tmp_path, data + END)
    assert caught.value.where == str(tmp_path / "archive.tar")


@pytest.mark.parametrize(
    "data",
    [
        member(b"gone", kind=b"3"), pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y")) + member(b"d", kind=b"5"),
        pax((b"SCHILY.xattr.user.overlay.whiteout", b"")) + member(b"f"),
    ],
)  # fmt: skip
def test_b24_what_overlayfs_would_reinterpret_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="overlayfs"):
        archive_of(tmp_path, data + END)


def test_b25_the_last_of_equal_names_counts(tmp_path: Path) -> None:
    script = b"#!/bin/sh\n" + b"x" * 300
    archive = archive_of(
        tmp_path,
        member(b"f", script, mode=0o755) + member(b"kept", kind=b"1", linkname=b"f") + member(b"f", b"second" * 60)
        + member(b"d", kind=b"5", mode=0o700) + member(b"d/x", b"1") + member(b"./d/", kind=b"5", mode=0o711)
        + member(b"e", kind=b"5") + member(b"e/lost", b"1") + member(b"e", b"file now") + END,
    )  # fmt: skip
    assert archive.read(b"f") == b"second" * 60
    assert archive.read(b"kept") == script
    assert stat.S_IMODE(archive.get(b"d").mode) == 0o711
    assert paths_in(archive.root) == [b"", b"d", b"d/x", b"e", b"f", b"kept"]
    # What was learnt of the first f goes with it; under its other name it is still a script.
    assert list(archive.facts.finish(archive.root).scripts) == [b"kept"]


def test_b25_contents_can_be_read_again_whatever_came_later(tmp_path: Path) -> None:
    first, second = b"1" * 5000, b"2" * 5000
    archive = archive_of(
        tmp_path, member(b"f", first) + member(b"kept", kind=b"1", linkname=b"f") + member(b"f", second) + END
    )
    again = {bytes(b"".join(pieces)) for _, _, pieces in archive.source.contents(lambda content: True)}  # type: ignore[arg-type]
    assert again == {first, second}


def test_b25_links_to_later_entries(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path,
        member(b"z/one", kind=b"1", linkname=b"./b/file") + member(b"two", kind=b"1", linkname=b"z/one")
        + member(b"b/file", b"data") + member(b"three", kind=b"1", linkname=b"two") + END,
    )  # fmt: skip
    assert {archive.get(path) for path in (b"z/one", b"two", b"three")} == {archive.get(b"b/file")}


def test_l20_hard_links_of_every_type(tmp_path: Path) -> None:
    parts = [member(b"l", kind=b"2", linkname=b"t"), member(b"c", kind=b"3", major=1, minor=3),
             member(b"b", kind=b"4", major=259, minor=70_000), member(b"p", kind=b"6")]  # fmt: skip
    links = [member(name + b"2", kind=b"1", linkname=name) for name in (b"l", b"c", b"b", b"p")]
    archive = archive_of(tmp_path, b"".join((*parts, *links)) + END)
    for name in (b"l", b"c", b"b", b"p"):
        assert archive.get(name) is archive.get(name + b"2")
    assert archive.get(b"b").rdev == os.makedev(259, 70_000)


def test_b25_missing_parents_get_0755_of_root(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, member(b"a/b/c", b"x", uid=5, gid=6) + END)
    for path in (b"", b"a", b"a/b"):
        inode = archive.get(path)
        assert (inode.mode, inode.uid, inode.gid, inode.mtime_ns) == (stat.S_IFDIR | 0o755, 0, 0, 0)


def test_b33_names_are_bytes(tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"caf\xc3\xa9", b"\xc3\x28", b"a\nb", b"\x01"]
    data = b"".join(member(name, b"x") for name in names) + pax((b"path", b"pax\xff")) + member(b"x", b"y") + END
    assert sorted(paths_in(archive_of(tmp_path, data).root)) == sorted([b"", b"pax\xff", *names])


# Compression.

PACKERS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip members": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(40),
    "bzip2": bz2.compress,
    "bzip2 members": lambda data: bz2.compress(data[:1000]) + bz2.compress(data[1000:]),
    "xz": lzma.compress,
    "xz members": lambda data: lzma.compress(data[:1000]) + lzma.compress(data[1000:]),
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zstd frames": lambda data: b"\x50\x2a\x4d\x18\x03\0\0\0abc" + b"".join(
        zstandard.ZstdCompressor().compress(data[at : at + 900]) for at in range(0, len(data), 900)
    ),
    "zstd stream": lambda data: zstandard.ZstdCompressor().stream_reader(io.BytesIO(data)).read(),
}  # fmt: skip
SAMPLE = member(b"a", random.Random(1).randbytes(3000)) + member(b"b", b"y" * 900) + END


@pytest.mark.parametrize("packer", PACKERS)
def test_archives_in_every_compression(tmp_path: Path, packer: str) -> None:
    archive = archive_of(tmp_path, PACKERS[packer](SAMPLE))
    assert archive.read(b"b") == b"y" * 900
    assert is_tar(tmp_path / "archive.tar")


@pytest.mark.parametrize("packer", [name for name in PACKERS if name != "plain"])
def test_truncated_compression_is_an_error_at_every_length(tmp_path: Path, packer: str) -> None:
    data = PACKERS[packer](SAMPLE)
    whole = gzip.compress(SAMPLE[:700]) if packer == "gzip members" else b""
    for cut in (*range(12, len(data) - 48, 101), len(data) - 48 if packer == "gzip members" else len(data) - 1):
        if cut == len(whole):
            continue
        with pytest.raises(ArchiveError):
            archive_of(tmp_path, data[:cut])


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz", "zstd"])
def test_a_flipped_bit_behind_the_last_member_is_found(tmp_path: Path, packer: str) -> None:
    """Checksums stand at the end of a stream: it is read to there, though the tree is complete before."""
    data = bytearray(PACKERS[packer](SAMPLE))
    data[{"gzip": -6, "bzip2": -3}.get(packer, -1)] ^= 1
    with pytest.raises(ArchiveError):
        archive_of(tmp_path, bytes(data))


def test_is_tar_says_no_to_everything_else(tmp_path: Path) -> None:
    for data in (b"", b"text", b"\x1f\x8b broken", b"\x28\xb5\x2f\xfd broken", gzip.compress(b"text"), bytes(100)):
        path = tmp_path / "file"
        path.write_bytes(data)
        assert not is_tar(path)


# Sparse files.


@pytest.mark.parametrize("form", ["gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix"])
def test_b27_gnu_tar_s_sparse_files(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with open(folder / "huge", "wb") as file:
        for offset in (0, 5 << 30, (1 << 40) - 4096):
            file.seek(offset)
            file.write(b"data at %d" % offset)
        file.truncate(1 << 40)
    with open(folder / "many", "wb") as file:
        for number in range(60):
            file.seek(number * 1_000_000)
            file.write(b"%d" % number * 3000)
    command = ["tar", "-C", folder, "--sparse", "--hole-detection=seek", *f"--format={form}".split(), "-cf", "-", "."]
    (tmp_path / "a.tar").write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    archive = Archive(tmp_path / "a.tar")
    wanted = scanned(folder, ChunkBag())
    assert [found.path for found in differences(wanted, archive.root) if "content" in found.fields] == []
    assert archive.get(b"huge").size == 1 << 40
    assert sum(map(len, archive.bag.chunks.values())) < 2 << 20
    assert archive.read(b"many") == (folder / "many").read_bytes()


def test_l31_empty_archives_and_files(tmp_path: Path) -> None:
    assert paths_in(archive_of(tmp_path, END).root) == [b""]
    files = member(b"empty") + member(b"zeros", bytes(300)) + member(b"edge", b"x" * 262_144)
    archive = archive_of(tmp_path, files + END)
    assert archive.get(b"empty").body == b""
    zeros = archive.get(b"zeros").body
    assert isinstance(zeros, Content)
    assert [chunk.id for chunk in zeros.chunks] == [b""]
    assert archive.read(b"edge") == b"x" * 262_144


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_archive_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar"
    path.write_bytes(SAMPLE)
    path.chmod(0)
    with pytest.raises(DeniedError):
        Archive(path)


def test_the_header_s_sum_may_be_signed(tmp_path: Path) -> None:
    block = header(b"caf\xe9")
    signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + b" " * 8 + block[156:])
    archive = archive_of(tmp_path, block[:148] + b"%06o\0 " % signed + block[156:] + END)
    assert paths_in(archive.root) == [b"", b"caf\xe9"]
