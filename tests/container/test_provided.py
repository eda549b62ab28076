"""The merged view, the extra lower and what is scrubbed from an upper, against real folders."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from layerkit.errors import InputError
from layerkit.runtime.host_files import hosts_file, profile_script
from layerkit.runtime.merged_view import MergedView
from layerkit.runtime.provided import Provided, Wish, provide, scrub
from layerkit.runtime.records import Record, check_id, claim, cleanup_leftovers
from layerkit.runtime.spec import Mount

pytestmark = pytest.mark.privileged


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, 0)


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    """Three layers, topmost first."""
    low, middle, top = (tmp_path / name for name in ("low", "middle", "top"))
    for name in ("etc", "run/systemd", "var", "gone/dir", "opaque/old", "usr/lib"):
        (low / name).mkdir(parents=True)
    (low / "etc/passwd").write_text("low")
    (low / "etc/resolv.conf").symlink_to("../run/systemd/resolv.conf")
    (low / "var/run").symlink_to("/run")
    (low / "lib").symlink_to("usr/lib")
    (low / "loop").symlink_to("loop")
    (low / "etc").chmod(0o751)
    os.chown(low / "etc", 11, 12)
    os.utime(low / "etc", ns=(5_000_000_007, 6_000_000_009))
    os.setxattr(low / "etc", "user.mark", b"m")
    (middle / "opaque/new").mkdir(parents=True)
    os.setxattr(middle / "opaque", "trusted.overlay.opaque", b"y")
    whiteout(middle / "gone")
    (middle / "file").write_text("f")
    (top / "file").mkdir(parents=True)
    (top / "gone").mkdir()
    return [top, middle, low]


@pytest.mark.parametrize(
    ("path", "leads_to", "exists"),
    [
        ("/", "/", True), ("/etc/passwd", "/etc/passwd", True), ("/etc/../etc//./passwd", "/etc/passwd", True),
        ("/../../etc", "/etc", True), ("/etc/resolv.conf", "/run/systemd/resolv.conf", False),
        ("/var/run/x/y", "/run/x/y", False), ("/lib/a", "/usr/lib/a", False), ("/gone", "/gone", True),
        ("/gone/dir", "/gone/dir", False), ("/opaque/old", "/opaque/old", False), ("/opaque/new", "/opaque/new", True),
        ("/file", "/file", True), ("/none/such", "/none/such", False),
    ],
)  # fmt: skip
def test_view_is_what_overlayfs_shows(
    layers: list[Path], tmp_path: Path, path: str, leads_to: str, exists: bool
) -> None:
    place = MergedView(layers).resolve(path)
    assert (place.path, place.status is not None) == (leads_to, exists)
    point = tmp_path / "point"
    point.mkdir()
    options = "lowerdir=" + ":".join(map(str, layers))
    subprocess.run(["mount", "-t", "overlay", "x", "-o", options, point], check=True)
    try:
        assert os.path.lexists(f"{point}{leads_to}") == exists
    finally:
        subprocess.run(["umount", point], check=True)


def test_view_refuses_loops_and_files_on_the_way(layers: list[Path]) -> None:
    view = MergedView(layers)
    with pytest.raises(InputError, match="too many links"):
        view.resolve("/loop/x")
    with pytest.raises(InputError, match="not a folder"):
        view.resolve("/etc/passwd/x")


def test_extra_lower_repeats_attributes(layers: list[Path], tmp_path: Path) -> None:
    view = MergedView(layers)
    extra = tmp_path / "extra"
    found = provide(extra, view, [
        Wish("/etc/hosts", is_dir=False), Wish("/etc/passwd", is_dir=False), Wish("/etc/new/deep", is_dir=True),
        Wish("/etc/resolv.conf", is_dir=False), Wish("/etc", is_dir=True),
        Wish("/etc/trust", is_dir=False, content=b"ca"),
    ])  # fmt: skip
    assert {"/".join(item.parts): item.was_there for item in found} == {
        "": True, "etc": True, "etc/hosts": False, "etc/new": False, "etc/new/deep": False, "run": True,
        "run/systemd": True, "run/systemd/resolv.conf": False, "etc/trust": False,
    }  # fmt: skip
    status = os.stat(extra / "etc")
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o751, 11, 12)
    assert status.st_mtime_ns == 6_000_000_009
    assert os.getxattr(extra / "etc", "user.mark") == b"m"
    assert (extra / "etc/trust").read_bytes() == b"ca"
    assert not (extra / "etc/passwd").exists()


def test_nothing_wished_nothing_made(layers: list[Path], tmp_path: Path) -> None:
    assert provide(tmp_path / "extra", MergedView(layers), [Wish("/etc", is_dir=True)]) == []
    assert not (tmp_path / "extra").exists()
    with pytest.raises(InputError):
        provide(tmp_path / "extra", MergedView(layers), [Wish("/etc", is_dir=False)])


def test_scrub_does_not_follow_links_of_strangers(tmp_path: Path) -> None:
    upper, outside = tmp_path / "upper", tmp_path / "outside"
    outside.mkdir()
    upper.mkdir()
    (outside / "hosts").write_bytes(b"x")
    (upper / "etc").symlink_to(outside)
    scrub(upper, [Provided(("etc",), None, False), Provided(("etc", "hosts"), b"x", False)])
    assert (outside / "hosts").read_bytes() == b"x"
    assert (upper / "etc").is_symlink()


def test_scrub_keeps_what_a_command_wrote(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "etc").mkdir(parents=True)
    (upper / "etc/a").write_bytes(b"changed")
    (upper / "etc/b").write_bytes(b"given and more")
    (upper / "etc/c").write_bytes(b"given")
    whiteout(upper / "etc/d")
    whiteout(upper / "etc/e")
    items = [Provided(("etc", name), b"given", was) for name, was in zip("abcde", [False] * 4 + [True], strict=True)]
    scrub(upper, [Provided(("etc",), None, True), *items])
    assert sorted(os.listdir(upper / "etc")) == ["a", "b", "e"]
    assert (upper / "etc/b").read_bytes() == b" and more"


def test_profile_script_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_bytes(profile_script(["/a b/bin", "/x/$HOME/bin"]))
    run = f'PATH=/usr/bin:/bin; . "{script}"; . "{script}"; echo "$PATH"'
    done = subprocess.run(["sh", "-c", run], capture_output=True, check=True)
    assert done.stdout == b"/a b/bin:/x/$HOME/bin:/usr/bin:/bin\n"
    assert "127.0.1.1\tbox" in hosts_file("box")


@pytest.mark.parametrize("text", ["", "A", "-x", "a/b", "../x", "x" * 64])
def test_ids(text: str) -> None:
    with pytest.raises(InputError):
        check_id(text)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "x"}'])
def test_torn_records_are_removed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sandboxes").mkdir()
    (tmp_path / "sandboxes/torn.json").write_bytes(content)
    assert cleanup_leftovers(tmp_path, tmp_path) == ["torn"]
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_record_of_a_dead_process_gives_way(tmp_path: Path) -> None:
    record = Record("x", "", "none", "", 1, 0)
    first = claim(tmp_path, record)
    first.release()
    second = claim(tmp_path, record)
    second.drop()
    assert list((tmp_path / "sandboxes").iterdir()) == []


@pytest.mark.parametrize("text", ["", "/a", "a:b", ":/b", "/a:/b:rx", "/a:b:ro"])
def test_mount_spelling(text: str) -> None:
    with pytest.raises(InputError):
        Mount.parse(text)
    assert Mount.parse("/a:/b:ro") == Mount(Path("/a"), "/b", readonly=True)
