"""fsck.erofs, dump.erofs and mkfs.erofs: as judges of what we write, and as programs that we drive."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerkit._util.process import find_program
from layerkit.core.erofs_utils import dump_path, dump_superblock, erofs_utils_version, fsck_erofs, mkfs_erofs
from layerkit.errors import CorruptError, HostError
from tests.support.erofs_images import image_of, script_of
from tests.support.erofs_judge import judge_tools, write_views
from tests.support.random_trees import random_tree

pytestmark = pytest.mark.skipif(find_program("fsck.erofs") is None, reason="erofs-utils is not installed")


@pytest.mark.parametrize("seed", range(15))
def test_fsck_and_dump_accept_what_we_write(seed: int, tmp_path: Path) -> None:
    tree = random_tree(seed)
    script = script_of(tree.root, tree.chunks)
    judge_tools(tmp_path, image_of(script), script.write_data, tree.root, tree.chunks)


def test_dump_shows_superblock_and_directories(tmp_path: Path) -> None:
    tree = random_tree(1)
    script = script_of(tree.root, tree.chunks)
    meta = image_of(script)
    image, device = write_views(tmp_path, meta, script.write_data)["device"]
    shown = dump_superblock(image, device=device)
    assert shown["Filesystem magic number"] == "0xE0F5E1E2"
    assert shown["Filesystem UUID"].replace("-", "") == meta[1072:1088].hex()
    assert "device_table" in shown["Filesystem features"]
    assert "sb_csum" in shown["Filesystem features"]
    assert "Links: " in dump_path(image, "/", device=device, is_directory=True)


def test_version_is_a_tuple_of_numbers() -> None:
    assert erofs_utils_version() >= (1, 5)


def test_fsck_refuses_a_damaged_image(tmp_path: Path) -> None:
    tree = random_tree(2)
    script = script_of(tree.root, tree.chunks)
    image = tmp_path / "image"
    damaged = bytearray(image_of(script))
    damaged[1100] ^= 0xFF
    image.write_bytes(damaged)
    with pytest.raises(CorruptError, match=re.escape(str(image))):
        fsck_erofs(image)
    with pytest.raises(HostError, match=r"dump\.erofs"):
        dump_superblock(tmp_path / "absent")


def test_mkfs_packs_a_folder(tmp_path: Path) -> None:
    folder, image = tmp_path / "folder", tmp_path / "image"
    folder.mkdir()
    (folder / "a").write_bytes(b"text " * 5000)
    uuid = "6f3c2a1e-0000-8000-8000-000000000001"
    mkfs_erofs(image, folder, compression="lz4hc,9", uuid=uuid, timestamp_s=1)
    first = image.read_bytes()
    image.unlink()
    mkfs_erofs(image, folder, compression="lz4hc,9", uuid=uuid, timestamp_s=1)
    assert image.read_bytes() == first
    fsck_erofs(image, extract=tmp_path / "extracted")
    assert (tmp_path / "extracted" / "a").read_bytes() == b"text " * 5000
    mkfs_erofs(tmp_path / "plain", folder)
    assert dump_superblock(image)["Filesystem UUID"] == uuid
