"""Presence maps and data files: bits, identities, damage."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerkit._util import processes
from layerkit.errors import CorruptError, HostError
from layerkit.fuse import bitmaps, presence
from layerkit.fuse.data_file import DataFile, DataIdentity, is_used_elsewhere
from layerkit.fuse.presence import VolatileMap, read_durable_map, write_durable_map

LAYER = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@given(st.sets(st.integers(0, 9999)), st.integers(0, 9999), st.integers(0, 9999))
def test_bitmaps_agree_with_sets(numbers: set[int], one: int, two: int) -> None:
    first, last = sorted((one, two))
    buffer = bytearray(b"head" + bytes(bitmaps.byte_count(10_000)))
    body = buffer[4:]
    bitmaps.set_bits(body, numbers)
    buffer[4:] = body
    expected = [number for number in range(first, last + 1) if number not in numbers]
    assert bitmaps.clear_numbers(buffer, 4, first, last) == expected
    assert bitmaps.all_set(buffer, 4, first, last) == (not expected)
    assert bitmaps.count_set(buffer, 4, 10_000) == len(numbers)
    bitmaps.clear_bits(body, numbers)
    assert not any(body)


def test_volatile_map_is_seen_by_readers(tmp_path: Path) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 1 << 20)
    writer = VolatileMap.create_or_open(tmp_path / "map", LAYER, data.identity, 1000)
    reader = VolatileMap.open_for_reading(tmp_path / "map", LAYER)
    assert reader.identity == data.identity
    assert not reader.has_all(0, 0)
    writer.mark(range(10, 20))
    writer.mark(range(15, 25))
    assert reader.has_all(10, 24)
    assert reader.absent(8, 26) == [8, 9, 25, 26]
    assert reader.count == 15
    writer.forget([12, 999])
    assert reader.count == 14
    writer.mark(range(1000))
    assert reader.is_complete
    assert VolatileMap.create_or_open(tmp_path / "map", LAYER, data.identity, 1000).is_complete, "kept over a restart"


def test_map_of_an_empty_layer(tmp_path: Path) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 0)
    assert VolatileMap.create_or_open(tmp_path / "map", LAYER, data.identity, 0).is_complete
    assert VolatileMap.open_for_reading(tmp_path / "map", LAYER).is_complete


def test_l14_volatile_map_of_another_file_layer_or_boot_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "map"

    def fresh(identity: DataIdentity, layer: str = LAYER, bits: int = 100) -> bool:
        empty = VolatileMap.create_or_open(path, layer, identity, bits).count == 0
        VolatileMap.create_or_open(path, LAYER, data.identity, 100).mark(range(100))
        return empty

    data = DataFile.create_or_open(tmp_path / "data", 1 << 20)
    assert fresh(data.identity)
    assert not fresh(data.identity)
    for field in DataIdentity._fields:
        assert fresh(data.identity._replace(**{field: getattr(data.identity, field) + 1})), field
    assert fresh(data.identity, layer=OTHER)
    assert fresh(data.identity, bits=101)
    monkeypatch.setattr(presence, "boot_id", lambda: "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    with pytest.raises(CorruptError):
        VolatileMap.open_for_reading(path, LAYER)
    assert fresh(data.identity)


@pytest.mark.parametrize("spoil", ["cut", "magic", "other layer", "longer"])
def test_damaged_volatile_map_is_refused(tmp_path: Path, spoil: str) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 4096)
    VolatileMap.create_or_open(tmp_path / "map", LAYER, data.identity, 64).mark(range(64))
    raw = bytearray((tmp_path / "map").read_bytes())
    layer = OTHER if spoil == "other layer" else LAYER
    if spoil == "cut":
        del raw[20:]
    elif spoil == "magic":
        raw[0] ^= 1
    elif spoil == "longer":
        raw += b"\xff"
    (tmp_path / "map").write_bytes(raw)
    with pytest.raises(CorruptError):
        VolatileMap.open_for_reading(tmp_path / "map", layer)
    assert VolatileMap.create_or_open(tmp_path / "map", layer, data.identity, 64).count == 0


def test_l10_durable_map_is_bound_and_checksummed(tmp_path: Path) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 1 << 20)
    bitmap = random.Random(1).randbytes(125)
    path = tmp_path / "presence"
    with pytest.raises(FileNotFoundError):
        read_durable_map(path, LAYER, data.identity, 1000)
    write_durable_map(path, LAYER, data.identity, 1000, bitmap)
    assert read_durable_map(path, LAYER, data.identity, 1000) == bitmap
    moved = data.identity._replace(device=data.identity.device + 1)
    assert read_durable_map(path, LAYER, moved, 1000) == bitmap, "device numbers change over a boot"
    for wrong in (data.identity._replace(ino=5), data.identity._replace(size=5), data.identity._replace(generation=5)):
        with pytest.raises(CorruptError):
            read_durable_map(path, LAYER, wrong, 1000)
    for layer, bits in ((OTHER, 1000), (LAYER, 1008)):
        with pytest.raises(CorruptError):
            read_durable_map(path, layer, data.identity, bits)
    raw = path.read_bytes()
    for at in range(0, len(raw), 7):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(CorruptError):
            read_durable_map(path, LAYER, data.identity, 1000)
        path.write_bytes(raw[:at])
        with pytest.raises(CorruptError):
            read_durable_map(path, LAYER, data.identity, 1000)


def test_l14_replaced_data_file_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = DataFile.create_or_open(path, 8192)
    assert first.created
    assert first.is_in_place
    assert not DataFile.create_or_open(path, 8192).created
    for _ in range(5):  # ext4 hands the inode number out again at once
        first.close()
        path.unlink()
        path.write_bytes(bytes(8192))
        again = DataFile.create_or_open(path, 8192)
        assert again.identity != first.identity
        first = again
    path.unlink()
    assert not first.is_in_place
    path.write_bytes(bytes(100))
    assert not first.is_in_place
    assert DataFile.create_or_open(path, 8192).created, "another size is no data file of this layer"
    assert path.stat().st_size == 8192


def test_data_file_reads_are_full_or_errors(tmp_path: Path) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 8192)
    data.write(4090, b"0123456789")
    assert data.read(4090, 10) == b"0123456789"
    os.truncate(tmp_path / "data", 4096)
    with pytest.raises(HostError, match="ends at 4096"):
        data.read(4090, 10)


def test_a_late_writer_never_meets_another_file(tmp_path: Path) -> None:
    data = DataFile.create_or_open(tmp_path / "data", 8192)
    with data._open_fd() as fd:
        data.close()
        data.close()
        assert os.fstat(fd).st_size == 8192, "open until the last call has ended"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    other = tmp_path / "other"
    with other.open("wb") as file:
        assert file.fileno() == fd, "the number is used again"
        for call in (lambda: data.write(0, b"x"), lambda: data.read(0, 1), data.sync, data.drop_cached_pages):
            with pytest.raises(HostError, match="closed"):
                call()
    assert other.read_bytes() == b""


def test_l40_a_data_file_that_somebody_reads_is_known(tmp_path: Path) -> None:
    path = tmp_path / "data"
    assert not is_used_elsewhere(path)
    path.write_bytes(b"x")
    assert not is_used_elsewhere(path)
    with path.open("rb"):
        assert is_used_elsewhere(path)
    assert not is_used_elsewhere(path)


def test_owners_are_told_apart_by_start_time() -> None:
    owner = processes.Owner.current()
    assert owner.is_alive
    assert not processes.Owner(owner.pid, owner.start_time + 1).is_alive
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child) is None, "a zombie runs no more"
    os.waitpid(child, 0)
