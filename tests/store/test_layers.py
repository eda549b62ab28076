"""Opening stores, layers and their parts, reading chunks, leases, reuse, usage."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_samples import SMALL, make_sample, make_store, publish_sample, put_sample, stored_chunks

from layerkit.errors import (
    CorruptError,
    InputError,
    LayerkitError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)
from layerkit.ids import sha256_digest
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.frames import CODEC_ZSTD, ChunkPlace
from layerkit.store.keys import PARAMS_KEY, locator_key, manifest_key, part_key
from layerkit.store.layers import LayerParts, described_digests, put_layer
from layerkit.store.leases import list_live_leases, store_time_ns
from layerkit.store.locator import Locator
from layerkit.store.params import StoreParams
from layerkit.store.reuse import Candidate, choose_reused
from layerkit.store.store import Store, directory_of, open_store
from layerkit.store.usage import dedupe_usage, layer_usage, store_usage
from layerkit.store.wrappers import Retrying


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path)


# Opening


def test_a_store_keeps_the_parameters_of_its_creation(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        open_store(str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()
    made = make_store(tmp_path)
    for again in (make_store(tmp_path, StoreParams(zstd_level=9)), open_store(f"file://{tmp_path}/store")):
        assert again.params == made.params
        assert again.id == made.id
    assert made.params.frame_size == SMALL.frame_size


def test_the_settings_name_the_default_store(instance: Path) -> None:
    assert open_store(create=True).url == str(instance / "store")
    assert (instance / "store" / PARAMS_KEY).exists()


def test_many_creators_make_one_store(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def create(_: int) -> str:
        start.wait()
        return open_store(str(tmp_path / "s"), create=True, home=tmp_path).id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    make_store(tmp_path)
    path = tmp_path / "store" / PARAMS_KEY
    value = json.loads(path.read_bytes())
    path.write_text(json.dumps(value | {"version": 2, "frame_size": "unknown"}))
    with pytest.raises(UnsupportedError, match="format version 2") as caught:
        open_store(str(tmp_path / "store"))
    assert "newer layerkit" in caught.value.hint
    with pytest.raises(UnsupportedError):
        make_store(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"format": "other"}, {"version": "1"}, {"version": True}, {"frame_size": 1}, {"frame_size": 1 << 40},
     {"pack_size": 4096}, {"zstd_level": 99}, {"id": "x"}, {"id": "../../etc"}, {"frame_size": None}],
)  # fmt: skip
def test_impossible_parameters_are_corrupt(tmp_path: Path, change: dict[str, object]) -> None:
    make_store(tmp_path)
    path = tmp_path / "store" / PARAMS_KEY
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(CorruptError) as caught:
        open_store(str(tmp_path / "store"))
    assert PARAMS_KEY in caught.value.where


@pytest.mark.parametrize("data", [b"", b"[]", b"\0" * 100, b"{" * 70_000, b'{"format":"layerkit-store"}'])
def test_a_damaged_description_is_corrupt(tmp_path: Path, data: bytes) -> None:
    make_store(tmp_path)
    (tmp_path / "store" / PARAMS_KEY).write_bytes(data)
    with pytest.raises(CorruptError):
        open_store(str(tmp_path / "store"))


def test_urls(tmp_path: Path) -> None:
    assert directory_of("/a/b") == directory_of("file:///a/b") == directory_of("file://localhost/a/b") == Path("/a/b")
    assert directory_of("file:///a%20b") == Path("/a b")
    assert directory_of("/a b?x#y") == Path("/a b?x#y")
    for url, error in (("s3://bucket", UnsupportedError), ("file://host/a", InputError), ("file:a", InputError)):
        with pytest.raises(error):
            directory_of(url)


# Layers


def test_parts_come_back_verified(store: Store) -> None:
    sample = make_sample(1)
    digest = put_sample(store, sample)
    assert digest == sample.digest
    assert store.has_layer(digest)
    assert store.get_manifest(digest) == sample.parts.manifest
    for part in ("config", "meta", "chunk_index", "facts"):
        plain = getattr(sample.parts, part)
        assert store.get_part(digest, part, sha256_digest(plain), len(plain)) == plain
        with pytest.raises(CorruptError):
            store.get_part(digest, part, sha256_digest(plain), len(plain) - 1)
        with pytest.raises(CorruptError):
            store.get_part(digest, part, sha256_digest(b"other"), len(plain))
    assert len(store.get_locator(digest)) == len(sample.chunks)


def test_a_layer_that_is_not_there_is_missing(store: Store) -> None:
    digest = sha256_digest(b"nothing")
    assert not store.has_layer(digest)
    for call in (store.get_manifest, store.get_locator, lambda d: store.get_part(d, "meta", digest, 10)):
        with pytest.raises(MissingError):
            call(digest)


def test_parts_must_fit_their_manifest(store: Store) -> None:
    parts = make_sample(1).parts
    with pytest.raises(InputError):
        store.put_layer(parts._replace(meta=b"other"), Locator.build([]).to_bytes())
    with pytest.raises(CorruptError):
        store.put_layer(parts, b"not a locator")
    with pytest.raises(CorruptError):
        store.put_layer(parts._replace(manifest=b"{}"), Locator.build([]).to_bytes())
    assert list(store.objects.list("layers/")) == []


def test_the_order_of_publishing(tmp_path: Path) -> None:
    recorder = ScriptedFaults(DirectoryStore(tmp_path), [])
    sample = make_sample(1)
    digest = put_layer(recorder, sample.parts, Locator.build([]).to_bytes(), level=3)
    assert [key for operation, key in recorder.calls if operation.startswith("put")] == [
        locator_key(digest), *(part_key(digest, part) for part in ("meta", "chunk_index", "facts", "config")),
        manifest_key(digest),
    ]  # fmt: skip


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"half", None])
@pytest.mark.parametrize("name", ["manifest", "config", "meta", "chunk_index", "facts", "locator"])
def test_l10_damaged_objects_are_found_and_mended_by_publishing_again(
    store: Store, tmp_path: Path, name: str, damage: bytes | None
) -> None:
    sample = make_sample(1)
    digest = put_sample(store, sample)
    keys = {"manifest": manifest_key(digest), "locator": locator_key(digest)}
    path = tmp_path / "store" / (keys.get(name) or part_key(digest, name))
    good = path.read_bytes()
    path.write_bytes(good[:-3] if damage is None else damage)

    def read() -> None:
        store.get_manifest(digest)
        store.get_locator(digest)
        for part in ("config", "meta", "chunk_index", "facts"):
            plain = getattr(sample.parts, part)
            store.get_part(digest, part, sha256_digest(plain), len(plain))

    with pytest.raises((CorruptError, UnavailableError)) as caught:
        read()
    assert str(path.relative_to(tmp_path / "store")) in caught.value.where
    put_sample(store, sample)
    read()


def test_manifests_of_strangers_are_checked() -> None:
    good = {"digest": sha256_digest(b"x"), "size": 1}
    for config, layers in (
        (None, []), (good, None), (good, [good, 3]), (good, [{}]), ({**good, "size": -1}, []),
        ({**good, "size": "1"}, []), ({**good, "digest": "sha256:../../x"}, []),
    ):  # fmt: skip
        with pytest.raises(CorruptError):
            described_digests(json.dumps({"config": config, "layers": layers}).encode(), "x")


def test_an_object_pruned_between_two_looks_is_stored_again(tmp_path: Path) -> None:
    put_sample(make_store(tmp_path), make_sample(1))
    script = [Fault(FaultKind.MISSING, operation="get", key="layers/*"), Fault(FaultKind.MISSING, "get", "packs/*")]
    faults = ScriptedFaults(DirectoryStore(tmp_path / "store"), script)
    store = Store("x", faults, SMALL, make_store(tmp_path).local_refs)
    digest = put_sample(store, make_sample(1))
    assert store.get_manifest(digest)
    assert [call for call in faults.calls if call[0] == "put" and not call[1].startswith("locators")]


def test_l16_unavailable_at_first_is_not_for_ever(tmp_path: Path) -> None:
    make_store(tmp_path)
    faults = ScriptedFaults(DirectoryStore(tmp_path / "store"), [Fault(FaultKind.UNAVAILABLE, times=3)])
    store = Store("x", Retrying(faults), SMALL, make_store(tmp_path).local_refs)
    digest = put_sample(store, make_sample(1))
    assert store.has_layer(digest)


# Leases


def test_leases_live_by_the_stores_clock(store: Store) -> None:
    layer = put_sample(store, make_sample(1))
    short = store.create_lease("a test", holds=[layer], ttl_s=10)
    long = store.create_lease("another", ttl_s=100)
    now = store_time_ns(store.objects)
    assert set(list_live_leases(store.objects, now)) == {short, long}
    assert set(list_live_leases(store.objects, now + 50 * 10**9)) == {long}
    store.renew_lease(short)
    store.release_lease(long)
    assert list(list_live_leases(store.objects, store_time_ns(store.objects))) == [short]
    assert short.layers == (layer,)
    assert list(store.objects.list("clock/")) == []


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"owner":"x","ttl_s":1,"layers":["../x"]}', b'{"owner":1,"ttl_s":1,"layers":[]}']
)
def test_an_unreadable_lease_is_an_error(store: Store, data: bytes) -> None:
    store.objects.put("leases/x", data)
    with pytest.raises(CorruptError):
        list(list_live_leases(store.objects, 0))


# Reuse


def candidate(name: int, length: int, pack: int, frame: int, plain: int = 1000) -> Candidate:
    place = ChunkPlace(bytes([pack]) * 32, 16 + frame * 1000, 500, plain, CODEC_ZSTD, name)
    return Candidate(bytes([name]) * 32, length, place)


def names(reused: dict[bytes, ChunkPlace]) -> set[int]:
    return {key[0] for key in reused}


def test_frames_are_reused_from_a_quarter_on() -> None:
    assert names(choose_reused([candidate(1, 249, 1, 0)])) == set()
    assert names(choose_reused([candidate(1, 250, 1, 0)])) == {1}
    assert names(choose_reused([candidate(1, 100, 1, 0), candidate(2, 150, 1, 0)])) == {1, 2}
    assert names(choose_reused([candidate(1, 100, 1, 0), candidate(2, 150, 1, 1)])) == set()
    assert choose_reused([]) == {}


def test_a_repeated_chunk_counts_once() -> None:
    assert names(choose_reused([candidate(1, 100, 1, 0)] * 5)) == set()


def test_a_chunk_in_two_frames_counts_for_the_better_one() -> None:
    better = [candidate(1, 200, 1, 0), candidate(2, 700, 1, 0)]
    worse = [candidate(1, 200, 2, 0), candidate(3, 100, 2, 0)]
    reused = choose_reused([*worse, *better])
    assert names(reused) == {1, 2}
    assert reused[bytes([1]) * 32].pack == bytes([1]) * 32
    assert choose_reused([*better, *worse]) == reused


# Usage


def test_usage_by_kind(store: Store) -> None:
    publish_sample(store, 1, "base/x:1")
    store.create_lease("x")
    usage = store_usage(store.objects)
    counts = {kind: share.objects for kind, share in usage.items()}
    assert counts.pop("packs") >= 1
    assert counts == {"meta": 1, "chunk_index": 1, "facts": 1, "config": 1, "manifest": 1, "locators": 1, "refs": 1,
                      "tags": 0, "leases": 1, "other": 1}  # fmt: skip
    assert sum(share.bytes for share in usage.values()) == sum(found.size for found in store.objects.list(""))


def test_usage_of_layers_that_share(store: Store) -> None:
    sample = make_sample(1)
    digest = put_sample(store, sample)
    locator = store.get_locator(digest)
    lengths = [length for _, length in stored_chunks(sample.parts.chunk_index)]
    usage = layer_usage(locator, lengths)
    assert usage.chunk_bytes == sum(map(len, set(sample.chunks)))
    assert usage.amplification == 1.0
    alone = dedupe_usage(store.objects)
    assert (alone.layers, alone.ratio) == (1, 1.0)
    # A second layer that takes one chunk of each frame from the first.
    firsts = {frame: number for number, frame in reversed(list(enumerate(locator.chunk_frame)))}
    other = make_sample(2)
    part = Locator.build(locator.place(number) for number in firsts.values())
    put_layer(store.objects, other.parts, part.to_bytes(), level=3)
    assert dedupe_usage(store.objects).ratio == pytest.approx(2.0)
    assert layer_usage(part, [lengths[number] for number in firsts.values()]).amplification > 1.3


def test_parts_are_typed() -> None:
    assert LayerParts._fields == ("manifest", "config", "meta", "chunk_index", "facts")
    assert issubclass(CorruptError, LayerkitError)
