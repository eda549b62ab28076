"""Planning of fetches: merged requests, members of frames, sequential readers; and the pool that runs them."""

from __future__ import annotations

import threading
import time
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerkit.errors import HostError
from layerkit.fuse.plan import FrameMembers, FramePlace, ReadAhead, plan_requests
from layerkit.fuse.workers import Workers

places = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 40)), max_size=30)


@given(places)
def test_requests_cover_frames_within_gap_and_size(rows: list[tuple[int, int, int]]) -> None:
    frames = []
    ends: dict[int, int] = {}
    for number, (pack, gap, length) in enumerate(rows):
        offset = ends.get(pack, 0) + gap
        ends[pack] = offset + length
        frames.append(FramePlace(number, pack, offset, length))
    requests = plan_requests(reversed(frames), max_gap=50, max_bytes=120)
    assert sorted(frame for request in requests for frame in request.frames) == frames
    for request in requests:
        assert request.length <= 120
        position = request.offset
        for frame in request.frames:
            assert frame.pack == request.pack
            assert 0 <= frame.offset - position <= (50 if frame is not request.frames[0] else 0)
            position = frame.offset + frame.length
        assert position == request.offset + request.length
    for one, two in pairwise(requests):
        if one.pack == two.pack:
            gap = two.offset - one.offset - one.length
            assert gap > 50 or two.frames[0].offset + two.frames[0].length - one.offset > 120, "merged where possible"


def test_frame_members() -> None:
    members = FrameMembers(array("I", [3, 0, 3, 1, 0]))
    assert [list(members.of(frame)) for frame in range(5)] == [[1, 4], [3], [], [0, 2], []]
    assert list(FrameMembers(array("I")).of(0)) == []


def test_read_ahead_grows_for_sequential_readers_only() -> None:
    ahead = ReadAhead()
    assert ahead.advise(0, 1000) is None
    offset, windows = 1000, []
    for _ in range(8):
        advice = ahead.advise(offset, 1000)
        assert advice is not None
        start, window = advice
        assert start == offset + 1000
        windows.append(window >> 10)
        offset = start + window
    assert windows == [256, 512, 1024, 2048, 4096, 8192, 8192, 8192]
    jumps = ReadAhead()
    assert [jumps.advise((index * 7919 % 101) << 24, 4096) for index in range(100)] == [None] * 100


def test_workers_prefer_urgent_calls() -> None:
    workers = Workers("test", 1)
    gate, order = threading.Event(), []
    blocked = workers.submit(gate.wait)
    later = [workers.submit(order.append, index, urgent=False) for index in range(3)]
    urgent = workers.submit(order.append, "urgent")
    time.sleep(0.05)
    assert workers.oldest_s > 0
    assert workers.queued == 4
    gate.set()
    for future in [blocked, urgent, *later]:
        future.result(5)
    assert order == ["urgent", 0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 // 0).result(5)
    workers.close()
    with pytest.raises(HostError):
        workers.submit(print)


def test_workers_run_in_parallel() -> None:
    workers = Workers("test", 4)
    barrier = threading.Barrier(4)
    futures = [workers.submit(barrier.wait, 5) for _ in range(4)]
    assert sorted(future.result(5) for future in futures) == [0, 1, 2, 3]
    workers.close()


def test_closed_workers_cancel_what_is_queued() -> None:
    workers = Workers("test", 1)
    gate, begun = threading.Event(), threading.Event()
    running = workers.submit(lambda: begun.set() or gate.wait(5))
    assert begun.wait(5)
    queued = workers.submit(print)
    workers.close()
    gate.set()
    assert running.result(5)
    assert queued.cancelled()
