"""What a store holds and what it is good for: bytes by kind of object, dedupe and amplification; used by `df`, `stats`.

Functions without state; any thread. Figures of a store that others write to are those of the moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerkit.errors import MissingError
from layerkit.store import keys
from layerkit.store.frames import Frame
from layerkit.store.layers import get_locator
from layerkit.store.locator import Locator
from layerkit.store.objectstore import ObjectStore

KINDS = ("packs", "meta", "chunk_index", "facts", "config", "manifest", "locators", "refs", "tags", "leases", "other")
_KIND_OF_FILE = {file: part for part, file in keys.PART_FILES.items()} | {keys.MANIFEST_FILE: "manifest"}
_KIND_OF_PREFIX = {keys.PACKS: "packs", keys.LOCATORS: "locators", keys.REFS: "refs", keys.TAGS: "tags",
                   keys.LEASES: "leases"}  # fmt: skip


@dataclass
class Share:
    """Objects of one kind."""

    objects: int = 0
    bytes: int = 0


def store_usage(objects: ObjectStore) -> dict[str, Share]:
    """Objects and bytes by kind, in the order of KINDS."""
    shares = {kind: Share() for kind in KINDS}
    for found in objects.list(""):
        share = shares[_kind_of(found.key)]
        share.objects += 1
        share.bytes += found.size
    return shares


@dataclass(frozen=True)
class LayerUsage:
    """What one layer takes and costs.

    Attributes:
        chunk_bytes: plain bytes of its distinct chunks.
        frame_plain_bytes: plain bytes of the frames that hold them.
        frame_stored_bytes: what these frames take in packs; what a full download fetches.
        frames, packs: how many.
    """

    chunk_bytes: int
    frame_plain_bytes: int
    frame_stored_bytes: int
    frames: int
    packs: int

    @property
    def amplification(self) -> float:
        """Bytes that are decompressed for each byte of the layer: 1.0 when its frames hold nothing else."""
        return self.frame_plain_bytes / self.chunk_bytes if self.chunk_bytes else 1.0


def layer_usage(locator: Locator, lengths: Sequence[int]) -> LayerUsage:
    """The figures of one layer.

    Args:
        lengths: of its stored chunks, in order, as its chunk index says.
    """
    seen = {}
    for frame, offset, length in zip(locator.chunk_frame, locator.chunk_offset, lengths, strict=True):
        seen[frame, offset] = length
    frames = [frame for _, frame in locator.frames]
    return LayerUsage(
        chunk_bytes=sum(seen.values()), frames=len(frames), packs=len(locator.packs),
        frame_plain_bytes=sum(frame.plain_length for frame in frames),
        frame_stored_bytes=sum(frame.stored_length for frame in frames),
    )  # fmt: skip


@dataclass(frozen=True)
class DedupeUsage:
    """What sharing saves over all layers of a store.

    Attributes:
        layers: how many.
        referenced_bytes: stored bytes of the frames of every layer, added up as if none shared any.
        distinct_bytes: stored bytes of these frames, each once.
        pack_bytes: bytes of all packs; what is more than distinct_bytes is garbage and footers.
    """

    layers: int
    referenced_bytes: int
    distinct_bytes: int
    pack_bytes: int

    @property
    def ratio(self) -> float:
        """How many times over what is stored is used."""
        return self.referenced_bytes / self.distinct_bytes if self.distinct_bytes else 1.0


def dedupe_usage(objects: ObjectStore) -> DedupeUsage:
    """What sharing saves; reads every locator."""
    distinct: dict[tuple[bytes, int], int] = {}
    count = referenced = 0
    for locator in _locators(objects):
        count += 1
        for number, frame in locator.frames:
            referenced += frame.stored_length
            distinct[_frame_name(locator, number, frame)] = frame.stored_length
    pack_bytes = sum(found.size for found in objects.list(keys.PACKS))
    return DedupeUsage(count, referenced, sum(distinct.values()), pack_bytes)


def _frame_name(locator: Locator, number: int, frame: Frame) -> tuple[bytes, int]:
    return locator.packs[number], frame.offset


def _locators(objects: ObjectStore) -> Iterator[Locator]:
    for found in objects.list(keys.LAYERS):
        digest = keys.layer_in_manifest_key(found.key)
        if digest is not None:
            try:
                yield get_locator(objects, digest)
            except MissingError:
                continue


def _kind_of(key: str) -> str:
    for prefix, kind in _KIND_OF_PREFIX.items():
        if key.startswith(prefix):
            return kind
    if key.startswith(keys.LAYERS):
        return _KIND_OF_FILE.get(key.rpartition("/")[2], "other")
    return "other"
