"""Frames, packs, locators and the packer: round trips, bounds, damage, back-pressure."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import SMALL, make_chunks, make_store

from layerkit.core.hashing import chunk_id
from layerkit.errors import CorruptError, LayerkitError, LimitError, MissingError, NoSpaceError, UnavailableError
from layerkit.store import packer as packer_module
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.frames import CODEC_RAW, CODEC_ZSTD, MAX_FRAME_BYTES, ChunkPlace, Frame, decode_frame, read_frame
from layerkit.store.keys import pack_key
from layerkit.store.locator import Locator
from layerkit.store.pack import PackBuilder, PackFooter, read_footer
from layerkit.store.packer import Packer
from layerkit.store.params import StoreParams
from layerkit.store.wrappers import Verifying


def pack_all(store: object, chunks: list[bytes]) -> tuple[Packer, list[ChunkPlace]]:
    with Packer(store) as packer:
        for chunk in chunks:
            packer.add(chunk_id(chunk), chunk)
        packer.flush()
        return packer, [packer.place(chunk_id(chunk)) for chunk in chunks]


def test_chunks_come_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chunks = make_chunks(1, 300)
    packer, places = pack_all(store, chunks)
    for chunk, place in zip(chunks, places, strict=True):
        plain = read_frame(store.objects, place.pack, place.frame)
        assert plain[place.offset : place.offset + len(chunk)] == chunk
    stats = packer.stats
    assert stats.chunks == len(set(chunks)) == 300 - stats.duplicates
    assert stats.plain_bytes == sum(map(len, set(chunks)))
    assert 0 < stats.raw_frames < stats.frames
    packs = list(store.objects.list("packs/"))
    assert [found.key for found in packs] == sorted(map(pack_key, packer.packs))
    assert stats.packs == len(packs) > 3
    assert stats.stored_bytes == sum(found.size for found in packs)
    assert all(found.size <= SMALL.pack_size for found in packs)
    assert all(place.plain_length <= SMALL.frame_size for place in places)


def test_the_footer_knows_every_chunk(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chunks = make_chunks(2, 200)
    packer, places = pack_all(store, chunks)
    known = {row.id: row for pack in packer.packs for row in read_footer(store.objects, pack).chunks(pack)}
    assert {chunk_id(chunk) for chunk in chunks} == set(known)
    for chunk, place in zip(chunks, places, strict=True):
        assert known[chunk_id(chunk)].place == place
        assert known[chunk_id(chunk)].length == len(chunk)


def test_same_chunks_same_packs(tmp_path: Path) -> None:
    chunks = make_chunks(3, 200)
    one, _ = pack_all(make_store(tmp_path / "a"), chunks)
    other, _ = pack_all(make_store(tmp_path / "b"), chunks)
    assert one.packs == other.packs


def test_a_chunk_larger_than_a_frame_has_its_own(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chunks = [b"a" * 100, random.Random(1).randbytes(100_000), b"b" * 100, bytes(300_000)]
    _, places = pack_all(store, chunks)
    assert [place.plain_length for place in places] == [100, 100_000, 100, 300_000]
    assert [place.codec for place in places] == [CODEC_ZSTD, CODEC_RAW, CODEC_ZSTD, CODEC_ZSTD]
    assert places[1].stored_length == 100_000


@pytest.mark.parametrize("size", [0, MAX_FRAME_BYTES + 1])
def test_chunks_of_impossible_sizes_are_refused(tmp_path: Path, size: int) -> None:
    with Packer(make_store(tmp_path)) as packer, pytest.raises(LimitError):
        packer.add(b"i" * 32, bytes(size))


def test_buffers_may_be_reused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    buffer = bytearray(1000)
    with Packer(store) as packer:
        for number in range(50):
            buffer[:] = bytes([number]) * 1000
            packer.add(bytes([number]) * 32, memoryview(buffer))
        packer.flush()
        for number in range(50):
            place = packer.place(bytes([number]) * 32)
            plain = read_frame(store.objects, place.pack, place.frame)
            assert plain[place.offset : place.offset + 1000] == bytes([number]) * 1000


def test_places_are_known_after_flush_only(tmp_path: Path) -> None:
    with Packer(make_store(tmp_path)) as packer:
        assert packer.add(b"1" * 32, b"x")
        with pytest.raises(ValueError, match="not flushed"):
            packer.place(b"1" * 32)
        packer.flush()
        first = packer.place(b"1" * 32)
        assert not packer.add(b"1" * 32, b"x")
        packer.add(b"2" * 32, b"y")
        with pytest.raises(ValueError, match="not flushed"):
            packer.place(b"2" * 32)
        packer.flush()
        assert packer.place(b"1" * 32) == first
        assert packer.place(b"2" * 32).pack != first.pack
        with pytest.raises(KeyError):
            packer.place(b"3" * 32)
    assert packer.place(b"1" * 32) == first


def test_an_empty_packer_writes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with Packer(store) as packer:
        packer.flush()
        packer.close()
    assert list(store.objects.list("packs/")) == []


@pytest.mark.parametrize(
    ("kind", "error"), [(FaultKind.NO_SPACE, NoSpaceError), (FaultKind.UNAVAILABLE, UnavailableError)]
)
def test_errors_of_the_threads_reach_the_caller(tmp_path: Path, kind: FaultKind, error: type[Exception]) -> None:
    objects = ScriptedFaults(DirectoryStore(tmp_path), [Fault(kind, "put*", times=None)])
    target = SimpleNamespace(objects=objects, params=SMALL)
    threads = threading.active_count()
    packer = Packer(target)

    def add_for_ever() -> None:
        with packer:
            for number in itertools.count():
                packer.add(number.to_bytes(32), random.Random(number).randbytes(8000))

    with pytest.raises(error):
        add_for_ever()
    with pytest.raises(error):
        packer.flush()
    assert threading.active_count() == threads
    assert list(objects.list("packs/")) == []


def test_an_aborted_packer_ends_its_threads_and_leaves_whole_packs(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    threads = threading.active_count()

    def interrupted() -> None:
        with Packer(store) as packer:
            for chunk in make_chunks(4, 300):
                packer.add(chunk_id(chunk), chunk)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == threads
    for found in store.objects.list("packs/"):
        store.objects.get(found.key)


def test_l11_storing_a_damaged_pack_again_mends_it(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chunks = make_chunks(5, 100)
    packer, _ = pack_all(store, chunks)
    path = tmp_path / "store" / pack_key(packer.packs[0])
    good = path.read_bytes()
    for damage in (good[:-1], b"", good[:50] + b"?" + good[51:]):
        path.write_bytes(damage)
        pack_all(store, chunks)
        assert path.read_bytes() == good


def test_add_waits_when_the_store_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer_module, "MAX_PENDING_BYTES", 64 << 10)
    objects = ScriptedFaults(DirectoryStore(tmp_path), [Fault(FaultKind.DELAY, "put*", times=None, delay_s=0.05)])
    target = SimpleNamespace(objects=objects, params=StoreParams(frame_size=16 << 10, pack_size=64 << 10))
    data = random.Random(1).randbytes(2 << 20)
    began = time.monotonic()
    with Packer(target) as packer:
        for number, at in enumerate(range(0, len(data), 8192)):
            packer.add(number.to_bytes(32), data[at : at + 8192])
        assert time.monotonic() - began > 0.5, "2 MiB in packs of 64 KiB at 0.05 s each cannot be taken at once"


MEMORY_SCRIPT = """
import random, resource, sys
from pathlib import Path
from layerkit.store.packer import Packer
from layerkit.store.store import open_store
store = open_store(sys.argv[1], create=True, home=Path(sys.argv[1]))
block = random.Random(1).randbytes(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Packer(store) as packer:
    for number in range(2500):
        at = number * 61_001 % 900_000
        packer.add(number.to_bytes(32, "big"), block[at : at + 60_000] + bytes(20_000))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_of_the_packer_is_bounded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert int(done.stdout) < 130, "MiB for 190 MiB of chunks"


def test_add_takes_microseconds(tmp_path: Path) -> None:
    ids = [number.to_bytes(32) for number in range(20_000)]
    with Packer(make_store(tmp_path, StoreParams())) as packer:
        began = time.thread_time()
        for key in ids:
            packer.add(key, b"x" * 50)
        assert (time.thread_time() - began) / len(ids) < 20e-6


# Damage


def make_pack() -> tuple[bytes, bytearray]:
    builder = PackBuilder(1 << 20)
    for number in range(5):
        chunks = [bytes([number, piece]) * 50 for piece in range(4)]
        builder.add_frame(b"".join(chunks), CODEC_RAW, [(chunk_id(chunk), len(chunk)) for chunk in chunks])
    return builder.finish()


def test_a_footer_of_a_cut_pack_is_corrupt() -> None:
    _, pack = make_pack()
    assert len(PackFooter.parse(bytes(pack), len(pack))) == 20
    for size in range(len(pack)):
        with pytest.raises(CorruptError):
            PackFooter.parse(bytes(pack[:size]), size)


def fuzzed(data: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    spoiled = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(spoiled))
        choice = draw.random()
        if choice < 0.6:
            spoiled[at] ^= 1 << draw.randrange(8)
        elif choice < 0.8:
            spoiled[at : at + 4] = draw.choice([b"\xff" * 4, bytes(4), draw.randbytes(4)])
        else:
            del spoiled[at:]
            spoiled += draw.randbytes(draw.randint(0, 8))
        if not spoiled:
            break
    return bytes(spoiled)


def with_right_checksum(pack: bytes) -> bytes:
    """As a hostile writer would: the checksum fits, the contents need not."""
    from layerkit.core.hashing import crc32c
    from layerkit.store.pack import TRAILER

    if len(pack) < TRAILER.size:
        return pack
    length, _, frames, chunks, magic = TRAILER.unpack(pack[-TRAILER.size :])
    body = pack[-TRAILER.size - length : -TRAILER.size]
    return pack[: -TRAILER.size] + TRAILER.pack(length, crc32c(body), frames, chunks, magic)


def test_l32_fuzzed_footers_are_refused_or_within_bounds() -> None:
    _, good = make_pack()
    accepted = 0
    for seed in range(4000):
        pack = with_right_checksum(fuzzed(bytes(good), seed))
        try:
            footer = PackFooter.parse(pack, len(pack))
        except CorruptError:
            continue
        accepted += 1
        for row in footer.chunks(b"p" * 32):
            assert 0 < row.length <= row.place.plain_length - row.place.offset
            assert 16 <= row.place.frame_offset <= len(pack) - row.place.stored_length
    assert accepted > 100


def sample_locator() -> Locator:
    places = [ChunkPlace(bytes([pack]) * 32, 16 + frame * 1000, 1000, 3000, CODEC_ZSTD, chunk * 500)
              for pack in range(3) for frame in range(10) for chunk in range(6)]  # fmt: skip
    return Locator.build([*places, *places[:20]])


def test_l32_fuzzed_locators_are_refused_or_within_bounds() -> None:
    from layerkit.core.hashing import crc32c
    from layerkit.core.zstd import compress
    from layerkit.store.locator import HEADER

    good = sample_locator().to_bytes()
    body = Locator.from_bytes(good)
    assert body == sample_locator()
    plain = b"".join(body.packs) + b"".join(
        array("I", column).tobytes()
        for column in ([pack for pack, _ in body.frames], *zip(*[frame for _, frame in body.frames], strict=True),
                       body.chunk_frame, body.chunk_offset)
    )  # fmt: skip
    accepted = 0
    for seed in range(3000):
        spoiled = fuzzed(plain, seed)
        head = list(HEADER.unpack(good[: HEADER.size]))
        head[6:8] = len(spoiled), crc32c(spoiled)
        for data in (HEADER.pack(*head) + compress(spoiled), fuzzed(good, seed)):
            try:
                locator = Locator.from_bytes(data)
            except CorruptError:
                continue
            accepted += 1
            for number in range(len(locator)):
                place = locator.place(number)
                assert place.offset < place.plain_length <= MAX_FRAME_BYTES
    assert accepted > 100


def test_a_locator_cannot_claim_memory() -> None:
    from layerkit.store.locator import HEADER

    huge = HEADER.pack(b"LKLO", 1, 1, 0, 0, 0xFFFFFFFF, 0xFFFFFFF8, 0, 0)
    with pytest.raises(CorruptError):
        Locator.from_bytes(huge + b"x")


places = st.builds(
    ChunkPlace,
    st.sampled_from([bytes([number]) * 32 for number in range(4)]),
    st.sampled_from(range(16, 5000, 100)), st.just(100), st.just(200), st.just(CODEC_ZSTD), st.integers(0, 199),
)  # fmt: skip


@given(st.lists(places, max_size=60))
def test_a_locator_gives_back_the_places(chosen: list[ChunkPlace]) -> None:
    locator = Locator.from_bytes(Locator.build(chosen).to_bytes())
    assert [locator.place(number) for number in range(len(locator))] == chosen
    assert len(locator.packs) == len({place.pack for place in chosen})


def test_a_locator_refuses_two_frames_in_one_place() -> None:
    place = ChunkPlace(b"p" * 32, 16, 100, 200, CODEC_ZSTD, 0)
    with pytest.raises(CorruptError):
        Locator.build([place, place._replace(plain_length=300)])


@pytest.mark.parametrize(
    "frame",
    [Frame(16, 10, 10, 7), Frame(16, 0, 10, CODEC_ZSTD), Frame(16, 10, 0, CODEC_ZSTD), Frame(16, 10, 11, CODEC_RAW),
     Frame(16, 10, MAX_FRAME_BYTES + 1, CODEC_ZSTD), Frame(16, MAX_FRAME_BYTES + 1, 10, CODEC_ZSTD)],
)  # fmt: skip
def test_impossible_frames_are_corrupt(tmp_path: Path, frame: Frame) -> None:
    with pytest.raises(CorruptError):
        decode_frame(frame, bytes(10))
    with pytest.raises(CorruptError):
        read_frame(DirectoryStore(tmp_path), b"p" * 32, frame)


def test_l13_frames_of_wrong_bytes_are_never_returned(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chunks = [bytes([letter]) * 9000 + os.urandom(10) for letter in range(20)]
    _, places = pack_all(store, chunks)
    spoil: Callable[[FaultKind], ScriptedFaults] = lambda kind: ScriptedFaults(  # noqa: E731
        DirectoryStore(tmp_path / "store"), [Fault(kind, "get_range", times=None)]
    )
    for kind in (FaultKind.EMPTY, FaultKind.SHORT, FaultKind.LONG, FaultKind.HTML, FaultKind.WRONG_RANGE,
                 FaultKind.WHOLE_OBJECT, FaultKind.FLIPPED):  # fmt: skip
        for chunk, place in zip(chunks, places, strict=True):
            try:
                plain = read_frame(Verifying(spoil(kind)), place.pack, place.frame)
            except (CorruptError, UnavailableError):
                continue
            # What zstd accepts is caught by the chunk's id.
            found = plain[place.offset : place.offset + len(chunk)]
            assert chunk_id(found) != chunk_id(chunk) or found == chunk


def test_a_missing_pack_is_missing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(MissingError):
        read_footer(store.objects, b"p" * 32)
    with pytest.raises(MissingError):
        read_frame(store.objects, b"p" * 32, Frame(16, 10, 10, CODEC_RAW))
    assert issubclass(MissingError, LayerkitError)
