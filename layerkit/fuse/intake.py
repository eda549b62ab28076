"""How a layer's files come to this host: fetched whole, verified, checked before the kernel sees them.

Imported by hostd. Blocking; `fetch_layer` belongs into a store's workers, `open_layer` touches local files only. One
call a layer at a time: the caller sees to that.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit._util.files import translate_os_error, write_durable
from layerkit.core.erofs_reader import ErofsImage, check_image
from layerkit.errors import CorruptError
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.paths import HostPaths, LayerPaths
from layerkit.ids import sha256_digest
from layerkit.layer.chunk_index import BLOCK_SIZE, ChunkIndex
from layerkit.layer.manifest import MANIFEST_MAX_BYTES, Manifest
from layerkit.store.locator import Locator
from layerkit.store.store import Store

log = logging.getLogger("layerkit.host")

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What hostd tells about an open layer beside its data: its config and where its parts lie in the flat view."""

    config: dict[str, object]
    meta_size: int
    mapped_size: int


def fetch_layer(store: Store, digest: str, paths: HostPaths, store_url: str) -> None:
    """Write every file of a layer but its data; the record last, so that a crash leaves nothing that counts.

    Raises:
        StoreError: the store does not have it, or not intact.
        NoSpaceError, DeniedError: this host cannot keep it.
    """
    files = paths.layer(digest)
    raw = store.get_manifest(digest)
    manifest = Manifest.parse(raw)
    config = store.get_part(digest, "config", manifest.config.digest, manifest.config.size)
    meta = store.get_part(digest, "meta", manifest.meta.digest, manifest.meta.size)
    index = store.get_part(digest, "chunk_index", manifest.chunk_index.digest, manifest.chunk_index.size)
    locator = store.get_locator(digest)
    mapped_size = _check(digest, meta, ChunkIndex.from_bytes(index), locator)
    record = {"version": RECORD_VERSION, "digest": digest, "store": store_url, "mapped_size": mapped_size}
    try:
        write_durable(files.manifest, raw)
        write_durable(files.config, config)
        write_durable(files.meta, meta)
        write_durable(files.chunk_index, index)
        write_durable(files.locator, locator.to_bytes())
        write_durable(files.record, canonical_json(record))
    except OSError as error:
        raise translate_os_error(error, str(files.folder)) from error


def _check(digest: str, meta: bytes, index: ChunkIndex, locator: Locator) -> int:
    """Where the data begins in the flat view; CorruptError when the parts do not fit each other."""
    check_image(meta)
    superblock = ErofsImage(meta).superblock
    if superblock.data_blocks != index.data_blocks:
        raise CorruptError(
            f"metadata speaks of {superblock.data_blocks} data blocks, chunk index of {index.data_blocks}", where=digest
        )
    if len(locator.chunk_frame) != index.stored_count:
        raise CorruptError(f"locator of {len(locator.chunk_frame)} chunks for {index.stored_count}", where=digest)
    if not superblock.data_blocks:
        return len(meta)
    if superblock.mapped_blkaddr * BLOCK_SIZE < len(meta):
        raise CorruptError("the data begins within the metadata", where=digest)
    return superblock.mapped_blkaddr * BLOCK_SIZE


def is_known(files: LayerPaths) -> bool:
    """Whether every file of the layer was once written, and its image is still there."""
    return files.record.exists() and files.meta.exists()


def open_layer(paths: HostPaths, digest: str, store_url: str = "") -> tuple[HostLayer, LayerFacts]:
    """Open a layer from this host's files, which are verified again: a flipped bit must not reach the kernel.

    Args:
        store_url: where absent chunks come from; '' for the store that it was fetched from.

    Raises:
        CorruptError: a file is missing or damaged; fetching the layer anew mends it.
    """
    files = paths.layer(digest)
    try:
        record = read_json_object(files.record.read_bytes(), "layer record", max_bytes=64 << 10)
        raw, config, meta = files.manifest.read_bytes(), files.config.read_bytes(), files.meta.read_bytes()
        index, locator = files.chunk_index.read_bytes(), files.locator.read_bytes()
    except FileNotFoundError as error:
        raise CorruptError(f"{error.filename} is missing", where=digest) from error
    if record.get("version") != RECORD_VERSION or sha256_digest(raw) != digest or len(raw) > MANIFEST_MAX_BYTES:
        raise CorruptError("record or manifest on this host is damaged", where=digest)
    manifest = Manifest.parse(raw)
    for name, data, expected in (
        ("config", config, manifest.config.digest),
        ("meta", meta, manifest.meta.digest),
        ("index", index, manifest.chunk_index.digest),
    ):
        if sha256_digest(data) != expected:
            raise CorruptError(f"{name} on this host is damaged", where=digest)
    url = store_url or str(record["store"])
    layer = HostLayer(paths, digest, url, ChunkIndex.from_bytes(index), Locator.from_bytes(locator))
    return layer, LayerFacts(json.loads(config), len(meta), int(record["mapped_size"]))


def touch_layer(files: LayerPaths) -> None:
    """The layer was mounted just now: the order in which the cache evicts."""
    with suppress(FileNotFoundError):  # removed under a mount, which serves on
        os.utime(files.record)


def list_layers(paths: HostPaths) -> list[str]:
    """Digests of the layers that this host has, last mounted first."""
    found: list[tuple[int, str]] = []
    folders = sorted(paths.layers.iterdir()) if paths.layers.is_dir() else []
    for folder in folders:
        record = Path(folder, "layer.json")
        if record.exists():
            found.append((record.stat().st_mtime_ns, "sha256:" + folder.name))
    return [digest for _, digest in sorted(found, reverse=True)]
