"""Checks a layer's parts against each other: what `store.verify` cannot, since it knows no formats of layers.

Imported by the command line. Functions without state; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.errors import LayerkitError
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.store.keys import locator_key, manifest_key, part_key
from layerkit.store.verify import Finding


def stored_chunks(chunk_index: bytes) -> list[tuple[bytes, int]]:
    """Id and length of the stored chunks of a chunk index, in order; what `store.verify` asks its caller for."""
    index = ChunkIndex.from_bytes(chunk_index)
    return [
        (index.stored_id(number), index.lengths[index.entry_of_stored(number)]) for number in range(index.stored_count)
    ]


def verify_parts(library: StoredLayers, digest: str) -> Iterator[Finding]:
    """Every contradiction within one layer: parts that cannot be read, an EROFS image that is not sound or does not
    fit the chunk index, a locator of another length, a parent that is not there."""
    layer = library.get(digest)
    checks: tuple[tuple[str, Callable[[StoredLayer], object]], ...] = (
        (manifest_key(digest), lambda one: one.manifest),
        (part_key(digest, "config"), lambda one: one.config),
        (part_key(digest, "facts"), lambda one: one.facts),
        (part_key(digest, "chunk_index"), lambda one: one.chunk_index),
        (part_key(digest, "meta"), lambda one: one.tree),
        (locator_key(digest), lambda one: one.locator),
    )
    for key, check in checks:
        try:
            check(layer)
        except LayerkitError as error:
            yield Finding(error.code, key, error.message, digest)
            if key == manifest_key(digest):
                return
    yield from _verify_parent(library, layer)


def _verify_parent(library: StoredLayers, layer: StoredLayer) -> Iterator[Finding]:
    try:
        parent = layer.config.parent
        missing = parent and not library.store.has_layer(parent)
    except LayerkitError:
        return  # said already
    if missing:
        yield Finding("missing", manifest_key(parent), "the parent of a layer is not in the store", layer.digest)
