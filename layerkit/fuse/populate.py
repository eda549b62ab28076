"""`ensure`: the one entrance through which bytes come into data files; imported by hostd. Safe from any thread.

For absent chunks of a range, by frame: claims of the durable map are checked, chunks that another layer has are
copied, the rest is fetched in merged requests, decompressed, verified, written and marked. Whoever needs a frame that
somebody already fetches waits for that fetch. The first two steps run on the local pool, the last on the store's, so
that a store which hangs stops only what needs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from layerkit.core.hashing import chunk_id
from layerkit.errors import CorruptError, MissingError, UnavailableError
from layerkit.fuse.events import Counts, ErrorLog
from layerkit.fuse.flights import Flight, Flights, FrameKey
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.local_chunks import LocalChunks
from layerkit.fuse.plan import FrameMembers, FramePlace, Request, plan_requests
from layerkit.fuse.stores import StoreHandle
from layerkit.fuse.workers import Workers
from layerkit.store.frames import decode_frame
from layerkit.store.keys import pack_key
from layerkit.store.locator import Locator

log = logging.getLogger("layerkit.host")


@dataclass
class _Job:
    """Frames of one layer that one caller has claimed and not yet landed, and their absent chunks."""

    layer: HostLayer
    urgent: bool
    generation: int
    wanted: dict[int, list[int]]
    frames: set[int]


class Populator:
    """Fills data files.

    Args:
        find_store: the handle of a store's URL.
        local: pool for work on this host's own files.
        local_chunks: the layers that chunks may be copied from.
    """

    def __init__(
        self,
        find_store: Callable[[str], StoreHandle],
        local: Workers,
        local_chunks: LocalChunks,
        errors: ErrorLog,
        counts: Counts,
    ) -> None:
        self._find_store = find_store
        self._local = local
        self._local_chunks = local_chunks
        self._errors = errors
        self._counts = counts
        self._flights = Flights()

    def start(self, layer: HostLayer, offset: int, length: int, *, urgent: bool = True) -> list[Flight]:
        """Begin to bring a range in; what the caller must wait for, nothing when it is all there."""
        numbers = layer.absent_in(offset, length)
        return self._start(layer, numbers, urgent=urgent) if numbers else []

    def ensure(self, layer: HostLayer, offset: int, length: int, *, deadline_s: float, urgent: bool = True) -> None:
        """Return when every chunk of the range is present.

        Raises:
            UnavailableError: not within the deadline.
            StoreError, NoSpaceError, DeniedError: why a chunk cannot be had.
        """
        for flight in self.start(layer, offset, length, urgent=urgent):
            try:
                flight.result(flight.seconds_left(deadline_s))
            except TimeoutError:
                raise self.late(layer, deadline_s) from None

    def late(self, layer: HostLayer, deadline_s: float) -> UnavailableError:
        """The recorded error for a wait that came to its end."""
        error = UnavailableError(f"the store did not deliver within {deadline_s:g} s", where=layer.store_url)
        self._errors.record(error, layer=layer.digest, store=layer.store_url)
        return error

    def is_busy(self, digest: str) -> bool:
        """Whether anything is still being brought in for a layer."""
        return self._flights.is_busy(digest)

    def _start(self, layer: HostLayer, numbers: Sequence[int], *, urgent: bool) -> list[Flight]:
        generation, locator, members = layer.locator
        frames = sorted({locator.chunk_frame[number] for number in numbers})
        flights, mine = self._flights.join(FrameKey(layer.digest, generation, frame) for frame in frames)
        if mine:
            job = _Job(layer, urgent, generation, {}, set(mine))
            self._guarded(lambda job: self._launch(job, locator, members), job)
        return flights

    def _launch(self, job: _Job, locator: Locator, members: FrameMembers) -> None:
        for frame in job.frames:
            # Looked up after the claim: what an earlier flight brought is no longer absent.
            job.wanted[frame] = [number for number in members.of(frame) if not job.layer.present.has(number)]
        for part in _split(job, locator):
            self._local.submit(self._guarded, self._fill_from_here, part, urgent=job.urgent)

    def _guarded(self, step: Callable[[_Job], None], job: _Job) -> None:
        """Run a step; an error goes to all who wait for something it did not bring, and into the log."""
        try:
            step(job)
        except BaseException as error:  # noqa: BLE001 - handed to the waiters
            layer = job.layer
            self._errors.record(error, layer=layer.digest, store=layer.store_url)
            self._counts.add("failed_fetches")
            for frame in list(job.frames):
                there = frame in job.wanted and all(layer.present.has(number) for number in job.wanted[frame])
                self._land(job, frame, None if there else error)

    def _land(self, job: _Job, frame: int, error: BaseException | None = None) -> None:
        job.frames.discard(frame)
        self._flights.land(FrameKey(job.layer.digest, job.generation, frame), error)

    def _fill_from_here(self, job: _Job) -> None:
        layer = job.layer
        for frame, numbers in list(job.wanted.items()):
            verified = {
                number for number in numbers if layer.is_unverified(number) and self._check_claim(layer, number)
            }
            layer.mark(verified)
            copied = []
            for number in numbers:
                if number not in verified and (data := self._local_chunks.read(layer, number)) is not None:
                    layer.data.write(layer.chunk_range(number)[0], data)
                    self._counts.add("copied_bytes", len(data))
                    copied.append(number)
            layer.mark(copied)
            rest = [number for number in numbers if not layer.present.has(number)]
            if rest:
                job.wanted[frame] = rest
            else:
                del job.wanted[frame]
                self._land(job, frame)
        if job.wanted:
            handle = self._find_store(layer.store_url)
            handle.workers.submit(self._guarded, self._fill_from_store, job, urgent=job.urgent)

    def _check_claim(self, layer: HostLayer, number: int) -> bool:
        offset, length = layer.chunk_range(number)
        if chunk_id(layer.data.read(offset, length)) == layer.chunk_index.stored_id(number):
            self._counts.add("checked_bytes", length)
            return True
        log.warning("%s: chunk %d of the data file is damaged; it is fetched anew", layer.digest, number)
        self._counts.add("damaged_chunks")
        layer.forget_claim(number)
        return False

    def _fill_from_store(self, job: _Job) -> None:
        layer, handle = job.layer, self._find_store(job.layer.store_url)
        numbers = [number for chunks in job.wanted.values() for number in chunks]
        try:
            self._fetch(layer, handle, numbers)
        except (MissingError, CorruptError) as error:
            log.warning("%s: %s; reading its locator anew", layer.digest, error)
            if not self._renew_locator(layer, handle) and isinstance(error, MissingError):
                raise
            self._fetch(layer, handle, [number for number in numbers if not layer.present.has(number)])
        for frame in list(job.frames):
            self._land(job, frame)

    def _renew_locator(self, layer: HostLayer, handle: StoreHandle) -> bool:
        """Read the locator once more; whether it says anything new."""
        locator = handle.store().get_locator(layer.digest)
        if locator == layer.locator[1]:
            return False
        layer.replace_locator(locator)
        return True

    def _fetch(self, layer: HostLayer, handle: StoreHandle, numbers: Iterable[int]) -> None:
        _, locator, _ = layer.locator
        wanted: dict[int, list[int]] = {}
        for number in numbers:
            wanted.setdefault(locator.chunk_frame[number], []).append(number)
        for request in plan_requests(_place(locator, frame) for frame in wanted):
            key = pack_key(locator.packs[request.pack])
            began = time.monotonic()
            data = handle.store().objects.get_range(key, request.offset, request.length)
            if len(data) != request.length:
                raise CorruptError(f"{len(data)} bytes came instead of {request.length}", where=key)
            self._counts.add("fetch_requests")
            self._counts.add("fetched_bytes", len(data))
            self._counts.add("fetch_seconds", time.monotonic() - began)
            self._unpack(layer, locator, request, memoryview(data), wanted)

    def _unpack(
        self, layer: HostLayer, locator: Locator, request: Request, data: memoryview, wanted: dict[int, list[int]]
    ) -> None:
        for place in request.frames:
            start = place.offset - request.offset
            key = pack_key(locator.packs[place.pack])
            try:
                plain = decode_frame(locator.frames[place.number][1], data[start : start + place.length])
                for number in wanted[place.number]:
                    _write_chunk(layer, number, memoryview(plain), locator.chunk_offset[number])
            except CorruptError as error:
                self._counts.add("corrupt_frames")
                raise CorruptError(f"frame at {place.offset}: {error.message}", where=key) from error
            layer.mark(wanted[place.number])


def _write_chunk(layer: HostLayer, number: int, plain: memoryview, at: int) -> None:
    offset, length = layer.chunk_range(number)
    if at + length > len(plain):
        raise CorruptError(f"chunk {number} ends at {at + length} of a frame of {len(plain)} bytes")
    chunk = plain[at : at + length]
    if chunk_id(chunk) != layer.chunk_index.stored_id(number):
        raise CorruptError(f"chunk {number} has other bytes than the chunk index says")
    layer.data.write(offset, chunk)


def _place(locator: Locator, number: int) -> FramePlace:
    pack, frame = locator.frames[number]
    return FramePlace(number, pack, frame.offset, frame.stored_length)


def _split(job: _Job, locator: Locator) -> list[_Job]:
    """One job a request, so that requests run in parallel."""
    parts = []
    for request in plan_requests(_place(locator, frame) for frame in job.frames):
        wanted = {place.number: job.wanted[place.number] for place in request.frames}
        parts.append(_Job(job.layer, job.urgent, job.generation, wanted, set(wanted)))
    return parts
