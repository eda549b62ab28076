"""Where a new layer's chunks lie: with its steps, in foreign frames worth reading, or newly stored. `build` only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from layerkit.build.ingest import ChunkSink, Ingester
from layerkit.build.pieces import Piece
from layerkit.errors import SourceChangedError
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.layer.contents import same_body
from layerkit.layer.tree import Content
from layerkit.store.frames import ChunkPlace
from layerkit.store.reuse import Candidate, choose_reused
from layerkit.store.whole import PackCheck

FindPlace = Callable[[bytes], ChunkPlace | None]
"""Where a chunk lies as far as this machine knows; it may be wrong."""


class Source(Protocol):
    """What files were read from, able to give them once more."""

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Path, content and bytes of each file whose content is wanted."""
        ...


def reusable_places(
    packs: PackCheck, index: ChunkIndex, is_settled: Callable[[bytes], bool], foreign: FindPlace
) -> dict[bytes, ChunkPlace]:
    """The foreign places that the layer shall use.

    Args:
        packs: says which packs can be used.
        index: the layer's chunks.
        is_settled: whether a chunk has a place already.
        foreign: what is known besides.
    """
    candidates = []
    seen: set[bytes] = set()
    for number in range(index.stored_count):
        digest = index.stored_id(number)
        if is_settled(digest) or digest in seen:
            continue
        seen.add(digest)
        place = foreign(digest)
        if place is not None:
            candidates.append(Candidate(digest, index.lengths[index.entry_of_stored(number)], place))
    return sound_places(packs, choose_reused(candidates))


def sound_places(packs: PackCheck, places: dict[bytes, ChunkPlace]) -> dict[bytes, ChunkPlace]:
    """Those places whose packs can be used."""
    sound = packs.sound(places.values())
    return {digest: place for digest, place in places.items() if place.pack in sound}


def store_missing(missing: set[bytes], sources: Iterable[Source], sink: ChunkSink) -> None:
    """Read from the sources, once more, the files that hold the missing chunks, and give those chunks to the sink.

    Raises:
        SourceChangedError: some chunk is in no source: a file is no longer what it was.
    """
    left = set(missing)
    ingester = Ingester(sink, missing.__contains__)
    for source in sources:
        if not left:
            return
        for path, content, pieces in source.contents(lambda content: any(id_ in left for _, id_ in content.chunks)):
            again = ingester.read(pieces, content.size, path)
            if same_body(again, content):
                left.difference_update(digest for _, digest in content.chunks)
    if left:
        raise SourceChangedError(
            f"{len(left)} chunks are in no pack, and the files that held them have changed; one is {min(left).hex()}",
            hint="start again; if nothing wrote to those files, build with --no-cache",
        )
