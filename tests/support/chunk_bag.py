"""Chunks in memory, as the ingest's sink and as the place to read contents from."""

from __future__ import annotations

from layerkit.build.ingest import Ingester
from layerkit.layer.tree import Content


class ChunkBag:
    """Keeps every chunk by its id."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}

    def add(self, chunk_id: bytes, data: bytes) -> bool:
        fresh = chunk_id not in self.chunks
        self.chunks[chunk_id] = data
        return fresh

    def ingester(self) -> Ingester:
        return Ingester(self, lambda chunk_id: chunk_id not in self.chunks)

    def read(self, body: object) -> bytes:
        """The bytes of a regular file."""
        if isinstance(body, bytes):
            return body
        assert isinstance(body, Content)
        return b"".join(self.chunks[id_] if id_ else bytes(length) for length, id_ in body.chunks)
