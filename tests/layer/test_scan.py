"""Reading directories: every attribute, overlay uppers, races, limits; the plain reader of layer_trees is the judge."""

from __future__ import annotations

import os
import random
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from layerkit.errors import InputError, LimitError, SourceChangedError
from layerkit.layer import scan
from layerkit.layer.compare import differences, tree_digest
from layerkit.layer.merge import merge
from layerkit.layer.scan import scan_directory
from layerkit.layer.tree import Content, Inode, find, walk
from layerkit.layer.whiteouts import is_opaque, is_whiteout
from tests.layer.layer_trees import (
    directory,
    file,
    materialise,
    mounted_overlay,
    random_layer,
    read_view,
    read_whole,
    symlink,
)


def scanned(path: Path, **options: object) -> Inode:
    return scan_directory(path, read_content=read_whole, **options)  # type: ignore[arg-type]


def assert_equal(one: Inode, other: Inode) -> None:
    assert [(d.path, d.kind, d.fields) for d in differences(one, other)] == []


def sample() -> Inode:
    linked = file(b"linked", 0o4755)
    link_to_link = symlink(b"/nowhere")
    fifo = Inode(stat.S_IFIFO | 0o600)
    return directory(
        {
            b"empty": file(),
            b"f\xff\xfe": file(b"x" * 100, mtime_ns=-1),
            b"linked": linked,
            b"d": directory(
                {b"again": linked, b"s": link_to_link, b"fifo": fifo, b"deep": directory({b"again": linked})}, 0o1777
            ),
            b"s2": link_to_link,
            b"fifo2": fifo,
            b"x": file(b"1", xattrs={b"user.empty": b"", b"user.nul": b"a\0b"}),
        }
    )


def test_b33_l19_l20_a_tree_comes_back_as_it_is(tmp_path: Path) -> None:
    tree = sample()
    materialise(tree, tmp_path)
    found = scanned(tmp_path)
    assert_equal(read_view(tmp_path), found)
    assert find(found, b"linked") is find(found, b"d/again") is find(found, b"d/deep/again")
    assert find(found, b"d/s") is find(found, b"s2")
    assert find(found, b"d/fifo") is find(found, b"fifo2")
    if os.geteuid() == 0:
        assert_equal(tree, found)


@pytest.mark.privileged
def test_devices_sockets_and_owners(tmp_path: Path) -> None:
    tree = directory(
        {
            b"null": Inode(stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3)),
            b"sda": Inode(stat.S_IFBLK | 0o660, gid=6, rdev=os.makedev(8, 0)),
            b"big": Inode(stat.S_IFCHR | 0o600, rdev=os.makedev(4000, 100_000)),
            b"f": file(b"1", 0o6711, uid=(1 << 32) - 2, gid=1 << 31),
        },
        mtime_ns=3,
    )
    materialise(tree, tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(os.path.relpath(tmp_path), "sock"))
    found = scanned(tmp_path)
    assert stat.S_ISSOCK(found.entries[b"sock"].mode)
    del found.entries[b"sock"]
    found.mtime_ns = 3
    assert_equal(tree, found)


@pytest.mark.parametrize("mtime_ns", [0, -1, -1_500_000_000, 1, 999_999_999, (1 << 33) * 10**9 + 5])
def test_b30_times(tmp_path: Path, mtime_ns: int) -> None:
    (tmp_path / "f").write_bytes(b"1")
    os.symlink("x", tmp_path / "s")
    for name in ("f", "s", "."):
        os.utime(tmp_path / name, ns=(0, mtime_ns), follow_symlinks=False)
    if os.lstat(tmp_path / "f").st_mtime_ns != mtime_ns:
        pytest.skip("this file system does not keep such a time")
    found = scanned(tmp_path)
    assert {inode.mtime_ns for _, inode in walk(found)} == {mtime_ns}


@pytest.mark.privileged
def test_l21_l22_capabilities_acls_and_long_xattrs(tmp_path: Path) -> None:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in [(1, 7, 0xFFFFFFFF), (2, 5, 1234), (4, 5, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)]
    )
    (tmp_path / "ping").write_bytes(b"1")
    os.setxattr(tmp_path / "ping", "security.capability", capability)
    (tmp_path / "d").mkdir()
    os.setxattr(tmp_path / "d", "system.posix_acl_access", acl)
    os.setxattr(tmp_path / "d", "system.posix_acl_default", acl)
    os.symlink("x", tmp_path / "s")
    os.setxattr(tmp_path / "s", "trusted.note", b"on a link", follow_symlinks=False)
    found = scanned(tmp_path)
    assert found.entries[b"ping"].xattrs == {b"security.capability": capability}
    assert found.entries[b"d"].xattrs == {b"system.posix_acl_access": acl, b"system.posix_acl_default": acl}
    assert found.entries[b"s"].xattrs == {b"trusted.note": b"on a link"}
    assert_equal(read_view(tmp_path), found)


def test_l22_the_longest_xattr_is_kept_and_a_longer_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems here end at 4 KiB, so the limit is moved instead of the value."""
    (tmp_path / "f").touch()
    os.setxattr(tmp_path / "f", "user.long", b"v" * 1000)
    assert scanned(tmp_path).entries[b"f"].xattrs == {b"user.long": b"v" * 1000}
    monkeypatch.setattr(scan, "XATTR_VALUE_MAX", 999)
    with pytest.raises(LimitError, match=r"^f: .*user\.long has 1000 bytes"):
        scanned(tmp_path)


@pytest.mark.privileged
def test_b16_labels_of_the_host_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for name in ("security.selinux", "security.SMACK64", "security.other"):
        os.setxattr(tmp_path / "f", name, b"x")
    assert scanned(tmp_path).entries[b"f"].xattrs == {b"security.other": b"x"}


@pytest.mark.privileged
def test_b24_what_overlayfs_would_reinterpret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mknod(tmp_path / "d/w", stat.S_IFCHR, 0)
    with pytest.raises(InputError, match=r"^d/w: .*0:0"):
        scanned(tmp_path)
    os.unlink(tmp_path / "d/w")
    os.setxattr(tmp_path / "d", "trusted.overlay.opaque", b"y")
    with pytest.raises(InputError, match=r"^d: .*trusted\.overlay\.opaque"):
        scanned(tmp_path)
    assert is_opaque(scanned(tmp_path, overlay_upper=True).entries[b"d"])


@pytest.mark.privileged
def test_b23_upper_directory_of_a_real_overlay(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    materialise(sample(), tmp_path / "lower")
    base = scanned(tmp_path / "lower")
    with mounted_overlay(
        [tmp_path / "lower"], tmp_path / "m", upper=tmp_path / "upper", work=tmp_path / "work"
    ) as view:
        shutil.rmtree(view / "d")
        (view / "d").mkdir()
        (view / "d/new").write_bytes(b"1")
        (view / "x").unlink()
        (view / "empty").unlink()
        os.link(view / "linked", view / "linked2")
        shown = read_view(view)
    upper = scanned(tmp_path / "upper", overlay_upper=True)
    assert is_opaque(upper.entries[b"d"])
    assert is_whiteout(upper.entries[b"x"])
    assert upper.entries[b"x"] is not upper.entries[b"empty"]
    assert not any(b"overlay" in name for _, inode in walk(upper) if not is_opaque(inode) for name in inode.xattrs)
    assert_equal(merge([base, upper]), shown)


@pytest.mark.privileged
def test_b23_redirects_and_metacopy_are_refused(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "m"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower/d").mkdir()
    (tmp_path / "lower/f").write_bytes(b"data")
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work,redirect_dir=on,metacopy=on"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "m"], check=True)
    try:
        os.chmod(tmp_path / "m/f", 0o600)
        with pytest.raises(InputError, match=r"^f: .*metacopy"):
            scanned(tmp_path / "upper", overlay_upper=True)
        os.unlink(tmp_path / "m/f")
        os.rename(tmp_path / "m/d", tmp_path / "m/e")
        with pytest.raises(InputError, match=r"^e: .*redirect"):
            scanned(tmp_path / "upper", overlay_upper=True)
    finally:
        subprocess.run(["umount", tmp_path / "m"], check=True)


def test_l24_order_of_readdir_does_not_matter(tmp_path: Path) -> None:
    names = [b"%d.%s" % (number, extension) for number in range(40) for extension in (b"py", b"so", b"txt")]
    orders, digests = [], []
    for seed in range(2):
        random.Random(seed).shuffle(names)
        (tmp_path / str(seed)).mkdir()
        for name in names:
            (tmp_path / str(seed) / name.decode()).write_bytes(name)
        read: list[bytes] = []

        def note(fd: int, found: os.stat_result, path: bytes, read: list[bytes] = read) -> Content | bytes:
            read.append(path)
            return read_whole(fd, found, path)

        for path in (*(tmp_path / str(seed)).iterdir(), tmp_path / str(seed)):
            os.utime(path, ns=(0, 0))
        tree = scan_directory(tmp_path / str(seed), read_content=note)
        orders.append(read)
        digests.append(tree_digest(tree))
        assert list(tree.entries) == read
    assert orders[0] == orders[1]
    assert digests[0] == digests[1]
    assert orders[0][0].endswith(b".py")
    assert orders[0][-1].endswith(b".txt")


def test_l38_nothing_is_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    (tmp_path / "in").mkdir()
    os.symlink("../outside", tmp_path / "in/dir")
    os.symlink("../outside/secret", tmp_path / "in/file")
    os.symlink("in", tmp_path / "link")
    found = scanned(tmp_path / "link")
    assert {name: inode.body for name, inode in found.entries.items()} == {
        b"dir": b"../outside",
        b"file": b"../outside/secret",
    }


def test_exclude_leaves_out_whole_directories(tmp_path: Path) -> None:
    materialise(sample(), tmp_path)
    asked: list[tuple[bytes, bool]] = []

    def exclude(path: bytes, is_dir: bool) -> bool:
        asked.append((path, is_dir))
        return path in (b"d", b"x")

    found = scanned(tmp_path, exclude=exclude)
    assert sorted(found.entries) == [b"empty", b"fifo2", b"f\xff\xfe", b"linked", b"s2"]
    assert (b"d", True) in asked
    assert not any(path.startswith(b"d/") for path, _ in asked)


def test_a_missing_folder_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for name in ("nothing", "f"):
        with pytest.raises(InputError, match=f"{name}: no folder to read"):
            scanned(tmp_path / name)


def test_races_are_typed_errors(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1" * 10)
    (tmp_path / "b").write_bytes(b"1")

    def grow(fd: int, found: os.stat_result, path: bytes) -> bytes:
        with (tmp_path / os.fsdecode(path)).open("ab") as stream:
            stream.write(b"2")
        return os.read(fd, 100)

    def remove(fd: int, found: os.stat_result, path: bytes) -> bytes:
        (tmp_path / "b").unlink(missing_ok=True)
        return os.read(fd, 100)

    for callback, where in ((grow, "a"), (remove, "b")):
        with pytest.raises(SourceChangedError, match=f"^{where}: "):
            scan_directory(tmp_path, read_content=callback)


def test_l38_swapping_files_for_links_never_reads_elsewhere(tmp_path: Path) -> None:
    """A thread swaps files and folders for links to a secret while scans run."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/f").write_bytes(b"SECRET")
    root = tmp_path / "root"
    root.mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "d").mkdir()
            (root / "d/f").write_bytes(b"plain")
            shutil.rmtree(root / "d")
            os.symlink("../secret", root / "d")
            os.unlink(root / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                found = scanned(root)
            except SourceChangedError:
                continue
            assert not any(inode.body == b"SECRET" for _, inode in walk(found))
    finally:
        stop.set()
        thread.join()


def test_a_plain_user_can_scan_and_is_told_what_may_not_be_read() -> None:
    code = (
        "import os, sys\n"
        "from layerkit.layer.scan import scan_directory\n"
        "from layerkit.errors import DeniedError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "read = lambda fd, found, path: os.read(fd, 100)\n"
        "print(sorted(scan_directory('open', read_content=read).entries))\n"
        "try: scan_directory('closed', read_content=read)\n"
        "except DeniedError as error: print(error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("open", "closed"):
            (folder / part).mkdir()
            (folder / part / "f").write_bytes(b"1")
        (folder / "closed/f").chmod(0)
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[b'f']", "f: access refused: Permission denied"]


def test_l25_deep_trees_do_not_use_up_descriptors(tmp_path: Path) -> None:
    depth = 700
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 100, hard))
    try:
        found = scanned(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(1 for _ in walk(found)) == 1 + 2 * depth
    assert len(os.listdir("/proc/self/fd")) == open_now
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


@pytest.mark.privileged
@pytest.mark.parametrize("seed", range(5))
def test_random_layers_on_disk_are_read_as_uppers(tmp_path: Path, seed: int) -> None:
    layer = random_layer(random.Random(seed))
    materialise(layer, tmp_path)
    found = scanned(tmp_path, overlay_upper=True)
    for _, inode in walk(layer):
        if is_whiteout(inode):
            inode.mtime_ns = 0
    assert_equal(merge([layer]), merge([found]))
