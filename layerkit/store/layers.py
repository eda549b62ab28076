"""Layers in a store: the parts, their order of publishing and their checks; imported by `store.py` and `verify.py`.

A layer is there when its manifest is, which is written last: a crash before leaves garbage, never half a layer.
Functions over an object store without state; safe in any thread, process and host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layerkit._util.canonical import read_json_object
from layerkit.core.zstd import compress, decompress
from layerkit.errors import CorruptError, InputError, MissingError, RefError
from layerkit.ids import check_digest, sha256_digest
from layerkit.store.keys import PART_FILES, locator_key, manifest_key, part_key
from layerkit.store.locator import MAX_LOCATOR_BYTES, Locator
from layerkit.store.objectstore import ObjectStore

MAX_MANIFEST_BYTES = 4 << 20
MAX_PART_BYTES = 1 << 30
# Before the manifest, in the order of design §3; the locator comes first of all.
_PUBLISHING_ORDER = ("meta", "chunk_index", "facts", "config")


class LayerParts(NamedTuple):
    """The identity of a layer, as plain bytes; `layer.manifest` makes the first from the others."""

    manifest: bytes
    config: bytes
    meta: bytes
    chunk_index: bytes
    facts: bytes


def put_layer(objects: ObjectStore, parts: LayerParts, locator: bytes, *, level: int) -> str:
    """Publish a layer whose packs are stored; returns its digest.

    Publishing one again replaces its locator, and mends parts that have been damaged.

    Raises:
        InputError: the manifest does not describe exactly these parts.
        CorruptError: the locator is none.
    """
    digest = sha256_digest(parts.manifest)
    _check_described(parts)
    Locator.from_bytes(locator)
    objects.put(locator_key(digest), locator)
    for part in _PUBLISHING_ORDER:
        plain: bytes = getattr(parts, part)
        _put_part(objects, part_key(digest, part), plain, _encode(part, plain, level))
    _put_part(objects, manifest_key(digest), parts.manifest, parts.manifest)
    return digest


def has_layer(objects: ObjectStore, digest: str) -> bool:
    """Whether the layer is in the store."""
    return objects.stat(manifest_key(digest)) is not None


def get_manifest(objects: ObjectStore, digest: str) -> bytes:
    """The manifest, verified; MissingError when the layer is not in the store."""
    key = manifest_key(digest)
    try:
        manifest = objects.get(key, max_bytes=MAX_MANIFEST_BYTES)
    except MissingError as error:
        raise MissingError("the layer is not in the store", where=digest) from error
    if sha256_digest(manifest) != digest:
        raise CorruptError("the manifest does not have the layer's digest", where=key)
    return manifest


def get_part(objects: ObjectStore, digest: str, part: str, expected_digest: str, max_bytes: int) -> bytes:
    """The plain bytes of config, meta, chunk_index or facts.

    Args:
        expected_digest: what the layer's manifest says of the part.
        max_bytes: what the caller is ready to hold.

    Raises:
        MissingError, CorruptError: with the object's key as the place.
    """
    key = part_key(digest, part)
    # What does not shrink is a little longer in its zstd frame.
    plain = decode_part(key, objects.get(key, max_bytes=max_bytes + (max_bytes >> 8) + (1 << 20)), max_bytes)
    if sha256_digest(plain) != check_digest(expected_digest):
        raise CorruptError("does not have the digest that the manifest says", where=key)
    return plain


def get_locator(objects: ObjectStore, digest: str) -> Locator:
    """The newest locator of a layer."""
    key = locator_key(digest)
    return Locator.from_bytes(objects.get(key, max_bytes=MAX_LOCATOR_BYTES), where=key)


def decode_part(key: str, stored: bytes, max_bytes: int) -> bytes:
    """The plain bytes of a part as it is stored under its key; CorruptError when there are more than `max_bytes`."""
    if not key.endswith(".zst"):
        if len(stored) > max_bytes:
            raise CorruptError(f"has {len(stored)} bytes, {max_bytes} are allowed", where=key)
        return stored
    return decompress(stored, max_bytes=max_bytes, what="the part", where=key)


def described_digests(manifest: bytes, where: str) -> dict[str, int]:
    """Digest and size of everything that a manifest describes, from the OCI fields alone: `config` and `layers`.

    Raises:
        CorruptError: no manifest.
    """
    value = read_json_object(manifest, f"the manifest of {where}", max_bytes=MAX_MANIFEST_BYTES)
    layers = value.get("layers")
    if not isinstance(layers, list):
        raise CorruptError("the manifest lists no parts", where=where)
    return dict(_descriptor(found, where) for found in [value.get("config"), *layers])


def _descriptor(value: Any, where: str) -> tuple[str, int]:
    digest, size = (value.get("digest"), value.get("size")) if isinstance(value, dict) else (None, None)
    if not isinstance(digest, str) or type(size) is not int or size < 0:
        raise CorruptError("the manifest holds a descriptor without digest and size", where=where)
    try:
        return check_digest(digest), size
    except RefError as error:
        raise CorruptError(f"the manifest holds a descriptor with digest {digest[:100]!r}", where=where) from error


def _check_described(parts: LayerParts) -> None:
    described = described_digests(parts.manifest, "a layer")
    given = {sha256_digest(getattr(parts, part)): len(getattr(parts, part)) for part in PART_FILES}
    if described != given:
        raise InputError("the manifest does not describe exactly the parts that were given with it")


def _encode(part: str, plain: bytes, level: int) -> bytes:
    return compress(plain, level) if PART_FILES[part].endswith(".zst") else plain


def _put_part(objects: ObjectStore, key: str, plain: bytes, stored: bytes) -> None:
    if objects.put_if_absent(key, stored):
        return
    try:
        # Compared plain: another version of zstd stores the same part in other bytes.
        sound = decode_part(key, objects.get(key, max_bytes=MAX_PART_BYTES), len(plain)) == plain
    except (CorruptError, MissingError):  # missing: somebody pruned it since
        sound = False
    if not sound:
        objects.put(key, stored)
