"""Differences and digests of trees."""

from __future__ import annotations

import stat

from hypothesis import given, settings

from layerkit.layer.compare import differences, tree_digest, trees_equal
from layerkit.layer.tree import Chunk, Content, Inode
from tests.layer.layer_trees import clone, directory, edit, file, scripts, symlink


@given(scripts, scripts)
@settings(max_examples=100, deadline=None)
def test_trees_are_equal_exactly_when_their_digests_are(first: list, second: list) -> None:
    one, other = edit(directory(), first), edit(directory(), second)
    assert trees_equal(one, clone(one))
    assert tree_digest(one) == tree_digest(clone(one))
    assert trees_equal(one, other) == (tree_digest(one) == tree_digest(other))


def test_l24_digest_does_not_depend_on_the_order_of_entries_and_xattrs() -> None:
    one = directory({b"a": file(), b"b": file(b"1")}, xattrs={b"user.a": b"", b"user.b": b"1"})
    other = directory({b"b": file(b"1"), b"a": file()}, xattrs={b"user.b": b"1", b"user.a": b""})
    assert tree_digest(one) == tree_digest(other)


def test_every_field_is_named() -> None:
    old = directory(
        {b"f": file(b"1"), b"gone": directory({b"x": file()}), b"t": file(), b"dev": Inode(stat.S_IFBLK, rdev=1)}
    )
    new = directory(
        {
            b"f": file(b"2", 0o755, uid=1, mtime_ns=5, xattrs={b"user.a": b""}),
            b"came": symlink(b"x"),
            b"t": directory(),
            b"dev": Inode(stat.S_IFBLK, rdev=2),
        }
    )
    assert [(d.path, d.kind, d.fields) for d in differences(old, new)] == [
        (b"came", "added", ()),
        (b"dev", "changed", ("device",)),
        (b"f", "changed", ("mode", "owner", "mtime", "xattrs", "content")),
        (b"gone", "removed", ()),
        (b"gone/x", "removed", ()),
        (b"t", "changed", ("type", "mode")),
    ]


def test_l19_lost_hard_links_are_a_difference() -> None:
    linked = file(b"1")
    old = directory({b"a": linked, b"b": linked})
    new = directory({b"a": file(b"1"), b"b": file(b"1")})
    assert [(d.path, d.fields) for d in differences(old, new)] == [(b"a", ("links",)), (b"b", ("links",))]
    assert tree_digest(old) != tree_digest(new)


def test_contents_are_equal_however_their_zeros_are_cut() -> None:
    def tree(*lengths: int) -> Inode:
        chunks = (Chunk(4096, b"i" * 32), *(Chunk(length, b"") for length in lengths))
        return directory({b"f": Inode(stat.S_IFREG, body=Content(4096 + sum(lengths), chunks))})

    assert trees_equal(tree(3 << 30), tree(1 << 31, 1 << 30))
    assert tree_digest(tree(65536, 65536)) == tree_digest(tree(131072))
    assert not trees_equal(tree(65536), tree(65537))
