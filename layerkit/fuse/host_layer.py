"""One layer on this host: its checked files, data file and presence; imported by the rest of `fuse`.

A HostLayer is safe from any thread. Only hostd makes one: it writes. Its files come from `fuse.intake`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import suppress

from layerkit._util.files import write_durable
from layerkit.errors import CorruptError
from layerkit.fuse import bitmaps
from layerkit.fuse.data_file import DataFile
from layerkit.fuse.paths import HostPaths, short_name
from layerkit.fuse.plan import FrameMembers, ReadAhead
from layerkit.fuse.presence import VolatileMap, read_durable_map, write_durable_map
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.store.locator import Locator

log = logging.getLogger("layerkit.host")


class HostLayer:
    """A layer whose files are complete and checked.

    Attributes:
        digest, name: the layer's digest and its short name.
        store_url: where absent chunks come from.
        chunk_index: the chunks of its data.
        data, present: the data file and the map that serving processes trust.
        read_ahead: recognises sequential readers; use under `lock`.
    """

    def __init__(
        self, paths: HostPaths, digest: str, store_url: str, chunk_index: ChunkIndex, locator: Locator
    ) -> None:
        self.paths = paths.layer(digest)
        self.digest = digest
        self.name = short_name(digest)
        self.store_url = store_url
        self.chunk_index = chunk_index
        self.lock = threading.Lock()
        self.read_ahead = ReadAhead()
        self._volatile_path = paths.volatile_map(digest)
        self._dirty = False
        self._locator = self._checked(0, locator)
        self._open_data()

    def _open_data(self) -> None:
        bits = self.chunk_index.stored_count
        self.data = DataFile.create_or_open(self.paths.data, self.chunk_index.data_size)
        try:
            self.present = VolatileMap.create_or_open(self._volatile_path, self.digest, self.data.identity, bits)
        except BaseException:
            self.data.close()
            raise
        self._unverified = bytearray(bitmaps.byte_count(bits))
        with suppress(FileNotFoundError):
            try:
                durable = read_durable_map(self.paths.presence, self.digest, self.data.identity, bits)
            except CorruptError as error:
                log.warning("%s; its chunks are fetched anew", error)
            else:
                known = int.from_bytes(durable, "little") & ~int.from_bytes(self.present.snapshot(), "little")
                self._unverified[:] = known.to_bytes(len(self._unverified), "little")

    def reopen_if_replaced(self) -> bool:
        """Start over with a new data file when the old one was deleted or replaced; only while nothing is mounted."""
        if self.data.is_in_place:
            return False
        log.warning("%s: the data file was removed or replaced; its chunks are fetched anew", self.paths.data)
        self.close()
        self._open_data()
        return True

    def _checked(self, generation: int, locator: Locator) -> tuple[int, Locator, FrameMembers]:
        if len(locator.chunk_frame) != self.chunk_index.stored_count:
            raise CorruptError(
                f"locator places {len(locator.chunk_frame)} chunks, the layer has {self.chunk_index.stored_count}",
                where=self.digest,
            )
        return generation, locator, FrameMembers(locator.chunk_frame)

    @property
    def locator(self) -> tuple[int, Locator, FrameMembers]:
        """The locator's generation in this process, the locator, and the chunks of each frame: one moment's values."""
        return self._locator

    def chunk_range(self, number: int) -> tuple[int, int]:
        """Offset in the data and length of a stored chunk."""
        entry = self.chunk_index.entry_of_stored(number)
        return self.chunk_index.offsets[entry], self.chunk_index.lengths[entry]

    def stored_in(self, offset: int, length: int) -> tuple[int, int]:
        """The first and last stored chunk with a byte in the range, inclusive; last < first when there is none."""
        first, last = self.chunk_index.range(offset, length)
        if last < first:
            return 0, -1
        return self.chunk_index.stored_number(first), self._stored_before(last + 1) - 1

    def _stored_before(self, entry: int) -> int:
        if entry == self.chunk_index.entry_count:
            return self.chunk_index.stored_count
        return self.chunk_index.stored_number(entry)

    def absent_in(self, offset: int, length: int) -> list[int]:
        """The stored chunks with a byte in the range that readers cannot have yet."""
        if self.present.is_complete:
            return []
        first, last = self.stored_in(offset, length)
        return self.present.absent(first, last) if first <= last else []

    def is_unverified(self, number: int) -> bool:
        """Whether the durable map claims the chunk and nobody has checked it since."""
        return bitmaps.is_set(self._unverified, 0, number)

    def forget_claim(self, number: int) -> None:
        """The claim of the durable map has been checked, or is wrong."""
        with self.lock:
            bitmaps.clear_bits(self._unverified, [number])

    def mark(self, numbers: Collection[int]) -> None:
        """The verified bytes of these chunks are in the data file."""
        self.present.mark(numbers)
        with self.lock:
            bitmaps.clear_bits(self._unverified, numbers)
            self._dirty = True

    def forget(self, numbers: list[int]) -> None:
        """These chunks are damaged; the next reader fetches them anew."""
        self.present.forget(numbers)
        with self.lock:
            bitmaps.clear_bits(self._unverified, numbers)
            self._dirty = True

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is present and verified."""
        return self.present.is_complete

    def flush(self) -> bool:
        """Sync the data, then write the durable map, then give the page cache back; True when there was anything."""
        with self.lock:
            if not self._dirty:
                return False
            self._dirty = False
            # Taken before the sync: a chunk that arrives meanwhile is in the next batch.
            bitmap = bytearray(self._unverified)
        bitmaps.merge(bitmap, self.present.snapshot())
        try:
            self.data.sync()
            bits = self.chunk_index.stored_count
            write_durable_map(self.paths.presence, self.digest, self.data.identity, bits, bytes(bitmap))
        except BaseException:
            with self.lock:
                self._dirty = True
            raise
        self.data.drop_cached_pages()
        return True

    def replace_locator(self, locator: Locator) -> None:
        """Use a locator that was read anew from now on, and keep it.

        Raises:
            CorruptError: it does not fit the chunk index.
        """
        self._locator = self._checked(self._locator[0] + 1, locator)
        write_durable(self.paths.locator, locator.to_bytes())

    def close(self) -> None:
        """Close the data file and the map; the layer's files stay."""
        self.present.close()
        self.data.close()
