"""The three spellings of whiteouts and opaque directories."""

from __future__ import annotations

import os
import stat

import pytest

from layerkit.errors import ArchiveError, InputError
from layerkit.layer.tree import Inode
from layerkit.layer.whiteouts import (
    OPAQUE_XATTR,
    OciMark,
    is_opaque,
    is_whiteout,
    make_whiteout,
    oci_whiteout_name,
    read_oci_name,
    refuse_foreign,
    set_opaque,
    translate_upper,
)
from tests.layer.layer_trees import directory, file


def test_a_whiteout_is_char_0_0_and_nothing_else() -> None:
    assert is_whiteout(make_whiteout())
    assert is_whiteout(Inode(stat.S_IFCHR | 0o644))
    assert not is_whiteout(Inode(stat.S_IFCHR, rdev=os.makedev(1, 3)))
    assert not is_whiteout(Inode(stat.S_IFBLK))
    assert not is_whiteout(file())


def test_opaque_is_for_directories_with_the_value_y() -> None:
    marked = directory()
    assert not is_opaque(marked)
    set_opaque(marked)
    assert is_opaque(marked)
    assert not is_opaque(directory(xattrs={OPAQUE_XATTR: b"n"}))
    assert not is_opaque(file(xattrs={OPAQUE_XATTR: b"y"}))


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        (b"a", None),
        (b".wha", None),
        (b"wh.a", None),
        (b".wh.a", OciMark(hides=b"a")),
        (b".wh..hidden", OciMark(hides=b".hidden")),
        (b".wh.\xff", OciMark(hides=b"\xff")),
        (b".wh..wh..opq", OciMark(opaque=True)),
        (b".wh..wh.plnk", OciMark()),
        (b".wh..wh.aufs", OciMark()),
    ],
)
def test_b20_oci_names(name: bytes, mark: OciMark | None) -> None:
    assert read_oci_name(name) == mark


@pytest.mark.parametrize("name", [b".wh.", b".wh..", b".wh..."])
def test_b25_whiteouts_of_nothing_are_refused(name: bytes) -> None:
    with pytest.raises(ArchiveError):
        read_oci_name(name)


def test_b24_names_without_an_oci_spelling_are_refused() -> None:
    assert oci_whiteout_name(b"a") == b".wh.a"
    with pytest.raises(InputError, match=r"^d/\.wh\.a: "):
        oci_whiteout_name(b".wh.a", b"d/.wh.a")


def test_b24_what_overlayfs_would_reinterpret_is_refused() -> None:
    refuse_foreign(b"x", stat.S_IFCHR, os.makedev(1, 3), {b"user.a": b""})
    with pytest.raises(InputError, match=r"^d/null: .*0:0"):
        refuse_foreign(b"d/null", stat.S_IFCHR, 0, {})
    for name in (b"trusted.overlay.opaque", b"user.overlay.opaque", b"trusted.overlay.metacopy"):
        with pytest.raises(InputError, match=r"^d: .*overlay"):
            refuse_foreign(b"d", stat.S_IFDIR, 0, {name: b"y"})


def test_b23_both_spellings_of_an_upper_directory_become_one() -> None:
    for space in (b"trusted.overlay.", b"user.overlay."):
        found = translate_upper(b"d", {space + b"opaque": b"y", space + b"origin": b"\0", space + b"impure": b"y",
                                       b"user.a": b"1"})  # fmt: skip
        assert found == {OPAQUE_XATTR: b"y", b"user.a": b"1"}


@pytest.mark.parametrize(
    "xattrs",
    [
        {b"trusted.overlay.redirect": b"/a"},
        {b"user.overlay.metacopy": b""},
        {b"trusted.overlay.opaque": b"x"},
        {b"trusted.overlay.whiteout": b"y"},
        {b"trusted.overlay.overlay.opaque": b"y"},
    ],
)
def test_b24_half_inodes_of_an_upper_directory_are_refused(xattrs: dict[bytes, bytes]) -> None:
    with pytest.raises(InputError, match=r"^d: .*not understood"):
        translate_upper(b"d", xattrs)
