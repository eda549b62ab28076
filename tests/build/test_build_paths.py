"""Paths inside a tree: the kernel, asked with openat2(RESOLVE_IN_ROOT) on the same tree, is the judge."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.build.paths import MAX_LINKS, join, resolve, split
from layerkit.errors import InputError
from layerkit.layer.tree import Inode, find, new_directory
from tests.layer.layer_trees import file, materialise, symlink
from tests.support import openat2

NAMES = [b"a", b"b", b"c"]
words = st.lists(st.sampled_from([*NAMES, b"..", b".", b""]), min_size=1, max_size=6).map(b"/".join)
targets = st.one_of(words, words.map(lambda path: b"/" + path)).filter(bool)
leaves = st.one_of(st.builds(file, st.just(b"x")), st.builds(symlink, targets))
trees = st.recursive(
    leaves, lambda children: st.dictionaries(st.sampled_from(NAMES), children, max_size=3).map(
        lambda entries: Inode(0o40755, body=entries)
    ), max_leaves=12,
)  # fmt: skip


def kernel_answer(root: Path, path: bytes, follow_last: bool) -> tuple[int, int] | int:
    """(device, inode) of what is there, or the errno."""
    root_fd = os.open(root, os.O_PATH)
    try:
        fd = openat2.open_in_root(root_fd, path, follow_last=follow_last)
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(root_fd)
    found = os.fstat(fd)
    os.close(fd)
    return found.st_dev, found.st_ino


@pytest.mark.skipif(not openat2.is_there(), reason="needs Linux 5.6 (openat2)")
@given(entries=st.dictionaries(st.sampled_from(NAMES), trees, max_size=3), path=words, follow_last=st.booleans())
@settings(max_examples=300, deadline=None)
def test_b09_paths_lead_where_the_kernel_says(entries: dict[bytes, Inode], path: bytes, follow_last: bool) -> None:
    tree = new_directory()
    tree.body = entries
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        materialise(tree, root)
        answer = kernel_answer(root, path, follow_last)
        try:
            found = resolve(tree, path, follow_last=follow_last)
        except InputError:
            # More lenient than the kernel here and there (below), never stricter.
            assert answer in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)
            return
        if isinstance(answer, tuple):
            assert found.inode is not None
            assert found.missing == 0
            there = os.lstat(os.fsencode(root) + join(found.parts))
            assert (there.st_dev, there.st_ino) == answer
            assert find(tree, b"/".join(found.parts)) is found.inode
        elif found.inode is not None:
            # COPY goes by names where the kernel wants folders to exist: `missing/..`, `file/.`, a slash after a file.
            assert answer in (errno.ENOENT, errno.ENOTDIR)
            assert {b"..", b".", b""} & set(path.split(b"/")) or b"." in str(entries).encode()


def test_l38_nothing_leads_out() -> None:
    tree = new_directory()
    tree.entries[b"up"] = symlink(b"../../../..")
    tree.entries[b"abs"] = symlink(b"/etc")
    tree.entries[b"etc"] = new_directory()
    assert resolve(tree, b"up").inode is tree
    assert resolve(tree, b"../../abs/../up/etc").parts == (b"etc",)
    assert resolve(tree, b"/abs", follow_last=False).inode is tree.entries[b"abs"]


def test_a_link_with_a_slash_behind_it_is_followed() -> None:
    tree = new_directory()
    tree.entries[b"link"] = symlink(b"etc")
    tree.entries[b"etc"] = new_directory()
    for path in (b"link/", b"link/.", b"link//", b"link/./"):
        assert resolve(tree, path, follow_last=False).parts == (b"etc",)


def test_as_many_links_as_the_kernel_follows() -> None:
    tree = new_directory()
    tree.entries[b"0"] = file(b"end")
    for number in range(1, MAX_LINKS + 2):
        tree.entries[b"%d" % number] = symlink(b"%d" % (number - 1))
    assert resolve(tree, b"%d" % MAX_LINKS).inode is tree.entries[b"0"]
    with pytest.raises(InputError, match="symbolic links"):
        resolve(tree, b"%d" % (MAX_LINKS + 1))
    tree.entries[b"loop"] = symlink(b"loop")
    with pytest.raises(InputError):
        resolve(tree, b"loop")


def test_what_is_missing_stands_at_the_end() -> None:
    tree = new_directory()
    tree.entries[b"lib"] = symlink(b"usr/lib")
    tree.entries[b"usr"] = new_directory()
    found = resolve(tree, b"/lib/x/y")
    assert (found.parts, found.inode, found.missing) == ((b"usr", b"lib", b"x", b"y"), None, 3)


def test_spelling() -> None:
    assert split(b"//a/./b//../c/") == [b"a", b"b", b"..", b"c"]
    assert join((b"a", b"b")) == b"/a/b"
    assert join(()) == b"/"
