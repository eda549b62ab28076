"""COPY's rules on trees: every row is what BuildKit does."""

from __future__ import annotations

import stat

import pytest

from layerkit.build.copying import CopyOptions, CopySource, copy_sources
from layerkit.build.edit import TreeEditor
from layerkit.build.filemode import parse_mode
from layerkit.build.paths import resolve
from layerkit.errors import InputError
from layerkit.layer.tree import Inode, find, new_directory, walk

KEEP = CopyOptions(owner=None, mode=None, mtime_ns=7)
ROOT = CopyOptions(owner=(0, 0), mode=None, mtime_ns=7)


def file(data: bytes = b"x", mode: int = 0o644, uid: int = 0, gid: int = 0) -> Inode:
    return Inode(stat.S_IFREG | mode, uid, gid, 5, body=data)


def link(target: bytes) -> Inode:
    return Inode(stat.S_IFLNK | 0o777, body=target)


def folder(mode: int = 0o755, uid: int = 0, gid: int = 0, **entries: Inode) -> Inode:
    directory = new_directory(mode, uid, gid, 5)
    directory.entries.update({name.encode(): inode for name, inode in entries.items()})
    return directory


def copied(root: Inode, source: Inode, dest: bytes, options: CopyOptions = ROOT, name: bytes = b"f") -> TreeEditor:
    editor = TreeEditor(root)
    copy_sources(editor, [CopySource(name, source)], dest, options)
    return editor


def at(root: Inode, path: bytes) -> Inode:
    inode = find(root, path)
    assert inode is not None, path
    return inode


def test_b07_copy_goes_through_a_symlinked_directory_and_keeps_the_link() -> None:
    root = folder(usr=folder(bin=folder()), bin=link(b"usr/bin"))
    editor = copied(root, folder(tool=file()), b"/bin/")
    assert at(editor.root, b"bin").is_symlink
    assert at(editor.root, b"usr/bin/tool").body == b"x"
    assert find(root, b"usr/bin/tool") is None, "the original tree stays as it was"


def test_b07_absolute_links_start_at_the_root_and_dotdot_stays_inside() -> None:
    root = folder(srv=folder(), a=folder(b=link(b"/srv"), up=link(b"../../../../srv")))
    for dest in (b"/a/b/f", b"/a/up/f", b"/../../srv/f"):
        assert at(copied(root, file(), dest).root, b"srv/f").body == b"x"


def test_b08_a_file_lands_in_an_existing_directory_without_a_slash() -> None:
    editor = copied(folder(usr=folder(local=folder(bin=folder()))), file(), b"/usr/local/bin")
    assert at(editor.root, b"usr/local/bin").is_dir
    assert at(editor.root, b"usr/local/bin/f").body == b"x"


def test_b09_sources_are_found_through_a_symlinked_parent() -> None:
    root = folder(usr=folder(lib=folder(so=file(b"so"))), lib=link(b"usr/lib"))
    assert resolve(root, b"/lib/so").parts == (b"usr", b"lib", b"so")


def test_b10_links_inside_a_directory_are_copied_as_links() -> None:
    editor = copied(folder(), folder(l=link(b"../outside")), b"/d")
    assert at(editor.root, b"d/l").body == b"../outside"
    assert find(editor.root, b"outside") is None


def test_b11_created_parents_are_0755_with_the_owner_of_chown() -> None:
    options = CopyOptions(owner=(7, 8), mode=parse_mode("0600"), mtime_ns=7)
    editor = copied(folder(), file(), b"/new/parent/f", options)
    parent, inner = at(editor.root, b"new/parent"), at(editor.root, b"new/parent/f")
    assert (stat.S_IMODE(parent.mode), parent.uid, parent.gid) == (0o755, 7, 8)
    assert (stat.S_IMODE(inner.mode), inner.uid, inner.gid) == (0o600, 7, 8)


def test_b11_existing_parents_are_left_alone() -> None:
    root = folder(old=folder(0o700, 3, 4))
    parent = at(copied(root, file(), b"/old/f", CopyOptions((7, 8), parse_mode("0600"), 7)).root, b"old")
    assert (stat.S_IMODE(parent.mode), parent.uid, parent.gid) == (0o700, 3, 4)


def test_b12_the_difference_holds_shared_directories_as_they_are_below() -> None:
    root = folder(tmp=folder(0o1777), var=folder(0o755, lib=folder(0o711, 9, 9)))
    difference = copied(root, file(), b"/var/lib/x/f").difference()
    assert sorted(path for path, _ in walk(difference)) == [b"", b"var", b"var/lib", b"var/lib/x", b"var/lib/x/f"]
    shared = at(difference, b"var/lib")
    assert (stat.S_IMODE(shared.mode), shared.uid, shared.gid) == (0o711, 9, 9)


def test_b13_owners_are_dropped_for_the_context_and_kept_between_stages() -> None:
    source = folder(f=file(uid=1000, gid=1000))
    assert at(copied(folder(), source, b"/d", ROOT).root, b"d/f").uid == 0
    assert at(copied(folder(), source, b"/d", KEEP).root, b"d/f").uid == 1000


def test_b14_setuid_and_sticky_bits_survive() -> None:
    source = folder(su=file(mode=0o4755), t=folder(0o1777))
    editor = copied(folder(), source, b"/d", CopyOptions((5, 5), None, 7))
    assert stat.S_IMODE(at(editor.root, b"d/su").mode) == 0o4755
    assert stat.S_IMODE(at(editor.root, b"d/t").mode) == 0o1777


def test_hard_links_inside_a_source_stay_hard_links() -> None:
    shared = file()
    editor = copied(folder(), folder(a=shared, b=shared), b"/d")
    assert at(editor.root, b"d/a") is at(editor.root, b"d/b")


def test_the_destination_keeps_its_attributes_but_directories_below_take_the_sources() -> None:
    root = folder(d=folder(0o700, 1, 1, sub=folder(0o700, 1, 1)))
    editor = copied(root, folder(0o755, 2, 2, sub=folder(0o750, 2, 2)), b"/d", KEEP)
    assert stat.S_IMODE(at(editor.root, b"d").mode) == 0o700
    assert (stat.S_IMODE(at(editor.root, b"d/sub").mode), at(editor.root, b"d/sub").uid) == (0o750, 2)


@pytest.mark.parametrize(
    ("root", "source", "dest"),
    [
        (folder(d=file()), folder(a=file()), b"/d"),
        (folder(d=folder(f=folder(x=file()))), file(), b"/d"),
        (folder(d=file()), file(), b"/d/below"),
        (folder(a=link(b"b"), b=link(b"a")), file(), b"/a/f"),
    ],
    ids=["directory over file", "file over directory", "below a file", "link loop"],
)
def test_impossible_copies_are_refused(root: Inode, source: Inode, dest: bytes) -> None:
    with pytest.raises(InputError):
        copied(root, source, dest)


def test_several_sources_make_the_destination_a_directory() -> None:
    editor = TreeEditor(folder())
    copy_sources(editor, [CopySource(b"a", file(b"1")), CopySource(b"b", file(b"2"))], b"/d/", ROOT)
    assert (at(editor.root, b"d/a").body, at(editor.root, b"d/b").body) == (b"1", b"2")
