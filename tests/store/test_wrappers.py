"""Retry, verification and single-flight under scripted faults; the rows of the fault list that concern them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layerkit.errors import CorruptError, DeniedError, MissingError, NoSpaceError, StoreError, UnavailableError
from layerkit.store.directory import DirectoryStore
from layerkit.store.faults import Fault, FaultKind, ScriptedFaults
from layerkit.store.objectstore import ObjectStore
from layerkit.store.wrappers import Retrying, RetryPolicy, SingleFlight, Verifying

PACK = b"LKPK" + bytes(range(256)) * 100
PACK_KEY = f"packs/{hashlib.sha256(PACK).hexdigest()[:2]}/{hashlib.sha256(PACK).hexdigest()}.pack"


class FakeTime:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retrying(self, inner: ObjectStore, policy: RetryPolicy | None = None, draw: float = 0.999) -> Retrying:
        return Retrying(inner, policy or RetryPolicy(), sleep=self.sleep, clock=lambda: self.now,
                        draw=lambda: draw)  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    store.put("k", b"0123456789" * 100)
    store.put(PACK_KEY, PACK)
    return store


def scripted(directory: DirectoryStore, *faults: Fault) -> ScriptedFaults:
    return ScriptedFaults(directory, faults)


def test_l15_a_failed_fetch_is_tried_again(directory: DirectoryStore) -> None:
    faults = scripted(directory, Fault(FaultKind.UNAVAILABLE, "get*", times=3))
    clock = FakeTime()
    assert clock.retrying(faults).get_range("k", 0, 10) == b"0123456789"
    assert len(faults.calls) == 4
    assert clock.slept == pytest.approx([0.0999, 0.1998, 0.3996])


def test_l15_a_failed_flight_leaves_nothing_behind(directory: DirectoryStore) -> None:
    store = SingleFlight(scripted(directory, Fault(FaultKind.UNAVAILABLE, "get_range")))
    with pytest.raises(UnavailableError):
        store.get_range("k", 0, 10)
    assert store.get_range("k", 0, 10) == b"0123456789"


@pytest.mark.parametrize(
    ("kind", "error", "requests"),
    [(FaultKind.MISSING, MissingError, 1), (FaultKind.DENIED, DeniedError, 1), (FaultKind.CORRUPT, CorruptError, 1),
     (FaultKind.NO_SPACE, NoSpaceError, 1), (FaultKind.UNAVAILABLE, UnavailableError, 12)],
)  # fmt: skip
def test_l17_each_kind_keeps_its_class_and_only_unavailable_is_retried(
    directory: DirectoryStore, kind: FaultKind, error: type[Exception], requests: int
) -> None:
    clock = FakeTime()
    faults = scripted(directory, Fault(kind, times=None))
    with pytest.raises(error) as caught:
        clock.retrying(faults, RetryPolicy(deadline_s=30), draw=0.5).get("k")
    assert type(caught.value) is error
    assert len(faults.calls) == requests
    assert clock.now <= 30
    if requests > 1:
        assert f"attempts: {requests}" in str(caught.value)
        assert clock.now > 20
    else:
        assert clock.now == 0


def test_pauses_grow_to_a_bound(directory: DirectoryStore) -> None:
    clock = FakeTime()
    store = clock.retrying(scripted(directory, Fault(FaultKind.UNAVAILABLE, times=None)),
                           RetryPolicy(first_s=1, factor=3, most_s=10, deadline_s=100), draw=1.0)  # fmt: skip
    with pytest.raises(UnavailableError):
        store.stat("k")
    assert clock.slept[:5] == [1, 3, 9, 10, 10]


def test_every_operation_is_retried(directory: DirectoryStore) -> None:
    for operation in ("get", "get_range", "put", "put_if_absent", "stat", "delete", "list"):
        faults = scripted(directory, Fault(FaultKind.UNAVAILABLE, operation, times=2))
        store = FakeTime().retrying(faults)
        calls = {
            "get": lambda: store.get("k"),  # noqa: B023
            "get_range": lambda: store.get_range("k", 1, 2),  # noqa: B023
            "put": lambda: store.put("k", b"x"),  # noqa: B023
            "put_if_absent": lambda: store.put_if_absent("n", b"x"),  # noqa: B023
            "stat": lambda: store.stat("k"),  # noqa: B023
            "delete": lambda: store.delete("n"),  # noqa: B023
            "list": lambda: list(store.list("")),  # noqa: B023
        }
        calls[operation]()
        assert [call[0] for call in faults.calls] == [operation] * 3


def test_a_lost_answer_is_survived(directory: DirectoryStore) -> None:
    store = FakeTime().retrying(scripted(directory, Fault(FaultKind.LOST_ANSWER, "put_if_absent")))
    assert store.put_if_absent("new", b"mine") is False
    assert store.get("new") == b"mine"


def test_a_broken_listing_goes_on_behind_its_last_key(directory: DirectoryStore) -> None:
    for number in range(5):
        directory.put(f"l/{number}", b"")
    store = FakeTime().retrying(scripted(directory, Fault(FaultKind.LOST_ANSWER, "list", times=2)))
    assert [found.key for found in store.list("l/")] == [f"l/{number}" for number in range(5)]


SPOILED = [FaultKind.EMPTY, FaultKind.SHORT, FaultKind.LONG, FaultKind.FLIPPED, FaultKind.HTML]


@pytest.mark.parametrize("kind", [*SPOILED, FaultKind.WRONG_RANGE])
def test_l13_a_spoiled_object_is_read_once_more(directory: DirectoryStore, kind: FaultKind) -> None:
    store = FakeTime().retrying(Verifying(scripted(directory, Fault(kind, "get"))))
    assert store.get(PACK_KEY) == PACK


@pytest.mark.parametrize("kind", SPOILED)
def test_l13_an_object_that_stays_spoiled_is_never_returned(directory: DirectoryStore, kind: FaultKind) -> None:
    store = FakeTime().retrying(Verifying(scripted(directory, Fault(kind, "get", times=None))))
    with pytest.raises((CorruptError, UnavailableError)) as caught:
        store.get(PACK_KEY)
    assert PACK_KEY in caught.value.where


@pytest.mark.parametrize(
    "kind", [FaultKind.EMPTY, FaultKind.SHORT, FaultKind.LONG, FaultKind.HTML, FaultKind.WHOLE_OBJECT]
)
def test_l13_a_range_of_another_length_is_unavailable_then_right(directory: DirectoryStore, kind: FaultKind) -> None:
    faults = scripted(directory, Fault(kind, "get_range", times=2))
    with pytest.raises(UnavailableError):
        Verifying(faults).get_range("k", 500, 20)
    assert FakeTime().retrying(Verifying(faults)).get_range("k", 500, 20) == b"0123456789" * 2


def test_l13_a_truncated_object_is_corrupt_not_unavailable(directory: DirectoryStore) -> None:
    class Cutting(DirectoryStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            return self.get(key)[offset : offset + length]

    with pytest.raises(CorruptError):
        Verifying(Cutting(directory.root)).get_range("k", 990, 20)


def test_l11_damage_at_rest_is_corrupt_and_named(directory: DirectoryStore, tmp_path: Path) -> None:
    path = tmp_path / PACK_KEY
    path.write_bytes(PACK[:-1] + b"?")
    with pytest.raises(CorruptError) as caught:
        FakeTime().retrying(Verifying(directory)).get(PACK_KEY)
    assert caught.value.where == PACK_KEY


def test_l07_callers_share_one_request(directory: DirectoryStore) -> None:
    faults = scripted(directory, Fault(FaultKind.DELAY, "get_range", delay_s=0.3))
    store = SingleFlight(faults)
    start = threading.Barrier(16)

    def read(_: int) -> bytes:
        start.wait()
        return store.get_range("k", 0, 10)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(16))) == {b"0123456789"}
    assert len(faults.calls) == 1


def test_different_ranges_do_not_wait_for_each_other(directory: DirectoryStore) -> None:
    store = SingleFlight(scripted(directory, Fault(FaultKind.DELAY, "get_range", delay_s=0.5)))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.get_range, "k", 0, 10)
        time.sleep(0.1)
        began = time.monotonic()
        assert store.get_range("k", 10, 10) == b"0123456789"
        assert time.monotonic() - began < 0.3
        slow.result()


def test_a_shared_failure_reaches_everyone(directory: DirectoryStore) -> None:
    faults = scripted(directory, Fault(FaultKind.DELAY, "get", delay_s=0.3))
    store = SingleFlight(Verifying(faults))
    start = threading.Barrier(4)

    def read(_: int) -> type[StoreError]:
        start.wait()
        with pytest.raises(StoreError) as caught:
            store.get("gone")
        return type(caught.value)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(read, range(4))) == {MissingError}


def calls_of(script: Sequence[Fault], directory: DirectoryStore) -> list[str]:
    store = ScriptedFaults(directory, script)
    answers = []
    for _ in range(5):
        try:
            answers.append(store.get("k")[:2].decode())
        except StoreError as error:
            answers.append(error.code)
    return answers


def test_scripts_count_calls(directory: DirectoryStore) -> None:
    script = [Fault(FaultKind.DENIED, after=1, times=1), Fault(FaultKind.MISSING, key="k*", after=3, times=None)]
    assert calls_of(script, directory) == ["01", "denied", "01", "missing", "missing"]
    assert calls_of([Fault(FaultKind.DENIED, key="other*")], directory) == ["01"] * 5
