"""Real layers for host tests: small trees cut, packed and published; and what checks that a test left nothing."""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from layerkit._util.overlay import mount_points
from layerkit.core.fastcdc import cut_file_bytes
from layerkit.core.hashing import chunk_id
from layerkit.ids import Platform, Ref
from layerkit.layer.chunk_index import ChunkIndex
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import FactsCollector
from layerkit.layer.image import build_image
from layerkit.layer.manifest import build_manifest
from layerkit.layer.tree import INLINE_MAX, Chunk, Content, Inode, new_directory
from layerkit.store.layers import LayerParts
from layerkit.store.locator import Locator
from layerkit.store.packer import Packer
from layerkit.store.store import Store, open_store

MTIME = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class MadeLayer:
    """A published layer and what it must read like."""

    digest: str
    ref: str
    files: Mapping[str, bytes]
    packs: tuple[str, ...]

    def check(self, folder: Path) -> None:
        """Every file below the mount has the right bytes."""
        for path, data in self.files.items():
            assert (folder / path).read_bytes() == data, path


def sample_files(seed: int, *, count: int = 12, size: int = 200_000) -> dict[str, bytes]:
    """Files of odd sizes: empty, inline, one block, many chunks, with a hole, twice the same."""
    rng = random.Random(seed)
    files = {f"d{n % 3}/f{n}": rng.randbytes(rng.randrange(1000, size)) for n in range(count)}
    files |= {"empty": b"", "small": rng.randbytes(100), "block": rng.randbytes(4096), "edge": rng.randbytes(4097)}
    files["zeros"] = bytes(300_000)
    files["hole"] = rng.randbytes(70_000) + bytes(200_000) + rng.randbytes(5000)
    files["big"] = rng.randbytes(1_500_000)
    files["twice"] = files["big"]
    return files


def _tree(files: Mapping[str, bytes], chunks: dict[bytes, bytes]) -> Inode:
    root = new_directory(mtime_ns=MTIME)
    contents: dict[bytes, Content] = {}
    for path, data in files.items():
        *folders, name = path.encode().split(b"/")
        folder = root
        for part in folders:
            folder = folder.entries.setdefault(part, new_directory(mtime_ns=MTIME))
        body: bytes | Content = data
        if len(data) > INLINE_MAX:
            if data not in contents:
                contents[data] = _cut(data, chunks)
            body = contents[data]
        folder.entries[name] = Inode(stat.S_IFREG | 0o644, mtime_ns=MTIME, body=body)
    return root


def _cut(data: bytes, chunks: dict[bytes, bytes]) -> Content:
    offset, pieces = 0, []
    for length, is_zero in cut_file_bytes(data):
        piece = data[offset : offset + length]
        offset += length
        identity = b"" if is_zero else chunk_id(piece)
        if identity:
            chunks[identity] = piece
        pieces.append(Chunk(length, identity))
    return Content(len(data), tuple(pieces))


def publish(store: Store, name: str, files: Mapping[str, bytes], *, version: str = "1.0") -> MadeLayer:
    """Put a layer of plain files into a store and publish it as base/NAME:VERSION."""
    chunks: dict[bytes, bytes] = {}
    root = _tree(files, chunks)
    image = build_image(root)
    index = ChunkIndex.from_bytes(image.chunk_index)
    with Packer(store) as packer:
        for number in range(index.stored_count):
            identity = index.stored_id(number)
            packer.add(identity, chunks[identity])
        packer.flush()
        locator = Locator.build(packer.place(index.stored_id(number)) for number in range(index.stored_count))
    config = LayerConfig(kind="base", name=name, version=version).to_bytes()
    facts = FactsCollector().finish(root).to_bytes()
    manifest = build_manifest(config, image.meta, image.chunk_index, facts)
    parts = LayerParts(manifest, config, image.meta, image.chunk_index, facts)
    digest = store.put_layer(parts, locator.to_bytes())
    ref = Ref("base", name, version)
    store.publish_ref(ref, Platform.host(), digest)
    packs = tuple(f"packs/{pack.hex()[:2]}/{pack.hex()}.pack" for pack in locator.packs)
    return MadeLayer(digest, str(ref), dict(files), packs)


def make_store() -> Store:
    """The instance's store, created."""
    return open_store(create=True)


def wait_until(condition: object, timeout_s: float = 10.0) -> None:
    """Wait for a callable to become true."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def mounts_of(folder: Path) -> list[bytes]:
    """Mount points below a folder."""
    return [point for point in mount_points() if point.startswith(os.fsencode(folder))]


def processes_of(folder: Path) -> list[int]:
    """Processes whose environment names the folder: the daemons of an instance."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"LAYERKIT_RUN={folder}/".encode() in environment and status != "Z":
                found.append(int(entry.name))
    return found
