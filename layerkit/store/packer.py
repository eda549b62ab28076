"""The packer: chunks in, compressed frames and durable packs out; imported by publishers.

add() copies nothing that is already `bytes` and returns at once; frames are compressed by threads (zstd releases the
GIL), appended to packs and hashed by one thread, and written with fsync by another. What is under way is bounded:
24 MiB of frames, one pack that grows, two that are written. One thread at a time may call a packer.
"""

from __future__ import annotations

import queue
import threading
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import zstandard

from layerkit.errors import CorruptError, LimitError, MissingError
from layerkit.store.columns import COLUMN
from layerkit.store.frames import CODEC_RAW, CODEC_ZSTD, MAX_FRAME_BYTES, ChunkPlace, Frame
from layerkit.store.keys import pack_key
from layerkit.store.objectstore import Data, ObjectStore
from layerkit.store.pack import PackBuilder
from layerkit.store.params import StoreParams

MAX_PENDING_BYTES = 24 << 20
MAX_PACKS_IN_WRITING = 2
# A frame that does not shrink by this share is stored raw: reading it then costs no decompression.
MIN_SAVING = 0.03


class PackTarget(Protocol):
    """Where packs go: a `Store`."""

    @property
    def objects(self) -> ObjectStore:
        """Where packs are put."""
        ...

    @property
    def params(self) -> StoreParams:
        """Sizes and compression level."""
        ...


@dataclass
class PackerStats:
    """What a packer has done; complete after flush().

    Attributes:
        chunks, plain_bytes: what was accepted.
        duplicates: how many more were offered again.
        frames, raw_frames: all, and those that did not shrink.
        packs, stored_bytes: what was written, with headers and footers.
    """

    chunks: int = 0
    plain_bytes: int = 0
    duplicates: int = 0
    frames: int = 0
    raw_frames: int = 0
    packs: int = 0
    stored_bytes: int = 0


class _Encoded(NamedTuple):
    stored: bytes
    codec: int


class _Job(NamedTuple):
    encoded: Future[_Encoded]
    chunks: list[tuple[bytes, int]]
    plain_length: int


class Packer:
    """Stores chunks.

    Use it as a context manager: it closes at the end and aborts when an exception passes. An error of any of its
    threads (a full disk, an unavailable store) is raised by the next call. What an aborted or killed packer leaves
    are whole packs that nothing refers to.

    Args:
        store: objects and parameters.
        threads: how many frames are compressed at once.
    """

    def __init__(self, store: PackTarget, *, threads: int = 2) -> None:
        self.stats = PackerStats()
        self._store = store
        self._frame_size = store.params.frame_size
        self._numbers: dict[bytes, int] = {}
        self._chunk_frame = array(COLUMN)
        self._chunk_offset = array(COLUMN)
        self._open: list[tuple[bytes, int]] = []
        self._open_data: list[bytes] = []
        self._open_bytes = 0
        self._sealed = 0
        self._flushed = 0
        self._placed: list[tuple[int, Frame]] = []
        self._packs: list[bytes] = []
        self._failure: BaseException | None = None
        self._closed = False
        self._pending = 0
        self._changed = threading.Condition()
        self._jobs: queue.SimpleQueue[_Job | threading.Event | None] = queue.SimpleQueue()
        self._local = threading.local()
        self._compressors = ThreadPoolExecutor(threads, "layerkit-compress")
        self._writer = ThreadPoolExecutor(1, "layerkit-pack-write")
        self._writes: list[Future[None]] = []
        self._appender = threading.Thread(target=self._append_frames, name="layerkit-pack", daemon=True)
        self._appender.start()

    def add(self, chunk_id: bytes, data: Data) -> bool:
        """Store a chunk under its id, the caller's word for it; False when this packer has it already.

        Waits when too much is under way. `data` may be reused by the caller afterwards.
        """
        if chunk_id in self._numbers:
            self.stats.duplicates += 1
            return False
        size = len(data)
        if not 0 < size <= MAX_FRAME_BYTES:
            raise LimitError(f"a chunk of {size} bytes; 1 to {MAX_FRAME_BYTES} can be stored")
        if self._open_bytes + size > self._frame_size and self._open:
            self._seal_frame()
        self._numbers[chunk_id] = len(self._chunk_frame)
        self._chunk_frame.append(self._sealed)
        self._chunk_offset.append(self._open_bytes)
        self._open.append((chunk_id, size))
        self._open_data.append(data if type(data) is bytes else bytes(data))
        self._open_bytes += size
        return True

    def flush(self) -> None:
        """Return when every chunk added so far is durably stored; `place` answers for them from then on."""
        self._check()
        if self._open:
            self._seal_frame()
        done = threading.Event()
        self._jobs.put(done)
        done.wait()
        self._check()
        self._flushed = self._sealed
        self.stats.chunks = len(self._numbers)

    def place(self, chunk_id: bytes) -> ChunkPlace:
        """Where a chunk lies; KeyError for one never added, ValueError for one that is not flushed yet."""
        number = self._numbers[chunk_id]
        frame_number = self._chunk_frame[number]
        if frame_number >= self._flushed:
            raise ValueError("the chunk is not flushed yet")
        pack, frame = self._placed[frame_number]
        return ChunkPlace(self._packs[pack], *frame, self._chunk_offset[number])

    @property
    def packs(self) -> list[bytes]:
        """The digests of the packs written, complete after flush()."""
        return list(self._packs)

    def __contains__(self, chunk_id: bytes) -> bool:
        """Whether the chunk was added."""
        return chunk_id in self._numbers

    def close(self) -> None:
        """Flush and end the threads; closing twice is allowed."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._stop()

    def abort(self) -> None:
        """End without storing what is under way."""
        if not self._closed:
            self._fail(RuntimeError("the packer was aborted"))
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _stop(self) -> None:
        self._closed = True
        self._jobs.put(None)
        self._appender.join()
        self._compressors.shutdown(cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)
        self._fail(ValueError("the packer is closed"))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _seal_frame(self) -> None:
        with self._changed:
            while self._pending >= MAX_PENDING_BYTES and self._failure is None:
                self._changed.wait()
            self._check()
            self._pending += self._open_bytes
        encoded = self._compressors.submit(self._encode, self._open_data)
        self._jobs.put(_Job(encoded, self._open, self._open_bytes))
        self.stats.plain_bytes += self._open_bytes
        self._sealed += 1
        self._open, self._open_data, self._open_bytes = [], [], 0

    def _encode(self, parts: list[bytes]) -> _Encoded:
        plain = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = zstandard.ZstdCompressor(level=self._store.params.zstd_level)
            self._local.compressor = compressor
        stored = compressor.compress(plain)
        if len(stored) > len(plain) * (1 - MIN_SAVING):
            return _Encoded(plain, CODEC_RAW)
        return _Encoded(stored, CODEC_ZSTD)

    def _append_frames(self) -> None:
        """The thread that puts frames into packs, in the order in which they were sealed."""
        builder = PackBuilder(self._store.params.pack_size)
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, _Job):
                    builder = self._append(job, builder)
                elif self._failure is None:
                    builder = self._finish_pack(builder)
                    self._wait_for_writes(0)
            except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread by _check)
                self._fail(error)
            finally:
                if isinstance(job, threading.Event):
                    job.set()

    def _append(self, job: _Job, builder: PackBuilder) -> PackBuilder:
        try:
            if self._failure is not None:
                return builder
            stored, codec = job.encoded.result()
            if not builder.has_room(len(stored), len(job.chunks)):
                builder = self._finish_pack(builder)
            self._placed.append((len(self._packs), builder.add_frame(stored, codec, job.chunks)))
            self.stats.frames += 1
            self.stats.raw_frames += codec == CODEC_RAW
            return builder
        finally:
            with self._changed:
                self._pending -= job.plain_length
                self._changed.notify_all()

    def _finish_pack(self, builder: PackBuilder) -> PackBuilder:
        if builder.is_empty:
            return builder
        self._wait_for_writes(MAX_PACKS_IN_WRITING - 1)
        digest, data = builder.finish()
        self._writes.append(self._writer.submit(self._write_pack, digest, data))
        self._packs.append(digest)
        self.stats.packs += 1
        self.stats.stored_bytes += len(data)
        return PackBuilder(self._store.params.pack_size)

    def _wait_for_writes(self, most: int) -> None:
        while len(self._writes) > most:
            self._writes.pop(0).result()

    def _write_pack(self, digest: bytes, data: bytearray) -> None:
        objects = self._store.objects
        key = pack_key(digest)
        if objects.put_if_absent(key, data):
            return
        # Somebody stored the very same pack before. If that one was damaged since, this is what mends it.
        try:
            sound = objects.get(key, max_bytes=len(data)) == data
        except (CorruptError, MissingError):  # missing: somebody removed it since
            sound = False
        if not sound:
            objects.put(key, data)
