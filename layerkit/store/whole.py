"""Whether what is there can be read: quick answers for those who are about to rely on it; imported by builds.

A manifest alone proves little: packs and parts may have been lost or cut since. `store.verify` reports every damage;
here one question is answered by sizes, and by contents where the caller asks for it. One thread an object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from layerkit.errors import CorruptError, MissingError
from layerkit.store.frames import ChunkPlace
from layerkit.store.keys import PART_FILES, manifest_key, pack_key, part_key
from layerkit.store.layers import get_locator
from layerkit.store.objectstore import ObjectStore
from layerkit.store.pack import MAX_PACK_BYTES


class PackCheck:
    """Which packs can be relied on.

    Args:
        contents: read each pack once and compare its digest; else its size must do.
    """

    def __init__(self, objects: ObjectStore, *, contents: bool = False) -> None:
        self._objects = objects
        self._contents = contents
        self._read: set[bytes] = set()

    def sound(self, places: Iterable[ChunkPlace]) -> set[bytes]:
        """The packs among those of these places that hold all of them."""
        ends: dict[bytes, int] = {}
        for place in places:
            ends[place.pack] = max(ends.get(place.pack, 0), place.frame_offset + place.stored_length)
        return {pack for pack, end in ends.items() if self.is_sound(pack, end)}

    def is_sound(self, pack: bytes, end: int) -> bool:
        """Whether a pack is there and has at least `end` bytes; with `contents` also whether they are its own."""
        found = self._objects.stat(pack_key(pack))
        if found is None or found.size < end:
            return False
        if self._contents and pack not in self._read:
            if not self._has_its_digest(pack):
                return False
            self._read.add(pack)
        return True

    def _has_its_digest(self, pack: bytes) -> bool:
        try:
            data = self._objects.get(pack_key(pack), max_bytes=MAX_PACK_BYTES)
        except (MissingError, CorruptError):
            return False
        return hashlib.sha256(data).digest() == pack


def is_whole(objects: ObjectStore, digest: str) -> bool:
    """Whether a layer is there with all its parts, its locator, and every frame that this names; by sizes alone."""
    keys = [manifest_key(digest), *(part_key(digest, part) for part in PART_FILES)]
    if any(objects.stat(key) is None for key in keys):
        return False
    try:
        locator = get_locator(objects, digest)
    except (MissingError, CorruptError):
        return False
    ends = dict.fromkeys(locator.packs, 0)
    for number, frame in locator.frames:
        pack = locator.packs[number]
        ends[pack] = max(ends[pack], frame.offset + frame.stored_length)
    packs = PackCheck(objects)
    return all(packs.is_sound(pack, end) for pack, end in ends.items())
