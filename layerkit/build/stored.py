"""Layers that are in the store, as the compiler needs them: tree, facts, config, places, contents. `build` only.

Everything is read when it is first asked for and kept; one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

from layerkit.errors import CorruptError
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import Facts
from layerkit.layer.image import load_tree
from layerkit.layer.manifest import Descriptor, Manifest
from layerkit.layer.tree import Inode
from layerkit.store.frames import ChunkPlace
from layerkit.store.locator import Locator
from layerkit.store.store import Store


class StoredLayer:
    """One layer of a store, by its digest."""

    def __init__(self, store: Store, digest: str) -> None:
        self.store = store
        self.digest = digest

    @cached_property
    def manifest(self) -> Manifest:
        """The checked manifest."""
        return Manifest.parse(self.store.get_manifest(self.digest))

    @cached_property
    def config(self) -> LayerConfig:
        """What the layer says of itself."""
        return LayerConfig.from_bytes(self._part("config"))

    @cached_property
    def facts(self) -> Facts:
        """What is known of its files."""
        return Facts.from_bytes(self._part("facts"))

    @cached_property
    def meta(self) -> bytes:
        """The EROFS image."""
        return self._part("meta")

    @cached_property
    def chunk_index_bytes(self) -> bytes:
        """The chunk index as it is stored."""
        return self._part("chunk_index")

    @cached_property
    def chunk_index(self) -> ChunkIndex:
        """The chunks of its data."""
        return ChunkIndex.from_bytes(self.chunk_index_bytes)

    @cached_property
    def locator(self) -> Locator:
        """Where they lie; it must fit the chunk index."""
        locator = self.store.get_locator(self.digest)
        if len(locator) != self.chunk_index.stored_count:
            raise CorruptError(
                f"the locator has {len(locator)} chunks, the chunk index {self.chunk_index.stored_count}",
                where=self.digest,
            )
        return locator

    @cached_property
    def tree(self) -> Inode:
        """The tree; callers must not change it (see `build.edit`)."""
        return load_tree(self.meta, self.chunk_index_bytes)

    def find_place(self, id_: bytes) -> ChunkPlace | None:
        """Where one of its chunks lies; None for a chunk that it does not hold."""
        number = self._numbers.get(id_)
        return None if number is None else self.locator.place(number)

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {self.chunk_index.stored_id(number): number for number in range(self.chunk_index.stored_count)}

    def places(self) -> Iterator[tuple[bytes, ChunkPlace]]:
        """Each stored chunk's id and place."""
        index, locator = self.chunk_index, self.locator
        for number in range(index.stored_count):
            yield index.stored_id(number), locator.place(number)

    def places_of(self, wanted: Collection[bytes]) -> dict[bytes, ChunkPlace]:
        """The places of those chunks among `wanted` that the layer holds."""
        index, locator = self.chunk_index, self.locator
        found = ((index.stored_id(number), number) for number in range(index.stored_count))
        return {id_: locator.place(number) for id_, number in found if id_ in wanted}

    def _part(self, name: str) -> bytes:
        descriptor: Descriptor = getattr(self.manifest, name)
        return self.store.get_part(self.digest, name, descriptor.digest, descriptor.size)


class StoredLayers:
    """The layers that a command looks at, each loaded once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[str, StoredLayer] = {}

    def get(self, digest: str) -> StoredLayer:
        """The layer; nothing is read yet."""
        layer = self._known.get(digest)
        if layer is None:
            layer = self._known[digest] = StoredLayer(self.store, digest)
        return layer

    def forget_locators(self) -> None:
        """Read locators anew when they are next asked for: packs were rewritten meanwhile."""
        for layer in self._known.values():
            layer.__dict__.pop("locator", None)

    def stack_of(self, digest: str) -> tuple[str, ...]:
        """The layer with those it is a difference against, bottom first.

        Raises:
            CorruptError: the chain of parents does not end.
        """
        chain = [digest]
        while parent := self.get(chain[-1]).config.parent:
            if parent in chain or len(chain) > 128:
                raise CorruptError("the chain of parents does not end", where=digest)
            chain.append(parent)
        return tuple(reversed(chain))
