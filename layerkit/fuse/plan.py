"""What to fetch for absent chunks, and how: pure functions over values, imported by `fuse.populate`."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_GAP = 64 << 10
"""Unneeded bytes between two frames that are still cheaper to read than a second request."""

MAX_REQUEST = 4 << 20
"""Most bytes of one request, unless a single frame is larger: it bounds memory and the wait behind a prefetch."""


class FramePlace(NamedTuple):
    """Where a frame lies: its number in the locator, the pack's number, offset and length in the pack."""

    number: int
    pack: int
    offset: int
    length: int


class Request(NamedTuple):
    """One ranged read of a pack and the frames it brings."""

    pack: int
    offset: int
    length: int
    frames: tuple[FramePlace, ...]


def plan_requests(
    frames: Iterable[FramePlace], *, max_gap: int = MAX_GAP, max_bytes: int = MAX_REQUEST
) -> list[Request]:
    """Merge frames of one pack that lie near each other; the result is ordered by pack and offset."""
    requests: list[Request] = []
    group: list[FramePlace] = []

    def close() -> None:
        if group:
            end = max(frame.offset + frame.length for frame in group)
            requests.append(Request(group[0].pack, group[0].offset, end - group[0].offset, tuple(group)))
            group.clear()

    for frame in sorted(set(frames), key=lambda frame: (frame.pack, frame.offset)):
        if group:
            end = group[-1].offset + group[-1].length
            too_far = frame.pack != group[-1].pack or frame.offset - end > max_gap
            if too_far or frame.offset + frame.length - group[0].offset > max_bytes:
                close()
        group.append(frame)
    close()
    return requests


class FrameMembers:
    """For each frame of a locator the stored chunks of the layer that lie in it: the inverse of `chunk_frame`."""

    def __init__(self, chunk_frame: Sequence[int]) -> None:
        self._order = array("I", sorted(range(len(chunk_frame)), key=chunk_frame.__getitem__))
        self._frames = array("I", [chunk_frame[number] for number in self._order])

    def of(self, frame: int) -> Sequence[int]:
        """The stored chunks in a frame, ascending."""
        return self._order[bisect_left(self._frames, frame) : bisect_left(self._frames, frame + 1)]


MIN_WINDOW = 256 << 10
MAX_WINDOW = 8 << 20
_STREAMS = 8
_SLACK = 128 << 10


class ReadAhead:
    """Recognises sequential readers of one layer and says how far to run ahead of them.

    Several streams are told apart. Not safe from several threads: the caller holds a lock.
    """

    def __init__(self) -> None:
        self._streams: dict[int, int] = {}  # where the next fault of the stream would be -> its window

    def advise(self, offset: int, length: int) -> tuple[int, int] | None:
        """The range (offset, length) to prefetch after this fault, or None for a reader that jumps about."""
        end = offset + length
        for expected, window in self._streams.items():
            if expected - _SLACK <= offset <= expected + _SLACK:
                del self._streams[expected]
                grown = min(max(window * 2, MIN_WINDOW), MAX_WINDOW)
                self._streams[end + grown] = grown
                return end, grown
        if len(self._streams) >= _STREAMS:
            del self._streams[next(iter(self._streams))]
        self._streams[end] = 0
        return None
