"""Which foreign frames a layer reads from, and which chunks it stores again (design §2.5); pure; used by publishers.

A chunk that lies in another layer's frame costs the whole frame to read. So a foreign frame is reused only where the
layer uses at least a quarter of its plain bytes; what else it has in common with others is stored again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from layerkit.store.frames import ChunkPlace

MIN_SHARE = 0.25


class Candidate(NamedTuple):
    """A chunk of the layer that already lies somewhere; several candidates of one chunk are allowed."""

    chunk_id: bytes
    length: int
    place: ChunkPlace


def choose_reused(candidates: Iterable[Candidate], *, min_share: float = MIN_SHARE) -> dict[bytes, ChunkPlace]:
    """The chunks to take from where they are; all others are stored again.

    Frames are looked at from the best used to the least; a chunk that lies in several counts for the first one that
    is taken, so that the others must earn their quarter without it.

    Args:
        candidates: every place of every chunk of the layer that the store holds; repeated ones count once.

    Returns:
        Chunk id to place.
    """
    frames: dict[tuple[bytes, int], dict[bytes, Candidate]] = defaultdict(dict)
    for candidate in candidates:
        frames[candidate.place.pack, candidate.place.frame_offset].setdefault(candidate.chunk_id, candidate)
    reused: dict[bytes, ChunkPlace] = {}
    for _, _, chunks in sorted((-_share(list(held.values())), key, held) for key, held in frames.items()):
        fresh = [candidate for candidate in chunks.values() if candidate.chunk_id not in reused]
        if fresh and _share(fresh) >= min_share:
            reused.update((candidate.chunk_id, candidate.place) for candidate in fresh)
    return reused


def _share(chunks: list[Candidate]) -> float:
    return sum(candidate.length for candidate in chunks) / chunks[0].place.plain_length
