"""The flat and the old view as bytes; that they mount is shown in test_erofs_kernel."""

from __future__ import annotations

import struct

import pytest

from layerkit.core.erofs_views import flat_view, old_view
from layerkit.core.erofs_writer import superblock_checksum
from layerkit.errors import CorruptError, LimitError, UnsupportedError
from layerkit.layer.tree import new_directory
from tests.support.erofs_images import Script, image_of, script_of
from tests.support.random_trees import random_tree

SLOT = 1152


def script() -> Script:
    tree = random_tree(5)
    return script_of(tree.root, tree.chunks)


def test_flat_view_of_our_images_is_the_metadata() -> None:
    meta = image_of(script())
    assert flat_view(meta) == meta


def test_flat_view_is_padded_to_the_mapped_address() -> None:
    meta = bytearray(image_of(script()))
    struct.pack_into("<I", meta, SLOT + 68, len(meta) // 4096 + 3)
    view = flat_view(meta)
    assert view[: len(meta)] == meta
    assert view[len(meta) :] == bytes(3 * 4096)


def test_old_view_counts_all_blocks_and_has_no_device() -> None:
    made = script()
    view = old_view(image_of(made))
    assert struct.unpack_from("<I", view, 1024 + 36)[0] == len(view) // 4096 + made.data_blocks
    assert struct.unpack_from("<I", view, 1024 + 80)[0] & 8 == 0
    assert struct.unpack_from("<HH", view, 1024 + 86) == (0, 0)
    assert view[SLOT : SLOT + 128] == bytes(128)
    assert struct.unpack_from("<I", view, 1028)[0] == superblock_checksum(view)


def test_l31_an_image_without_data_is_its_own_view() -> None:
    meta = image_of(script_of(new_directory(), {}))
    assert flat_view(meta) == old_view(meta) == meta


@pytest.mark.parametrize(
    ("offset", "value", "error"),
    [
        (1024, b"\0\0\0\0", CorruptError),
        (1024 + 86, struct.pack("<H", 2), UnsupportedError),
        (1024 + 88, struct.pack("<H", 0), CorruptError),
        (1024 + 88, struct.pack("<H", 32), CorruptError),
        (SLOT + 68, struct.pack("<I", 0), CorruptError),
        (SLOT + 64, struct.pack("<II", 2**32 - 1, 2**20), LimitError),
    ],
    ids=["magic", "devices", "slot-low", "slot-high", "mapped", "blocks"],
)
def test_damaged_images_are_refused(offset: int, value: bytes, error: type[Exception]) -> None:
    meta = bytearray(image_of(script()))
    meta[offset : offset + len(value)] = value
    if error is LimitError:
        with pytest.raises(LimitError):
            old_view(bytes(meta))
        return
    for view in (flat_view, old_view):
        with pytest.raises(error):
            view(meta)


def test_short_input_is_refused() -> None:
    for data in (b"", bytes(4095)):
        with pytest.raises(CorruptError):
            flat_view(data)
