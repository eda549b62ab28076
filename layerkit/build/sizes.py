"""How large a stored layer is: its parts, its files, and what it takes in packs. Imported by the command line."""

from __future__ import annotations

from dataclasses import dataclass

from layerkit.build.stored import StoredLayer
from layerkit.store.usage import LayerUsage, layer_usage


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes.

    Attributes:
        meta_bytes, chunk_index_bytes, facts_bytes: the plain parts.
        plain_bytes: file contents in the layer's data, holes left out.
        stored_bytes: the compressed frames that hold them, also where other layers share these.
    """

    meta_bytes: int
    chunk_index_bytes: int
    facts_bytes: int
    plain_bytes: int
    stored_bytes: int


def stored_usage(layer: StoredLayer) -> LayerUsage:
    """Chunks, frames and packs of a layer; reads its chunk index and locator."""
    index = layer.chunk_index
    lengths = [index.lengths[index.entry_of_stored(number)] for number in range(index.stored_count)]
    return layer_usage(layer.locator, lengths)


def layer_sizes(layer: StoredLayer) -> LayerSizes:
    """The sizes of a layer; reads its manifest, chunk index and locator.

    Raises:
        MissingError, CorruptError: one of them is gone or damaged.
    """
    manifest = layer.manifest
    return LayerSizes(
        manifest.meta.size, manifest.chunk_index.size, manifest.facts.size, sum(layer.chunk_index.lengths),
        sum(frame.stored_length for _, frame in layer.locator.frames),
    )  # fmt: skip
