"""Small layers for the store's tests: seeded chunks, parts that the store takes as they are, one call to publish."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerkit._util.canonical import canonical_json
from layerkit.core.hashing import chunk_id
from layerkit.errors import CorruptError
from layerkit.ids import Platform, Ref, sha256_digest
from layerkit.store.layers import LayerParts
from layerkit.store.locator import Locator
from layerkit.store.packer import Packer
from layerkit.store.params import StoreParams
from layerkit.store.store import Store, open_store

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")
ENTRY = struct.Struct("<32sI")
SMALL = StoreParams(frame_size=16 << 10, pack_size=128 << 10)


def make_store(root: Path, params: StoreParams = SMALL) -> Store:
    return open_store(str(root / "store"), create=True, params=params, home=root / "home")


def make_chunks(seed: int, count: int = 40, most: int = 12_000) -> list[bytes]:
    """Chunks of mixed compressibility; every seed shares its first quarter with all others."""
    chunks = []
    for number in range(count):
        draw = random.Random(number if number < count // 4 else seed * 1000 + number)
        size = draw.randint(1, most)
        word = draw.randbytes(draw.randint(1, 64))
        chunks.append(draw.randbytes(size) if draw.random() < 0.3 else (word * (size // len(word) + 1))[:size])
    return chunks


def stored_chunks(index: bytes) -> list[tuple[bytes, int]]:
    """The samples' chunk index: ids and lengths. (The real one is `layer`'s, which `store` does not know.)"""
    if len(index) % ENTRY.size:
        raise CorruptError("not a sample's chunk index")
    return [ENTRY.unpack_from(index, at) for at in range(0, len(index), ENTRY.size)]


@dataclass(frozen=True)
class Sample:
    chunks: Sequence[bytes]
    parts: LayerParts

    @property
    def digest(self) -> str:
        return sha256_digest(self.parts.manifest)


def make_sample(seed: int, count: int = 40) -> Sample:
    chunks = make_chunks(seed, count)
    index = b"".join(ENTRY.pack(chunk_id(chunk), len(chunk)) for chunk in chunks)
    meta = random.Random(seed).randbytes(3000) + bytes(5000)
    config, facts = canonical_json({"seed": seed}), canonical_json({"facts": seed})
    described = [{"mediaType": "x", "digest": sha256_digest(part), "size": len(part)}
                 for part in (config, meta, index, facts)]  # fmt: skip
    manifest = canonical_json({"schemaVersion": 2, "config": described[0], "layers": described[1:]})
    return Sample(chunks, LayerParts(manifest, config, meta, index, facts))


def put_sample(store: Store, sample: Sample) -> str:
    """Packs, then the layer; returns its digest."""
    with Packer(store) as packer:
        for chunk in sample.chunks:
            packer.add(chunk_id(chunk), chunk)
        packer.flush()
        locator = Locator.build(packer.place(chunk_id(chunk)) for chunk in sample.chunks)
    return store.put_layer(sample.parts, locator.to_bytes())


def publish_sample(store: Store, seed: int, ref: str, platform: Platform = AMD64) -> str:
    digest = put_sample(store, make_sample(seed))
    store.publish_ref(Ref.parse(ref), platform, digest)
    return digest
