"""Faults of other builders, on real overlays: RUN's upper directory is the kernel's own."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import time
from pathlib import Path

import pytest

from layerkit.errors import InputError
from layerkit.ids import Ref
from layerkit.layer.compare import differences, trees_equal
from layerkit.layer.tree import Content, find, walk
from layerkit.layer.whiteouts import is_whiteout
from tests.build.engine import (
    HOST,
    TIME_NS,
    Bench,
    OverlayExecutor,
    Script,
    access,
    at,
    content,
    make_root,
    paths,
    set_times,
)

pytestmark = pytest.mark.privileged


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    root = make_root(tmp_path / "root", d__a="a" * 400, d__b="b", d__sub__c="c", usr__lib__libx="x" * 9000)
    os.link(root / "d/a", root / "usr/lib/linked")
    set_times(root)
    found.base(root)
    return found


def built(bench: Bench, *scripts: Script, text: str = "") -> str:
    """The digest of a workspace whose RUNs do these scripts one after the other."""
    named = {f"do {number}": script for number, script in enumerate(scripts)}
    lines = "".join(f"RUN {name}\n" for name in named)
    return bench.one(f"FROM base/b:1\n{text}{lines}", executor=OverlayExecutor(bench, named)).digest


def base_of(bench: Bench) -> str:
    return bench.store.resolve(Ref.parse("base/b:1"), HOST).digest


def test_b18_what_was_deleted_stays_hidden_when_its_folder_comes_again(bench: Bench) -> None:
    digest = built(
        bench,
        lambda root: (root / "d/new").write_text("n"),
        lambda root: shutil.rmtree(root / "d"),
        lambda root: ((root / "d").mkdir(), (root / "d/only").write_text("o")),
    )
    assert paths(at(bench.stack(digest).tree, "d")) == ["only"]
    layer = bench.layer(digest).tree
    assert {name for name, inode in at(layer, "d").entries.items() if is_whiteout(inode)} == {b"a", b"b", b"sub"}
    assert not any(inode.xattrs for _, inode in walk(layer)), "B23: explicit whiteouts mean the same to everybody"


def test_b18_in_one_step(bench: Bench) -> None:
    def again(root: Path) -> None:
        shutil.rmtree(root / "d")
        (root / "d").mkdir()
        (root / "d/only").write_text("o")

    digest = built(bench, again)
    assert paths(at(bench.stack(digest).tree, "d")) == ["only"]
    assert not any(inode.xattrs for _, inode in walk(bench.layer(digest).tree))


def test_b19_a_folder_replaced_by_a_link_is_one_entry(bench: Bench) -> None:
    def replace(root: Path) -> None:
        shutil.rmtree(root / "d")
        (root / "d").symlink_to("usr/lib")

    digest = built(bench, replace)
    assert paths(bench.layer(digest).tree) == ["d"]
    assert at(bench.stack(digest).tree, "d").body == b"usr/lib"


def test_b21_a_run_that_changes_nothing_makes_an_empty_difference(bench: Bench) -> None:
    def look(root: Path) -> None:
        assert (root / "d/a").read_text()
        assert list((root / "usr").iterdir())

    digest = built(bench, look)
    assert paths(bench.layer(digest).tree) == []
    assert len(bench.stack(digest).layers) == 2


def test_b21_what_is_written_and_undone_leaves_nothing(bench: Bench) -> None:
    def undo(root: Path) -> None:
        before = (root / "d/a").stat()
        (root / "d/a").write_text("other")
        (root / "d/a").write_text("a" * 400)
        os.utime(root / "d/a", ns=(before.st_mtime_ns, before.st_mtime_ns))

    def link_again(root: Path) -> None:
        (root / "usr/lib/linked").unlink()
        os.link(root / "d/a", root / "usr/lib/linked")
        os.utime(root / "usr/lib", ns=(TIME_NS, TIME_NS))

    assert paths(bench.layer(built(bench, undo, link_again)).tree) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "device"])
def test_names_that_change_their_type(bench: Bench, kind: str) -> None:
    def change(root: Path) -> None:
        for name in ("d/b", "d/sub"):
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            if kind == "file":
                path.write_text("f")
            elif kind == "folder":
                path.mkdir()
            elif kind == "link":
                path.symlink_to("x")
            else:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))

    tree = bench.stack(built(bench, change)).tree
    types = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK, "device": stat.S_IFCHR}
    assert [stat.S_IFMT(at(tree, name).mode) for name in ("d/b", "d/sub")] == [types[kind]] * 2
    assert find(tree, b"d/sub/c") is None


def test_b41_chown_of_everything_adds_metadata_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.base(make_root(tmp_path / "root", **{f"usr__lib__{number}": os.urandom(20_000) for number in range(60)}))

    def chown(root: Path) -> None:
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), 7, 7, follow_symlinks=False)

    executor = OverlayExecutor(bench, {"chown": chown})
    result = bench.build("FROM base/b:1\nRUN chown\n", tag="workspace/w", executor=executor)
    assert result.stored_bytes < 20_000, f"1.2 MB of files, {result.stored_bytes} bytes stored"
    tree = bench.stack(result.layers[-1].digest).tree
    assert {access(tree, path)[1] for path in paths(tree)} == {7}


def test_b41_holds_without_any_local_knowledge(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.base(make_root(tmp_path / "root", **{f"usr__lib__{number}": os.urandom(20_000) for number in range(60)}))
    elsewhere = Bench(tmp_path / "other")
    elsewhere.store = bench.store

    def touch(root: Path) -> None:
        for path in (root / "usr/lib").iterdir():
            os.utime(path, ns=(1, 1))

    executor = OverlayExecutor(elsewhere, {"t": touch})
    result = elsewhere.build("FROM base/b:1\nRUN t\n", tag="workspace/w", executor=executor)
    assert result.stored_bytes < 20_000


def test_b14_special_bits_owners_and_capabilities_of_a_run(bench: Bench) -> None:
    capability = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)

    def make(root: Path) -> None:
        for name, mode in (("su", 0o4755), ("sg", 0o2755)):
            (root / name).write_text("x" * 300)
            os.chown(root / name, 5, 6)
            (root / name).chmod(mode)
        (root / "drop").mkdir()
        (root / "drop").chmod(0o1777)
        (root / "ping").write_text("p")
        os.setxattr(root / "ping", b"security.capability", capability)
        os.setxattr(root / "ping", b"user.empty", b"")

    tree = bench.layer(built(bench, make)).tree
    assert access(tree, "su") == (0o4755, 5, 6)
    assert access(tree, "sg") == (0o2755, 5, 6)
    assert access(tree, "drop")[0] == 0o1777
    assert at(tree, "ping").xattrs == {b"security.capability": capability, b"user.empty": b""}


def test_b26_b27_sparse_files_cost_their_data_only(bench: Bench) -> None:
    def lastlog(root: Path) -> None:
        with open(root / "lastlog", "wb") as file:
            file.seek(1 << 40)
            file.write(b"end")

    start = time.monotonic()
    digest = built(bench, lastlog)
    assert time.monotonic() - start < 30
    inode = at(bench.layer(digest).tree, "lastlog")
    assert isinstance(inode.body, Content)
    assert inode.body.size == (1 << 40) + 3
    assert len(bench.layer(digest).meta) < 200_000
    copied = bench.one("FROM base/b:1\nCOPY --from=workspace/w /lastlog /copy\n", tag="workspace/v")
    assert at(bench.layer(copied.digest).tree, "copy").size == (1 << 40) + 3


def test_b29_hard_links_stay_together_over_steps_and_folders(bench: Bench) -> None:
    def links(root: Path) -> None:
        (root / "one").write_text("l" * 600)
        os.link(root / "one", root / "d/two")
        os.link(root / "one", root / "usr/three")

    def touch(root: Path) -> None:
        (root / "d/b").write_text("changed")

    tree = bench.layer(built(bench, links, touch)).tree
    assert at(tree, "one") is at(tree, "d/two") is at(tree, "usr/three")
    copied = bench.one("FROM base/b:1\nCOPY --from=workspace/w /usr /d /all/\n", tag="workspace/v")
    both = at(bench.layer(copied.digest).tree, "all")
    assert at(both, "three").body is at(both, "two").body
    base = bench.stack(base_of(bench)).tree
    assert at(base, "d/a") is at(base, "usr/lib/linked")


def test_b30_b31_times_of_a_run_are_kept(bench: Bench) -> None:
    times = {"zero": 0, "before": -1, "fraction": 1_500_000_000_123_456_789, "far": 2**33 * 10**9 + 5}

    def make(root: Path) -> None:
        for name, time_ns in times.items():
            (root / name).write_text("x")
            os.utime(root / name, ns=(time_ns, time_ns))

    tree = bench.layer(built(bench, make)).tree
    assert {name: at(tree, name).mtime_ns for name in times} == times


def test_b32_builds_days_apart_have_one_digest_and_the_base_is_not_rewritten(bench: Bench) -> None:
    epoch = 1_650_000_000

    def make(now: int) -> Script:
        def script(root: Path) -> None:
            (root / "new/deep").mkdir(parents=True)
            (root / "new/deep/f").write_text("x")
            (root / "d/b").write_text("changed")
            (root / "old").write_text("o")
            os.link(root / "new/deep/f", root / "hard")
            (root / "link").symlink_to("x")
            set_times(root / "new", now)
            for name in ("d/b", "d", "link"):
                os.utime(root / name, ns=(now, now), follow_symlinks=False)
            os.utime(root / "old", ns=(5, 5))

        return script

    digests = set()
    for day in range(2):
        now = (epoch + 1_000 + day * 86_400) * 10**9
        result = bench.build(
            "FROM base/b:1\nRUN make\nWORKDIR /srv\n", tag="workspace/w", use_cache=False, epoch=epoch,
            executor=OverlayExecutor(bench, {"make": make(now)}),
        )  # fmt: skip
        digests.add(result.layers[-1].digest)
    assert len(digests) == 1
    tree = bench.layer(digests.pop()).tree
    times = {path: at(tree, path).mtime_ns for path in paths(tree)}
    clamped = {times[name] for name in ("new", "new/deep", "new/deep/f", "hard", "link", "d", "d/b", "srv")}
    assert clamped == {epoch * 10**9}
    assert times["old"] == 5
    merged = bench.stack(bench.store.local_refs.get(Ref.parse("workspace/w:dev"), HOST)).tree
    for path in ("usr/lib/libx", "usr/bin", "d/a", "d/sub"):
        assert at(merged, path).mtime_ns == TIME_NS


def test_b32_an_epoch_of_zero_counts_and_a_written_keep_wins(bench: Bench) -> None:
    bench.files(f="f")
    for mtime, expected in (("", 0), ("MTIME keep\n", TIME_NS), ("MTIME clamp\n", 0), ("MTIME 7\n", 7 * 10**9)):
        result = bench.build(f"FROM base/b:1\n{mtime}COPY f /f\n", tag="workspace/w", epoch=0)
        assert at(bench.layer(result.layers[-1].digest).tree, "f").mtime_ns == expected


def test_b33_names_that_are_no_text(bench: Bench) -> None:
    names = [b"\xff\xfe", b"new\nline", b"\xc3\x28", b" ", b"%41", b"x" * 255]

    def make(root: Path) -> None:
        for name in names:
            with open(os.fsencode(root) + b"/d/" + name, "wb") as file:
                file.write(b"#!/bin/sh\n")
                os.fchmod(file.fileno(), 0o755)

    digest = built(bench, make, text="COPY --from=base/b:1 /d /e\n")
    tree = bench.layer(digest).tree
    assert set(names) <= set(at(tree, "d").entries)
    assert {b"d/" + name for name in names} <= set(bench.layer(digest).facts.scripts)
    copied = bench.one("FROM base/b:1\nCOPY --from=workspace/w /d /copied\n", tag="workspace/v")
    assert set(names) <= set(at(bench.layer(copied.digest).tree, "copied").entries)


def test_b24_what_overlayfs_would_reinterpret_is_refused_in_the_context(bench: Bench) -> None:
    bench.files(d__f="f")
    os.mknod(bench.context / "d/dev", stat.S_IFCHR, 0)
    with pytest.raises(InputError, match="0:0"):
        bench.one("FROM base/b:1\nCOPY d /d\n")
    (bench.context / "d/dev").unlink()
    os.setxattr(bench.context / "d", b"trusted.overlay.opaque", b"y")
    with pytest.raises(InputError, match="overlay"):
        bench.one("FROM base/b:1\nCOPY d /d\n")


def test_b16_labels_of_the_host_are_not_kept_and_other_security_xattrs_are(bench: Bench) -> None:
    bench.files(f="f")
    os.setxattr(bench.context / "f", b"security.custom", b"v")
    os.setxattr(bench.context / "f", b"trusted.own", b"w")
    digest = bench.one("FROM base/b:1\nCOPY f /f\n").digest
    assert at(bench.layer(digest).tree, "f").xattrs == {b"security.custom": b"v", b"trusted.own": b"w"}


def test_special_files_of_context_and_run(bench: Bench) -> None:
    def make(root: Path) -> None:
        os.mkfifo(root / "fifo")
        os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(root / "disk", stat.S_IFBLK | 0o660, os.makedev(8, 1))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(root / "sock"))

    digest = built(bench, make)
    tree = bench.layer(digest).tree
    kinds = {name: stat.S_IFMT(at(tree, name).mode) for name in ("fifo", "null", "disk", "sock")}
    assert kinds == {"fifo": stat.S_IFIFO, "null": stat.S_IFCHR, "disk": stat.S_IFBLK, "sock": stat.S_IFSOCK}
    assert at(tree, "null").rdev == os.makedev(1, 3)
    copied = bench.one("FROM base/b:1\nCOPY --from=workspace/w / /all/\n", tag="workspace/v")
    assert trees_equal(at(bench.layer(copied.digest).tree, "all/d"), at(bench.stack(digest).tree, "d"))


def test_attributes_of_the_root_itself(bench: Bench) -> None:
    def change(root: Path) -> None:
        root.chmod(0o711)

    tree = bench.stack(built(bench, change)).tree
    assert stat.S_IMODE(tree.mode) == 0o711
    assert tree.mtime_ns == TIME_NS


def test_what_a_run_left_alone_is_in_no_layer(bench: Bench) -> None:
    digest = built(bench, lambda root: (root / "usr/lib/new").write_text("n"))
    before, after = bench.stack(base_of(bench)).tree, bench.stack(digest).tree
    changed = {difference.path for difference in differences(before, after)}
    assert changed == {b"usr/lib", b"usr/lib/new"}
    assert content(bench.stack(digest), "usr/lib/libx") == b"x" * 9000
