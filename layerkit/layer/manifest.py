"""The manifest of a layer: an OCI image manifest over its four parts (docs/formats/manifest.md); imported by rank 2 up.

Its sha256 is the layer's digest. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import CorruptError, LimitError, RefError
from layerkit.ids import check_digest, sha256_digest
from layerkit.layer.json_fields import Fields

MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.layerkit.layer.v1+json"
CONFIG_TYPE = "application/vnd.layerkit.config.v1+json"
META_TYPE = "application/vnd.erofs"
"""The word of the draft erofs-image-spec for any EROFS image; what it is for says ROLE."""

CHUNK_INDEX_TYPE = "application/vnd.layerkit.chunk-index.v1"
FACTS_TYPE = "application/vnd.layerkit.facts.v1+json"

ROLE = "org.erofs.role"
_META_ROLE = "overlay-lower"
_META_ANNOTATIONS = {ROLE: _META_ROLE}

MANIFEST_MAX_BYTES = 4 << 20
PART_MAX_BYTES = 1 << 30
_ANNOTATIONS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One part: media type, digest and size of its plain bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Descriptor:
        """Describe bytes; raises LimitError for more than a part may have."""
        if len(data) > PART_MAX_BYTES:
            raise LimitError(f"a part of {len(data)} bytes ({media_type}), {PART_MAX_BYTES} are the limit")
        return cls(media_type, sha256_digest(data), len(data))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest."""

    config: Descriptor
    meta: Descriptor
    chunk_index: Descriptor
    facts: Descriptor
    annotations: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """Canonical JSON; its sha256 is the layer's digest."""
        value: dict[str, Any] = {
            "schemaVersion": 2, "mediaType": MEDIA_TYPE, "artifactType": ARTIFACT_TYPE, "config": _to_json(self.config),
            "layers": [{**_to_json(self.meta), "annotations": _META_ANNOTATIONS}, _to_json(self.chunk_index),
                       _to_json(self.facts)],
        }  # fmt: skip
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return canonical_json(value)

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Read a manifest from untrusted bytes.

        Raises:
            CorruptError: no manifest of a layer: other types, digests that are none, sizes out of bounds.
        """
        fields = Fields(read_json_object(data, "manifest", max_bytes=MANIFEST_MAX_BYTES), "manifest")
        if fields.integer("schemaVersion") != 2 or fields.text("mediaType") != MEDIA_TYPE:
            raise CorruptError("not an OCI image manifest")
        artifact = fields.text("artifactType")
        if artifact != ARTIFACT_TYPE:
            raise CorruptError(f"not the manifest of a layer but of {artifact[:100]!r}", hint="update layerkit")
        config = fields.object("config")
        layers = fields.objects("layers")
        if config is None or len(layers) != 3:
            raise CorruptError("manifest without the four parts of a layer")
        annotations = fields.text_map("annotations")
        if len(annotations) > _ANNOTATIONS_MAX:
            raise CorruptError(f"manifest with {len(annotations)} annotations")
        fields.finish()
        meta, chunk_index, facts = layers
        if meta.text_map("annotations") != _META_ANNOTATIONS:
            raise CorruptError("manifest whose metadata image has another role")
        return cls(
            _descriptor(config, CONFIG_TYPE), _descriptor(meta, META_TYPE), _descriptor(chunk_index, CHUNK_INDEX_TYPE),
            _descriptor(facts, FACTS_TYPE), annotations,
        )  # fmt: skip


def build_manifest(
    config: bytes, meta: bytes, chunk_index: bytes, facts: bytes, *, annotations: Mapping[str, str] | None = None
) -> bytes:
    """The manifest over the plain bytes of the four parts."""
    return Manifest(
        Descriptor.of(CONFIG_TYPE, config),
        Descriptor.of(META_TYPE, meta),
        Descriptor.of(CHUNK_INDEX_TYPE, chunk_index),
        Descriptor.of(FACTS_TYPE, facts),
        dict(annotations or {}),
    ).to_bytes()


def _to_json(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _descriptor(fields: Fields, media_type: str) -> Descriptor:
    found = fields.text("mediaType")
    if found != media_type:
        raise CorruptError(f"manifest with a part of type {found[:100]!r} where {media_type} belongs")
    try:
        digest = check_digest(fields.text("digest"))
    except RefError as error:
        raise CorruptError(f"manifest: {error.message}") from error
    size = fields.integer("size", high=PART_MAX_BYTES)
    fields.finish()
    return Descriptor(media_type, digest, size)
