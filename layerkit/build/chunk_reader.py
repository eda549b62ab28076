"""Reads files from the packs of a store, chunk by chunk, each verified. `build` only; one thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from layerkit.build.pieces import Piece
from layerkit.core.hashing import chunk_id
from layerkit.errors import CorruptError, MissingError
from layerkit.layer.tree import Content
from layerkit.store.frames import ChunkPlace, read_frame
from layerkit.store.keys import pack_key
from layerkit.store.store import Store

# Neighbouring small files lie in one frame, and a directory's files in a few.
_FRAMES_KEPT = 16


class ChunkReader:
    """Keeps the frames that were used last.

    Args:
        store: where the packs are.
        find_place: where a chunk lies.
        renew: makes `find_place` read the locators anew.
    """

    def __init__(
        self, store: Store, find_place: Callable[[bytes], ChunkPlace | None], renew: Callable[[], None]
    ) -> None:
        self._store = store
        self._find_place = find_place
        self._renew = renew
        self._frames: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()

    def pieces(self, content: Content) -> Iterator[Piece]:
        """The bytes of a file, a number for each run of zeros.

        Raises:
            MissingError: a pack is gone, also by the newest locator.
            CorruptError: a chunk is not what its id says, or has no place.
        """
        for length, digest in content.chunks:
            if not digest:
                yield length
                continue
            try:
                data = self._chunk(digest, length)
            except MissingError:
                # The pack may have been rewritten, and the locator replaced since it was read (docs/formats/store.md).
                self._renew()
                data = self._chunk(digest, length)
            yield data

    def _chunk(self, digest: bytes, length: int) -> bytes:
        place = self._find_place(digest)
        if place is None:
            raise CorruptError(f"chunk {digest.hex()} has no place in the locator")
        data = self._frame(place)[place.offset : place.offset + length]
        if chunk_id(data) != digest:
            raise CorruptError(f"chunk {digest.hex()} has other bytes", where=pack_key(place.pack))
        return data

    def _frame(self, place: ChunkPlace) -> bytes:
        key = (place.pack, place.frame_offset)
        plain = self._frames.get(key)
        if plain is None:
            plain = self._frames[key] = read_frame(self._store.objects, place.pack, place.frame)
            if len(self._frames) > _FRAMES_KEPT:
                self._frames.popitem(last=False)
        self._frames.move_to_end(key)
        return plain
