"""Verification names every damage, and calls nothing damaged that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_samples import AMD64, SMALL, make_sample, make_store, publish_sample, put_sample, stored_chunks

from layerkit.core.hashing import chunk_id
from layerkit.errors import LayerkitError
from layerkit.ids import Ref
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.keys import LEASES, PARAMS_KEY, locator_key, manifest_key, pack_key, part_key, ref_key, tag_key
from layerkit.store.locator import Locator
from layerkit.store.packer import Packer
from layerkit.store.store import Store
from layerkit.store.verify import Finding, verify_layer, verify_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path)


def findings(store: Store, *, data: bool = True) -> list[Finding]:
    return list(verify_store(store.objects, data=data, stored_chunks=stored_chunks))


def test_a_sound_store_has_no_findings(store: Store) -> None:
    for seed in range(3):
        publish_sample(store, seed, f"base/x:{seed}")
    store.set_tag(Ref.parse("base/x:stable"), "1")
    store.create_lease("x")
    assert findings(store) == []
    assert findings(store, data=False) == []
    assert list(verify_layer(store.objects, make_sample(1).digest)) == []


def test_garbage_of_dead_publishers_is_no_finding(store: Store, tmp_path: Path) -> None:
    publish_sample(store, 1, "base/x:1")
    sample = make_sample(2)
    digest = put_sample(store, sample)
    store.objects.delete(manifest_key(digest))
    store.objects.put("packs/00/" + "0" * 63 + "x.pack", b"a stray name")
    (tmp_path / "store/packs/.tmp-0011223344556677").write_bytes(b"half")
    assert findings(store) == []


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(data[: len(data) * 2 // 3])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])


HOW = ["gone", "cut", "empty", "flipped"]
CODES = {"gone": {"missing"}, "cut": {"corrupt"}, "empty": {"corrupt"}, "flipped": {"corrupt", "missing"}}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("part", ["config", "meta", "chunk_index", "facts", "locator"])
def test_l11_damaged_parts_are_named(store: Store, tmp_path: Path, part: str, how: str) -> None:
    good = publish_sample(store, 1, "base/x:1")
    digest = publish_sample(store, 2, "base/x:2")
    key = locator_key(digest) if part == "locator" else part_key(digest, part)
    damaged(tmp_path / "store" / key, how)
    found = findings(store)
    assert {(finding.where.removeprefix(f"{tmp_path}/store/"), finding.layer) for finding in found} == {(key, digest)}
    assert {finding.code for finding in found} <= CODES[how]
    assert list(verify_layer(store.objects, good)) == []


@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_l10_damaged_manifests_are_named(store: Store, tmp_path: Path, how: str) -> None:
    digest = publish_sample(store, 1, "base/x:1")
    damaged(tmp_path / "store" / manifest_key(digest), how)
    [found] = findings(store)
    assert (found.code, found.where, found.layer) == ("corrupt", manifest_key(digest), digest)


def test_a_missing_manifest_is_a_reference_to_nowhere(store: Store, tmp_path: Path) -> None:
    digest = publish_sample(store, 1, "base/x:1")
    damaged(tmp_path / "store" / manifest_key(digest), "gone")
    [found] = findings(store)
    assert (found.code, found.where, found.layer) == ("missing", ref_key(Ref.parse("base/x:1"), AMD64), digest)


@pytest.mark.parametrize("how", HOW)
def test_l11_damaged_packs_are_named_with_the_layers_that_suffer(store: Store, tmp_path: Path, how: str) -> None:
    digests = [publish_sample(store, seed, f"base/x:{seed}") for seed in range(2)]
    [own, other] = [store.get_locator(digest).packs for digest in digests]
    pack = next(pack for pack in own if pack not in other)
    damaged(tmp_path / "store" / pack_key(pack), how)
    found = findings(store)
    assert {finding.layer for finding in found} == {digests[0]}
    assert {finding.where.removeprefix(f"{tmp_path}/store/") for finding in found} == {pack_key(pack)}
    assert {finding.code for finding in found} <= CODES[how]
    if how == "flipped":
        assert any("frame at" in finding.message for finding in found)
        without_data = findings(store, data=False)
        assert without_data == []


def test_a_damaged_pack_that_nobody_uses_is_named_too(store: Store, tmp_path: Path) -> None:
    with Packer(store) as packer:
        packer.add(b"x" * 32, b"data" * 1000)
    path = tmp_path / "store" / pack_key(packer.packs[0])
    damaged(path, "flipped")
    assert {finding.where for finding in findings(store)} == {pack_key(packer.packs[0])}


def test_a_wrong_locator_is_found_by_chunk_ids(store: Store) -> None:
    sample = make_sample(1)
    digest = put_sample(store, sample)
    places = [store.get_locator(digest).place(number) for number in range(len(sample.chunks))]
    places[3], places[4] = places[4], places[3]
    store.objects.put(locator_key(digest), Locator.build(places).to_bytes())
    found = findings(store)
    assert [(finding.code, finding.layer) for finding in found] == [("missing", digest)] * 2
    assert chunk_id(sample.chunks[3]).hex() in found[0].message
    store.objects.put(locator_key(digest), Locator.build(places[:-1]).to_bytes())
    [found_one] = findings(store)
    assert (found_one.code, found_one.where) == ("corrupt", locator_key(digest))
    places[0] = places[0]._replace(frame_offset=17)
    store.objects.put(locator_key(digest), Locator.build(places).to_bytes())
    assert any("not in the pack" in finding.message for finding in findings(store))


def test_damaged_names_and_leases_are_named(store: Store) -> None:
    publish_sample(store, 1, "base/x:1")
    publish_sample(store, 2, "base/x:2")
    tag, other = Ref.parse("base/x:stable"), Ref.parse("base/x:odd")
    store.set_tag(tag, "2")
    store.delete_ref(Ref.parse("base/x:2"), AMD64)
    store.objects.put(tag_key(other, 1), b"{}")
    store.objects.put(ref_key(Ref.parse("base/x:1"), AMD64), b"nonsense")
    store.objects.put(LEASES + "x", b"[]")
    assert [finding.code for finding in findings(store)] == ["corrupt", "corrupt", "missing", "corrupt"]
    store.objects.put(PARAMS_KEY, b"")
    assert findings(store)[0].where.endswith(PARAMS_KEY)


def test_what_is_unavailable_is_called_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    publish_sample(store, 1, "base/x:1")
    faults = ScriptedFaults(DirectoryStore(tmp_path / "store"), [
        Fault(FaultKind.UNAVAILABLE, "get", "layers/*/meta.zst", times=None),
        Fault(FaultKind.DENIED, "get", "packs/*", times=1),
    ])  # fmt: skip
    codes = [finding.code for finding in verify_store(faults, stored_chunks=stored_chunks)]
    assert codes == ["unavailable", "denied"]


def test_an_index_that_cannot_be_read_is_a_finding(store: Store) -> None:
    def refuse(_: bytes) -> list[tuple[bytes, int]]:
        raise LayerkitError("no chunk index")

    digest = put_sample(store, make_sample(1))
    [found] = verify_store(store.objects, stored_chunks=refuse)
    assert found.where == part_key(digest, "chunk_index")
    assert SMALL.frame_size < SMALL.pack_size
