"""One layer in the making: files are read, chunks packed, the parts put together and published. `build` only.

Order of events: packs are durable before the locator that names them is written, the manifest comes last
(`Store.put_layer`), and what this machine knows is written when the layer is there. A crash leaves packs that nothing
refers to.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from layerkit.build.file_cache import FileCache
from layerkit.build.file_reader import FileReader
from layerkit.build.host_tree import HostTree
from layerkit.build.ingest import Ingester
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.places import FindPlace, Source, reusable_places, sound_places, store_missing
from layerkit.build.tar_source import TarSource
from layerkit.ids import sha256_digest
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import Facts, FactsCollector
from layerkit.layer.image import build_image
from layerkit.layer.manifest import build_manifest
from layerkit.layer.scan import Exclude
from layerkit.layer.tree import Inode
from layerkit.store.frames import ChunkPlace
from layerkit.store.layers import LayerParts
from layerkit.store.locator import Locator
from layerkit.store.packer import Packer
from layerkit.store.store import Store
from layerkit.store.whole import PackCheck, is_whole


@dataclass(frozen=True, slots=True)
class MadeLayer:
    """What came out.

    Attributes:
        digest: the layer's.
        existed: the store had it already.
        meta_bytes, chunk_index_bytes, plain_bytes: sizes of the parts and of all file contents in `data`.
        stored_bytes: what was added to the store's packs for it.
    """

    digest: str
    existed: bool
    meta_bytes: int
    chunk_index_bytes: int
    plain_bytes: int
    stored_bytes: int


class LayerMaking:
    """Use as a context manager: leaving it with an exception stores nothing more.

    Attributes:
        ingester: cuts and packs files; `read_file` and others feed it.
        facts: what was learnt from the files read by this object.
        cache: files known from earlier.
        sources: what the layer's files were read from.

    Args:
        store: where the layer goes.
        knowledge: the caches of this machine.
        own: places of chunks that are taken as they are: those of the steps that the layer is put together from.
        near: places in layers that this one stands on or copies from; used where that is worth it, as what this
            machine knows of other layers is.
        pack_now: whether files are packed as they are read; without it only when they turn out to be needed.
        trusting: whether files known from earlier are not read again, and what is stored counts as sound where its
            sizes fit; without it packs are read before they are used again, parts are compared, and what is damaged
            is stored anew.
    """

    def __init__(
        self,
        store: Store,
        knowledge: BuildKnowledge,
        *,
        own: FindPlace = lambda digest: None,
        near: FindPlace = lambda digest: None,
        pack_now: bool = True,
        trusting: bool = True,
    ) -> None:
        self._store = store
        self._knowledge = knowledge
        self._own = own
        self._trusting = trusting
        self._packs = PackCheck(store.objects, contents=not trusting)
        self.sources: list[Source] = []
        self._views = ExitStack()
        find_file = self._views.enter_context(knowledge.files.view())
        self.cache = FileCache(find_file if trusting else lambda key: None)
        find_known = self._views.enter_context(knowledge.chunks.view())

        def find_foreign(digest: bytes) -> ChunkPlace | None:
            return near(digest) or find_known(digest)

        # Neither closure holds this object: its windows and threads go with it, not when garbage is collected.
        self._find_foreign = find_foreign
        self._packer = Packer(store)
        self.facts = FactsCollector()
        self.ingester = Ingester(self._packer, lambda digest: pack_now and find_foreign(digest) is None)
        self.read_file = FileReader(self.ingester, self.facts, self.cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._views.close()
        self._packer.__exit__(kind, error, traceback)
        self._knowledge.files.put_many(self.cache.new)

    def read_directory(self, folder: Path, *, exclude: Exclude | None = None) -> Inode:
        """The whole tree below a directory, all files read."""
        source = HostTree(folder, exclude=exclude, read_now=self.read_file)
        self.sources.append(source)
        return source.root

    def read_upper(self, folder: Path) -> Inode:
        """The difference in an overlay's upper directory, all files read; none is remembered: they never come again."""
        source = HostTree(folder, overlay_upper=True, read_now=FileReader(self.ingester, self.facts, None))
        self.sources.append(source)
        return source.root

    def read_tar(self, path: Path) -> Inode:
        """The whole tree in an archive."""
        source = TarSource(path, self.ingester, self.facts)
        self.sources.append(source)
        return source.root

    def add_source(self, source: Source) -> None:
        """Something else whose files the tree holds."""
        self.sources.append(source)

    def finish(self, tree: Inode, config: LayerConfig, facts: Facts | None = None) -> MadeLayer:
        """Put the layer together and publish it under its digest.

        Args:
            tree: what the layer holds.
            config: what it says of itself.
            facts: of its files; those gathered by reading where None.
        """
        image = build_image(tree)
        index = ChunkIndex.from_bytes(image.chunk_index)
        known_facts = (facts or self.facts.finish(tree)).to_bytes()
        config_bytes = config.to_bytes()
        manifest = build_manifest(config_bytes, image.meta, image.chunk_index, known_facts)
        digest = sha256_digest(manifest)
        objects = self._store.objects
        existed = is_whole(objects, digest) if self._trusting else self._store.has_layer(digest)
        if not (existed and self._trusting):
            locator = Locator.build(self._places(index))
            parts = LayerParts(manifest, config_bytes, image.meta, image.chunk_index, known_facts)
            self._store.put_layer(parts, locator.to_bytes())
        self._packer.flush()
        stored = self._packer.stats.stored_bytes
        plain = sum(index.lengths)
        return MadeLayer(digest, existed, len(image.meta), len(image.chunk_index), plain, stored)

    def _places(self, index: ChunkIndex) -> list[ChunkPlace]:
        packer = self._packer
        ids = [index.stored_id(number) for number in range(index.stored_count)]
        own = {digest: place for digest in set(ids) if (place := self._own(digest)) is not None}
        places = sound_places(self._packs, own)
        places.update(
            reusable_places(self._packs, index, lambda id_: id_ in places or id_ in packer, self._find_foreign)
        )
        missing = {digest for digest in ids if digest not in places and digest not in packer}
        if missing:
            store_missing(missing, self.sources, packer)
        packer.flush()
        self._views.close()  # an open view keeps the tables' old pages from being used again
        fresh = {digest: packer.place(digest) for digest in set(ids) if digest in packer}
        self._knowledge.chunks.put_many(fresh.items())
        places.update(fresh)
        return [places[digest] for digest in ids]
