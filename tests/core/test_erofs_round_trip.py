"""What the writer writes, the reader finds: random trees to images and back, through every view."""

from __future__ import annotations

import random

import pytest

from layerkit.core.erofs_reader import BLOCK_SIZE, BodyKind, ErofsImage, Walk, check_image
from layerkit.core.erofs_views import flat_view, old_view
from layerkit.errors import CorruptError, UnsupportedError
from layerkit.layer.tree import Content, walk
from tests.core.erofs_agreement import walk_both
from tests.core.fuzz.erofs_targets import exercise
from tests.core.fuzz.mutations import mutate, used_ranges
from tests.support.contents import read
from tests.support.erofs_images import Script, image_of, script_of
from tests.support.random_trees import RandomTree, random_tree


def rows_by_path(found: Walk) -> dict[bytes, int]:
    paths, first = {b"": 0}, {0: b""}
    for parent, name, child in zip(found.parent, found.name, found.child, strict=True):
        path = first[parent] + b"/" + name if first[parent] else name
        first.setdefault(child, path)
        paths[path] = child
    return paths


def data_of(script: Script) -> bytes:
    data = bytearray(script.data_blocks * BLOCK_SIZE)
    for block, piece in script.pieces:
        data[block * BLOCK_SIZE : block * BLOCK_SIZE + len(piece)] = piece
    return bytes(data)


def file_bytes(image: ErofsImage, nid: int, data: bytes) -> bytes:
    out = b""
    for extent in image.map(nid):
        at = extent.data_offset
        out += bytes(extent.length) if at is None else data[at : at + extent.length]
    return out


def assert_tree_found(tree: RandomTree, found: Walk, image: ErofsImage, data: bytes) -> None:
    paths, row_of = rows_by_path(found), {}
    expected = dict(walk(tree.root))
    assert paths.keys() == expected.keys()
    for path, inode in expected.items():
        row = paths[path]
        # Every name of one inode leads to one row, and every row to one inode.
        assert row_of.setdefault(id(inode), row) == row
        assert (found.mode[row], found.uid[row], found.gid[row], found.mtime_ns[row], found.rdev[row]) == (
            inode.mode, inode.uid, inode.gid, inode.mtime_ns, inode.rdev)  # fmt: skip
        assert found.xattrs.get(row, {}) == inode.xattrs
        if isinstance(inode.body, Content):
            assert found.size[row] == inode.body.size
            assert found.body[row] in (BodyKind.DATA, BodyKind.CHUNKS)
            assert file_bytes(image, found.nid[row], data) == read(inode.body, tree.chunks, 0, inode.body.size)
        elif not inode.is_dir:
            assert found.inline[row] == inode.body
    assert len(set(row_of.values())) == len(row_of) == len(found)


@pytest.mark.parametrize("seed", range(25))
def test_l19_l20_l21_l22_trees_come_back(seed: int) -> None:
    tree = random_tree(seed, whiteouts=seed % 2 == 0)
    script = script_of(tree.root, tree.chunks)
    image = image_of(script)
    both = walk_both(image)
    assert both
    assert_tree_found(tree, both[0], ErofsImage(image), data_of(script))


@pytest.mark.parametrize("seed", range(6))
def test_views_hold_the_same_tree(seed: int) -> None:
    tree = random_tree(seed + 100)
    script = script_of(tree.root, tree.chunks)
    image, data = image_of(script), data_of(script)
    flat = flat_view(image)
    for whole in (bytes(flat), bytes(flat) + data):
        assert_tree_found(tree, ErofsImage(whole).walk(), ErofsImage(whole), data)
    old = bytes(old_view(image))
    plain = flat_view(image)
    for whole in (old, old + bytes(len(plain) - len(image)) + data):
        found = ErofsImage(whole).walk()
        assert rows_by_path(found).keys() == dict(walk(tree.root)).keys()
        assert ErofsImage(whole).superblock.data_blocks == 0


def test_l32_mutated_images_of_the_writer() -> None:
    accepted = 0
    for seed in range(3000):
        if seed % 300 == 0:
            tree = random_tree(seed, size=40)
            image = image_of(script_of(tree.root, tree.chunks))
            slots, nids = used_ranges(image), list(ErofsImage(image).walk().nid)
        source = random.Random(seed)
        mutated = mutate(source, image, slots)
        accepted += exercise(mutated, source.sample(nids, 2))
        if seed % 3 == 0:
            walk_both(mutated)
    assert 30 < accepted < 2900


def test_l10_a_truncated_image_is_corrupt() -> None:
    tree = random_tree(3)
    image = image_of(script_of(tree.root, tree.chunks))
    for size in range(0, len(image), 997):
        with pytest.raises((CorruptError, UnsupportedError)):
            check_image(image[:size])
