"""One suite over every object store and every way of wrapping one: the protocol of `store.objectstore`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layerkit.errors import CorruptError, InputError, MissingError
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import ScriptedFaults
from layerkit.store.objectstore import ObjectStore
from layerkit.store.wrappers import Retrying, SingleFlight, Verifying

Make = Callable[[Path], ObjectStore]
IMPLEMENTATIONS: dict[str, Make] = {
    "directory": DirectoryStore,
    "retrying": lambda root: Retrying(DirectoryStore(root)),
    "verifying": lambda root: Verifying(DirectoryStore(root)),
    "single-flight": lambda root: SingleFlight(DirectoryStore(root)),
    "scripted-without-faults": lambda root: ScriptedFaults(DirectoryStore(root), []),
    "all": lambda root: SingleFlight(Retrying(Verifying(DirectoryStore(root)))),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return IMPLEMENTATIONS[request.param](tmp_path / "objects")


def test_what_is_put_is_read(objects: ObjectStore) -> None:
    for key, data in {"a": b"", "b/c": b"x", "b/d/e.json": bytes(range(256)) * 1000}.items():
        objects.put(key, data)
        assert objects.get(key) == data
        found = objects.stat(key)
        assert found is not None
        assert (found.key, found.size) == (key, len(data))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_accepted(objects: ObjectStore, kind: type) -> None:
    assert objects.put_if_absent("k", kind(b"abc"))
    assert objects.get("k") == b"abc"
    objects.put("k", kind(b"de"))
    assert objects.get("k") == b"de"
    assert type(objects.get("k")) is bytes


def test_put_replaces_whole(objects: ObjectStore) -> None:
    objects.put("k", b"a long first value")
    objects.put("k", b"short")
    assert objects.get("k") == b"short"


def test_put_if_absent_never_replaces(objects: ObjectStore) -> None:
    assert objects.put_if_absent("k/l", b"first") is True
    assert objects.put_if_absent("k/l", b"second") is False
    assert objects.get("k/l") == b"first"


def test_one_of_many_writers_creates(objects: ObjectStore) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        return objects.put_if_absent("race/key", b"%d" % number * 1000)

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(write, range(8)))
    assert created.count(True) == 1
    assert objects.get("race/key") == b"%d" % created.index(True) * 1000


def test_readers_see_whole_values_under_replacement(objects: ObjectStore) -> None:
    values = [bytes([letter]) * size for letter, size in zip(b"abcd", (1, 5000, 70_000, 300_000), strict=True)]
    objects.put("k", values[0])
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [objects.put("k", value) for _ in range(15) for value in values])
        while not writing.done():
            seen.add(objects.get("k"))
        writing.result()
    assert seen <= set(values)


def test_ranges(objects: ObjectStore) -> None:
    data = bytes(range(256)) * 40
    objects.put("k", data)
    for offset, length in ((0, 1), (0, len(data)), (5000, 300), (len(data) - 1, 1), (100, 0), (len(data), 0)):
        assert objects.get_range("k", offset, length) == data[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (10, 1), (9, 2), (1 << 40, 1)])
def test_l13_a_range_beyond_the_end_is_corrupt(objects: ObjectStore, offset: int, length: int) -> None:
    objects.put("k", b"0123456789")
    with pytest.raises(CorruptError):
        objects.get_range("k", offset, length)


def test_a_negative_range_is_the_callers_mistake(objects: ObjectStore) -> None:
    objects.put("k", b"0123456789")
    for offset, length in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="range"):
            objects.get_range("k", offset, length)


def test_l17_missing_is_missing(objects: ObjectStore) -> None:
    objects.put("there/file", b"x")
    for key in ("gone", "there/gone", "there/file/below", "there", "not/even/a/folder"):
        with pytest.raises(MissingError):
            objects.get(key)
        with pytest.raises(MissingError):
            objects.get_range(key, 0, 1)
        assert objects.stat(key) is None
        objects.delete(key)
    assert objects.get("there/file") == b"x"


def test_delete(objects: ObjectStore) -> None:
    objects.put("a/b", b"x")
    objects.delete("a/b")
    objects.delete("a/b")
    assert objects.stat("a/b") is None
    assert list(objects.list("")) == []
    assert objects.put_if_absent("a/b", b"y")


def test_list_is_ordered_and_by_prefix(objects: ObjectStore) -> None:
    keys = ["a", "a-b", "a.b/c", "a/b", "a/b-c", "a/b/c", "a0", "b/x~y/1.0+z", "zz"]
    keys.remove("a")
    keys.remove("a/b")
    for key in keys:
        objects.put(key, key.encode())
    assert [found.key for found in objects.list("")] == sorted(keys)
    for prefix in ("a", "a/", "a/b", "a/b/", "b/x~", "zz", "zzz", "nothing/here/"):
        assert [found.key for found in objects.list(prefix)] == sorted(key for key in keys if key.startswith(prefix))
    assert {found.size for found in objects.list("zz")} == {2}


def test_list_gives_times_that_grow(objects: ObjectStore) -> None:
    objects.put("old", b"")
    objects.put("young", b"")
    times = {found.key: found.mtime_ns for found in objects.list("")}
    assert times["old"] <= times["young"]
    assert times["old"] == getattr(objects.stat("old"), "mtime_ns", None)


def test_a_bound_is_kept(objects: ObjectStore) -> None:
    objects.put("k", b"x" * 100)
    assert objects.get("k", max_bytes=100) == b"x" * 100
    with pytest.raises(CorruptError):
        objects.get("k", max_bytes=99)


BAD_KEYS = ["", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a/./b", ".hidden", "a//b", "a/", "a/.tmp-00",
            "a\0b", "a\nb", "a b", "a\\b", "ä", "a/" * 500 + "a", "x" * 256, "-x", "%2e%2e/x", "a\n"]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
def test_l38_keys_cannot_lead_out(objects: ObjectStore, tmp_path: Path, key: str) -> None:
    for call in (
        lambda: objects.get(key),
        lambda: objects.get_range(key, 0, 1),
        lambda: objects.put(key, b"x"),
        lambda: objects.put_if_absent(key, b"x"),
        lambda: objects.delete(key),
        lambda: objects.stat(key),
    ):
        with pytest.raises(InputError):
            call()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("prefix", ["/", "..", "../", "a/../", "a//", ".tmp-", "a\0", "a/b/../../../"])
def test_l38_prefixes_cannot_lead_out(objects: ObjectStore, prefix: str) -> None:
    with pytest.raises(InputError):
        list(objects.list(prefix))


def test_content_named_objects_round_trip(objects: ObjectStore) -> None:
    data = b"LKPK" + bytes(5000)
    name = hashlib.sha256(data).hexdigest()
    key = f"packs/{name[:2]}/{name}.pack"
    assert objects.put_if_absent(key, data)
    assert objects.get(key) == data
