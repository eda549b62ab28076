"""Published versions: refs/KIND/NAME/VERSION/PLATFORM, created once and never moved; imported by `store.py`.

Functions over an object store without state; safe in any thread, process and host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layerkit.errors import ConflictError, CorruptError, MissingError, RefError
from layerkit.ids import Platform, Ref, check_digest, is_version
from layerkit.store.keys import REFS, manifest_key, name_folder, read_ref_key, ref_key
from layerkit.store.objectstore import ObjectStore

MAX_REF_BYTES = 1024


@dataclass(frozen=True)
class RefEntry:
    """One name of a layer.

    Attributes:
        ref: with its version or tag.
        digest: the layer's.
        origin: 'published', 'local' or 'tag'.
    """

    ref: Ref
    platform: Platform
    digest: str
    origin: str = "published"


def digest_to_bytes(digest: str) -> bytes:
    """What the object of a reference holds."""
    return check_digest(digest).encode() + b"\n"


def digest_from_bytes(data: bytes, where: str) -> str:
    """The digest that the object of a reference holds; CorruptError when it holds anything else."""
    try:
        return check_digest(data.decode("ascii").removesuffix("\n"))
    except (UnicodeDecodeError, RefError) as error:
        raise CorruptError("the reference holds no digest", where=where) from error


def read_ref(objects: ObjectStore, ref: Ref, platform: Platform) -> str:
    """The digest of a published version; MissingError."""
    key = ref_key(ref, platform)
    return digest_from_bytes(objects.get(key, max_bytes=MAX_REF_BYTES), key)


def create_ref(objects: ObjectStore, ref: Ref, platform: Platform, digest: str) -> bool:
    """Publish a layer that is in the store under a version; False when it has that name already.

    Raises:
        RefError: no version, or a tag.
        MissingError: the layer is not in the store.
        ConflictError: another layer has the name.
    """
    if not is_version(ref.version):
        raise RefError(
            f"{ref} cannot be published: a version is needed",
            hint="versions begin with a digit; tags are set on published versions",
        )
    if objects.stat(manifest_key(digest)) is None:
        raise MissingError(f"layer {digest} is not in the store", where=str(ref))
    if objects.put_if_absent(ref_key(ref, platform), digest_to_bytes(digest)):
        return True
    there = read_ref(objects, ref, platform)
    if there != digest:
        raise ConflictError(
            f"is published for {platform} with other content: {there}, not {digest}",
            where=str(ref), hint="published versions never move; choose another version",
        )  # fmt: skip
    return False


def delete_ref(objects: ObjectStore, ref: Ref, platform: Platform) -> bool:
    """Remove a published version, not its layer; whether it was there."""
    key = ref_key(ref, platform)
    found = objects.stat(key) is not None
    objects.delete(key)
    return found


def list_platforms(objects: ObjectStore, kind: str, name: str, version: str = "") -> Iterator[tuple[Ref, Platform]]:
    """The published versions of a name (or one of them) with their platforms."""
    prefix = f"{REFS}{name_folder(kind, name)}/{version}{'/' if version else ''}"
    for found in objects.list(prefix):
        if (key := read_ref_key(found.key)) is not None:
            yield key.ref, key.platform


def list_names(objects: ObjectStore) -> list[str]:
    """KIND/NAME of everything that is published."""
    keys = (read_ref_key(found.key) for found in objects.list(REFS))
    return sorted({key.ref.full_name for key in keys if key is not None})


def list_refs(objects: ObjectStore) -> Iterator[RefEntry]:
    """Every published version, ordered by its key; one that vanishes meanwhile is left out."""
    for found in objects.list(REFS):
        key = read_ref_key(found.key)
        if key is None:
            continue
        try:
            yield RefEntry(key.ref, key.platform, read_ref(objects, key.ref, key.platform))
        except MissingError:
            continue
