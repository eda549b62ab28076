"""Versions and ranges, published versions, tags, local names, and how a reference finds its layer."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import AMD64, ARM64, make_sample, make_store, publish_sample, put_sample

from layerkit.errors import ConflictError, CorruptError, MissingError, MissingPlatformError, RefError
from layerkit.ids import Platform, Ref
from layerkit.store import tags
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.keys import read_ref_key, read_tag_key, ref_key, tag_key
from layerkit.store.local_refs import LocalRefs
from layerkit.store.store import Store
from layerkit.store.tags import KEPT_GENERATIONS, TagState
from layerkit.store.versions import VersionRange, highest, sort_versions, split_requirement
from layerkit.store.wrappers import Retrying, RetryPolicy

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path)


# Versions


def test_order_of_versions() -> None:
    ordered = ["2024-01-01", "2024-01-02", "2024-2-1", "2024-10-1", "9.8p1", "22.04-lts", "22.10-lts",
               "1.0.dev1", "1.0a1", "1.0-rc1", "1.0", "1.0+cu118", "1.0-1", "1.0.post2", "1.2", "1.10", "12",
               "2024.1"]  # fmt: skip
    opaque = sort_versions(ordered[:7])
    assert opaque == ["9.8p1", "22.04-lts", "22.10-lts", "2024-01-01", "2024-01-02", "2024-2-1", "2024-10-1"]
    for seed in range(20):
        shuffled = random.Random(seed).sample(ordered, len(ordered))
        assert sort_versions(shuffled) == opaque + ordered[7:]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [([], None), (["1.9", "1.10"], "1.10"), (["2.0rc1", "1.0"], "1.0"), (["2.0rc1", "2.0.dev3"], "2.0rc1"),
     (["22.04-lts", "20.04-lts"], "22.04-lts"), (["22.04-lts", "1.0"], "1.0"), (["22.04-lts", "1.0rc1"], "1.0rc1"),
     (["1.0", "1.0-1"], "1.0-1"), (["2c", "1"], "1")],
)  # fmt: skip
def test_no_version_means_the_highest_release(versions: list[str], expected: str | None) -> None:
    assert highest(versions) == expected


RANGES = [
    (">=12,<14", "12 12.5 13.9.1 13-1", "11.9 14 14.1 14.0rc1 22.04-lts"),
    ("~=3.11", "3.11 3.12.1 3.99", "3.10 4.0"),
    ("~=3.11.2", "3.11.2 3.11.9", "3.12 3.11.1"),
    ("==1.2.*", "1.2 1.2.9", "1.3"),
    ("==1.0", "1.0 1.0.0 1.0+cu118", "1.0-1 1.0rc1"),
    ("!=1.3,>1", "1.2 2", "1.3 1"),
    ("==22.04-lts", "22.04-lts", "22.04 22.10-lts"),
    ("!=22.04-lts", "22.04", "22.04-lts 22.10-lts"),
    ("===1.0", "1.0", "1.0.0"),
    (" >= 2 , < 3 ", "2.5", "3"),
    ("", "1 22.04-lts 2rc1", ""),
]


@pytest.mark.parametrize(("text", "inside", "outside"), RANGES, ids=[row[0] or "everything" for row in RANGES])
def test_ranges(text: str, inside: str, outside: str) -> None:
    allowed = VersionRange.parse(text)
    assert [version for version in inside.split() if version not in allowed] == []
    assert [version for version in outside.split() if version in allowed] == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [("~=12", ">=12,<13"), (">=22.04-lts", "only =="), ("12", ">=12"), ("=12", ">="), (">=", ">="), (">=12,,<14", ">="),
     ("=>12", ">="), (">=1!2.0", ">="), ("<14.*", ">="), (">=bookworm", ">="), (">=12;", ">=")],
)  # fmt: skip
def test_ranges_that_mean_nothing_are_refused(text: str, hint: str) -> None:
    with pytest.raises(RefError) as caught:
        VersionRange.parse(text)
    assert hint in caught.value.hint


def test_a_range_prefers_releases() -> None:
    versions = ["1.0", "1.5", "2.0rc1", "2.1.dev1"]
    assert VersionRange.parse(">=1").choose(versions) == "1.5"
    assert VersionRange.parse(">1.6").choose(versions) == "2.1.dev1"
    assert VersionRange.parse(">=2.0rc1").choose(versions) == "2.1.dev1"
    assert VersionRange.parse(">=3").choose(versions) is None


@pytest.mark.parametrize(
    ("text", "name", "allowed"),
    [("toolkit/node>=22", "toolkit/node", ">=22"), ("glibc >= 2.35, <3", "glibc", ">= 2.35, <3"),
     ("base/debian", "base/debian", ""), (" x~=1.2 ", "x", "~=1.2")],
)  # fmt: skip
def test_requirements(text: str, name: str, allowed: str) -> None:
    found = split_requirement(text)
    assert (found[0], found[1].text) == (name, allowed)


@pytest.mark.parametrize("text", ["", ">=12", "a b>=1", "a>=1 b"])
def test_requirements_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(RefError):
        split_requirement(text)


@given(st.text(alphabet="0123456789.<>=~!,*-+abrc ", max_size=20))
def test_any_text_is_a_range_or_a_ref_error(text: str) -> None:
    try:
        allowed = VersionRange.parse(text)
    except RefError:
        return
    assert ("1.0" in allowed) in (True, False)
    allowed.choose(["1.0", "22.04-lts", "2.0rc1"])


@given(st.lists(st.from_regex(r"[0-9][a-z0-9.+-]{0,6}", fullmatch=True), max_size=6))
def test_sorting_is_total(versions: list[str]) -> None:
    assert sort_versions(versions) == sort_versions(reversed(versions))


# Keys


@pytest.mark.parametrize("text", ["base/debian:12", "toolkit/a/b.c/d_e:1.0+x", "workspace/x:2024-01-01"])
@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm/v7"])
def test_keys_say_what_they_were_made_from(text: str, platform: str) -> None:
    ref, where = Ref.parse(text), Platform.parse(platform)
    found = read_ref_key(ref_key(ref, where))
    assert found == (ref, where)
    tag = ref.with_version("latest")
    assert read_tag_key(tag_key(tag, 17)) == (tag, 17)


@pytest.mark.parametrize("key", ["refs/base/x/1", "refs/base/x/latest/linux-amd64", "refs/what/x/1/linux-amd64",
                                 "refs/base/X/1/linux-amd64", "refs/base/x/1/linux", "refs/base/x/1/a/b"])  # fmt: skip
def test_strange_keys_are_no_refs(key: str) -> None:
    assert read_ref_key(key) is None


def test_a_name_below_another_does_not_collide(store: Store) -> None:
    digest = put_sample(store, make_sample(1))
    for text in ("base/a:1", "base/a/1:2", "base/a/1/linux-amd64:3"):
        assert store.publish_ref(Ref.parse(text), AMD64, digest)
    store.set_tag(Ref.parse("base/a:slim"), "1")
    store.publish_ref(Ref.parse("base/a/slim:1"), AMD64, digest)
    store.set_tag(Ref.parse("base/a/slim:latest"), "1")
    assert len(store.list_refs()) == 6


# Published versions


def test_published_versions_never_move(store: Store) -> None:
    one, two = put_sample(store, make_sample(1)), put_sample(store, make_sample(2))
    ref = Ref.parse("base/x:1.0")
    assert store.publish_ref(ref, AMD64, one) is True
    assert store.publish_ref(ref, AMD64, one) is False
    with pytest.raises(ConflictError) as caught:
        store.publish_ref(ref, AMD64, two)
    assert one in str(caught.value)
    assert two in str(caught.value)
    assert store.publish_ref(ref, ARM64, two) is True
    assert store.resolve(ref, AMD64).digest == one
    assert store.resolve(ref, ARM64).digest == two


def test_a_reference_to_nowhere_cannot_be_made(store: Store) -> None:
    with pytest.raises(MissingError):
        store.publish_ref(Ref.parse("base/x:1"), AMD64, DIGEST)
    assert store.list_refs() == []


@pytest.mark.parametrize("text", ["base/x", "base/x:latest", "base/x:dev"])
def test_only_versions_are_published(store: Store, text: str) -> None:
    with pytest.raises(RefError):
        store.publish_ref(Ref.parse(text), AMD64, put_sample(store, make_sample(1)))


def test_a_damaged_reference_is_corrupt(store: Store, tmp_path: Path) -> None:
    publish_sample(store, 1, "base/x:1")
    path = tmp_path / "store" / ref_key(Ref.parse("base/x:1"), AMD64)
    for damage in (b"", b"sha256:12", b"<html>", b"\xff" * 71, b"sha256:" + b"a" * 64 + b"\n\n"):
        path.write_bytes(damage)
        with pytest.raises(CorruptError):
            store.resolve(Ref.parse("base/x:1"), AMD64)


def test_one_of_many_publishers_of_one_version_wins(store: Store) -> None:
    digests = [put_sample(store, make_sample(seed)) for seed in range(6)]
    start = threading.Barrier(6)

    def publish(digest: str) -> bool:
        start.wait()
        try:
            return store.publish_ref(Ref.parse("base/x:1"), AMD64, digest)
        except ConflictError:
            return False

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(publish, digests))
    assert won.count(True) == 1
    assert store.resolve(Ref.parse("base/x:1"), AMD64).digest == digests[won.index(True)]


# Tags


def test_tags_move_by_compare_and_swap(store: Store) -> None:
    for version in ("1", "2", "3"):
        publish_sample(store, 1, f"base/x:{version}")
    tag = Ref.parse("base/x:stable")
    with pytest.raises(MissingError):
        store.get_tag(tag)
    first = store.read_tag(tag)
    assert first == TagState("", 0)
    state = store.set_tag(tag, "1", expected=first)
    with pytest.raises(ConflictError):
        store.set_tag(tag, "2", expected=first)
    assert store.get_tag(tag) == "1"
    store.set_tag(tag, "3", expected=state)
    assert store.resolve(tag, AMD64).ref == Ref.parse("base/x:3")
    store.set_tag(tag, "")
    with pytest.raises(MissingError):
        store.get_tag(tag)
    with pytest.raises(ConflictError):
        store.set_tag(tag, "1", expected=state)


def test_a_tag_names_a_published_version(store: Store) -> None:
    with pytest.raises(MissingError):
        store.set_tag(Ref.parse("base/x:stable"), "1")
    with pytest.raises(RefError):
        store.set_tag(Ref.parse("base/x:stable"), "other")
    with pytest.raises(RefError):
        store.read_tag(Ref.parse("base/x:1"))


def test_no_swap_is_lost(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    tag = Ref.parse("base/x:counter")
    start = threading.Barrier(4)

    def count(_: int) -> None:
        start.wait()
        done = 0
        while done < 15:
            state = tags.read_tag(objects, tag)
            try:
                tags.set_tag(objects, tag, str(int(state.version or 0) + 1), expected=state)
            except ConflictError:
                continue
            done += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert tags.read_tag(objects, tag) == ("60", 60)
    assert len(list(objects.list("tags/"))) <= KEPT_GENERATIONS + 1


def test_a_writer_that_slept_through_many_moves_cannot_bring_its_value_back(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    tag = Ref.parse("base/x:t")
    old = tags.set_tag(objects, tag, "1")
    for number in range(KEPT_GENERATIONS * 2):
        tags.set_tag(objects, tag, str(number + 10))
    newest = tags.read_tag(objects, tag)
    with pytest.raises(ConflictError):
        tags.set_tag(objects, tag, "2", expected=old)
    assert tags.read_tag(objects, tag) == newest
    assert objects.stat(tag_key(tag, old.generation + 1)) is None


def test_a_lost_answer_to_a_swap_is_no_conflict(tmp_path: Path) -> None:
    faults = ScriptedFaults(DirectoryStore(tmp_path), [Fault(FaultKind.LOST_ANSWER, "put_if_absent")])
    objects = Retrying(faults, RetryPolicy(first_s=0.001))
    tag = Ref.parse("base/x:t")
    assert tags.set_tag(objects, tag, "1", expected=TagState("", 0)) == ("1", 1)
    assert tags.get_tag(objects, tag) == "1"


def test_a_damaged_tag_is_corrupt(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    tag = Ref.parse("base/x:t")
    for damage in (b"", b"{}", b'{"version":"../x","nonce":"1"}', b'{"version":1,"nonce":"1"}', b"[1]"):
        objects.put(tag_key(tag, 1), damage)
        with pytest.raises(CorruptError):
            tags.read_tag(objects, tag)


# Local names


def test_local_names_move_freely(tmp_path: Path) -> None:
    local = LocalRefs(tmp_path / "home")
    assert list(local.list()) == []
    ref = Ref.parse("workspace/app")
    local.set(ref, AMD64, DIGEST)
    local.set(ref.with_version("1.0"), AMD64, DIGEST)
    local.set(ref, AMD64, OTHER)
    assert local.get(ref, AMD64) == local.get(ref.with_version("dev"), AMD64) == OTHER
    assert local.find(ref, ARM64) is None
    with pytest.raises(MissingError):
        local.get(ref, ARM64)
    assert [(str(entry.ref), entry.digest, entry.origin) for entry in local.list()] == [
        ("workspace/app:1.0", DIGEST, "local"), ("workspace/app:dev", OTHER, "local")
    ]  # fmt: skip
    assert local.delete(ref, AMD64) is True
    assert local.delete(ref, AMD64) is False
    assert len(list(local.list("workspace", "app"))) == 1
    with pytest.raises(RefError):
        local.set(Ref.parse(f"base/x@{DIGEST}"), AMD64, DIGEST)


# Resolution


def test_resolution_without_a_version(store: Store) -> None:
    ref = Ref.parse("base/x")
    dev = put_sample(store, make_sample(9))
    store.local_refs.set(ref, AMD64, dev)
    assert store.resolve(ref, AMD64).ref == ref.with_version("dev")
    for seed, version in enumerate(["1.9", "1.10", "2.0rc1", "22.04-lts"]):
        publish_sample(store, seed, f"base/x:{version}")
    found = store.resolve(ref, AMD64)
    assert (found.ref.version, found.origin) == ("1.10", "published")
    store.local_refs.set(ref.with_version("1.11"), AMD64, dev)
    assert store.resolve(ref, AMD64) == store.resolve(ref.with_version("1.11"), AMD64)
    assert store.resolve(ref, AMD64).origin == "local"
    assert store.resolve(ref.with_version("22.04-lts"), AMD64).ref.version == "22.04-lts"


def test_local_names_come_first_and_only_if_their_layer_is_here(store: Store) -> None:
    published = publish_sample(store, 1, "base/x:1")
    ref = Ref.parse("base/x:1")
    store.local_refs.set(ref, AMD64, DIGEST)
    assert store.resolve(ref, AMD64).digest == published
    local = put_sample(store, make_sample(2))
    store.local_refs.set(ref, AMD64, local)
    assert store.resolve(ref, AMD64).digest == local


def test_local_names_of_another_store_hide_nothing(store: Store) -> None:
    ref = Ref.parse("base/x")
    store.local_refs.set(ref.with_version("9"), AMD64, DIGEST)
    with pytest.raises(MissingError, match="not in this store"):
        store.resolve(ref.with_version("9"), AMD64)
    with pytest.raises(MissingError):
        store.resolve(ref, AMD64)
    publish_sample(store, 1, "base/x:1")
    assert store.resolve(ref, AMD64).ref.version == "1"
    assert store.resolve_range(ref, VersionRange.parse(">=1"), AMD64).ref.version == "1"


def test_a_digest_decides_alone(store: Store) -> None:
    digest = publish_sample(store, 1, "base/x:1")
    publish_sample(store, 2, "base/x:2")
    found = store.resolve(Ref.parse(f"base/x:2@{digest}"), AMD64)
    assert (found.digest, found.origin, str(found.ref)) == (digest, "digest", "base/x:2")
    with pytest.raises(MissingError):
        store.resolve(Ref.parse(f"base/x@{DIGEST}"), AMD64)


def test_ranges_resolve(store: Store) -> None:
    for seed, version in enumerate(["12", "13.1", "13.2rc1", "14"]):
        publish_sample(store, seed, f"base/debian:{version}")
    name, allowed = split_requirement("base/debian>=12,<14")
    assert store.resolve_range(Ref.parse(name), allowed, AMD64).ref.version == "13.1"
    with pytest.raises(MissingError) as caught:
        store.resolve_range(Ref.parse(name), VersionRange.parse(">=15"), AMD64)
    assert "13.1" in caught.value.hint
    with pytest.raises(MissingError):
        store.resolve_range(Ref.parse("base/other"), allowed, AMD64)
    with pytest.raises(MissingPlatformError):
        store.resolve_range(Ref.parse(name), allowed, ARM64)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("base/debain:12", "base/debian"), ("base/debian:12.0.1", "12.0"), ("base/debian:1200", "12"),
     ("base/debian:12.0.0", "12.0"), ("base/debian:stabel", "stable"), ("base/zzzzzz", "layerkit ls"),
     ("toolkit/debian:12.0", "base/debian"), ("base/local", "dev"), ("base/local:dve", "dev")],
)  # fmt: skip
def test_near_names_are_suggested(store: Store, text: str, hint: str) -> None:
    publish_sample(store, 1, "base/debian:12.0")
    store.set_tag(Ref.parse("base/debian:stable"), "12.0")
    if text != "base/local":
        store.local_refs.set(Ref.parse("base/locale"), AMD64, put_sample(store, make_sample(2)))
        text = text.replace("base/local:", "base/locale:")
    else:
        text = "base/local:x"
        store.local_refs.set(Ref.parse("base/local"), AMD64, put_sample(store, make_sample(2)))
    with pytest.raises(MissingError) as caught:
        store.resolve(Ref.parse(text), AMD64)
    assert hint in caught.value.hint
    assert type(caught.value) is MissingError


@pytest.mark.parametrize("text", ["base/x", "base/x:1", "base/x:stable"])
def test_a_missing_platform_is_an_error_of_its_own(store: Store, text: str) -> None:
    publish_sample(store, 1, "base/x:1", ARM64)
    store.set_tag(Ref.parse("base/x:stable"), "1")
    with pytest.raises(MissingPlatformError) as caught:
        store.resolve(Ref.parse(text), AMD64)
    assert "linux/arm64" in str(caught.value)


# Listing and removing


def test_list_names_every_origin(store: Store) -> None:
    digest = publish_sample(store, 1, "base/x:1")
    publish_sample(store, 1, "base/x:1", ARM64)
    store.set_tag(Ref.parse("base/x:stable"), "1")
    store.local_refs.set(Ref.parse("base/x"), AMD64, digest)
    assert [(str(entry.ref), str(entry.platform), entry.origin) for entry in store.list_refs()] == [
        ("base/x:dev", "linux/amd64", "local"),
        ("base/x:1", "linux/amd64", "published"), ("base/x:1", "linux/arm64", "published"),
        ("base/x:stable", "linux/amd64", "tag"), ("base/x:stable", "linux/arm64", "tag"),
    ]  # fmt: skip


def test_remove_takes_the_tags_along_that_would_name_nothing(store: Store) -> None:
    ref, tag = Ref.parse("base/x:1"), Ref.parse("base/x:stable")
    digest = publish_sample(store, 1, "base/x:1")
    publish_sample(store, 1, "base/x:1", ARM64)
    store.set_tag(tag, "1")
    assert [entry.platform for entry in store.remove_ref(ref, ARM64)] == [ARM64]
    assert store.get_tag(tag) == "1"
    store.local_refs.set(ref, AMD64, digest)
    assert [entry.origin for entry in store.remove_ref(ref, origin="local")] == ["local"]
    assert [entry.origin for entry in store.remove_ref(ref)] == ["published"]
    assert store.list_refs() == []
    assert store.has_layer(digest)
    with pytest.raises(MissingError):
        store.remove_ref(ref)


def test_remove_a_tag_leaves_the_version(store: Store) -> None:
    publish_sample(store, 1, "base/x:1")
    store.set_tag(Ref.parse("base/x:stable"), "1")
    store.remove_ref(Ref.parse("base/x:stable"))
    assert [str(entry.ref) for entry in store.list_refs()] == ["base/x:1"]
    assert store.delete_ref(Ref.parse("base/x:1"), AMD64) is True
    assert store.delete_ref(Ref.parse("base/x:1"), AMD64) is False
