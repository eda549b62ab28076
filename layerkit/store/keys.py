"""The keys of a store, all made and read here (docs/formats/store.md); imported by everything in `store/`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from layerkit.errors import RefError
from layerkit.ids import (
    Platform,
    Ref,
    check_kind,
    check_name,
    check_version_or_tag,
    digest_hex,
    is_version,
)

PARAMS_KEY = "layerkit-store.json"
PACKS = "packs/"
LAYERS = "layers/"
LOCATORS = "locators/"
REFS = "refs/"
TAGS = "tags/"
LEASES = "leases/"
# Probes of the store's clock. Not below LEASES: what a crash leaves must never be taken for an unreadable lease.
CLOCK = "clock/"

MANIFEST_FILE = "manifest.json"
PART_FILES = {"config": "config.json", "meta": "meta.zst", "chunk_index": "index.zst", "facts": "facts.zst"}

_PACK_KEY = re.compile(r"packs/([0-9a-f]{2})/(\1[0-9a-f]{62})\.pack")
_MANIFEST_KEY = re.compile(r"layers/([0-9a-f]{2})/(\1[0-9a-f]{62})/manifest\.json")
# In keys the slashes of a layer's name are spelled ~, which no name holds: otherwise base/a/b and the tag b of
# base/a would be a folder and a file of one name.
_SLASH = "~"
_GENERATION_DIGITS = 12


class RefKey(NamedTuple):
    """What the key of a published reference says."""

    ref: Ref
    platform: Platform


class TagKey(NamedTuple):
    """What the key of one generation of a tag says; `ref.version` is the tag."""

    ref: Ref
    generation: int


def pack_key(pack: bytes) -> str:
    """The key of a pack by its 32-byte digest."""
    name = pack.hex()
    return f"{PACKS}{name[:2]}/{name}.pack"


def pack_in_key(key: str) -> bytes | None:
    """The digest of the pack that a key names."""
    match = _PACK_KEY.fullmatch(key)
    return bytes.fromhex(match[2]) if match else None


def layer_prefix(digest: str) -> str:
    """What all keys of a layer's parts begin with."""
    name = digest_hex(digest)
    return f"{LAYERS}{name[:2]}/{name}/"


def manifest_key(digest: str) -> str:
    """The key of a layer's manifest; the layer is there when this object is."""
    return layer_prefix(digest) + MANIFEST_FILE


def part_key(digest: str, part: str) -> str:
    """The key of config, meta, chunk_index or facts; KeyError for another part."""
    return layer_prefix(digest) + PART_FILES[part]


def layer_in_manifest_key(key: str) -> str | None:
    """The digest of the layer whose manifest the key names."""
    match = _MANIFEST_KEY.fullmatch(key)
    return f"sha256:{match[2]}" if match else None


def locator_key(digest: str) -> str:
    """The key of a layer's locator."""
    name = digest_hex(digest)
    return f"{LOCATORS}{name[:2]}/{name}"


def digest_in_key(key: str) -> str:
    """The sha256 in hexadecimal digits that the object's bytes must have; '' where its key says nothing of them."""
    match = _PACK_KEY.fullmatch(key) or _MANIFEST_KEY.fullmatch(key)
    return match[2] if match else ""


def name_folder(kind: str, name: str) -> str:
    """`KIND/NAME` as it stands in keys, checked; raises RefError."""
    return f"{check_kind(kind)}/{check_name(name).replace('/', _SLASH)}"


def name_in_folder(kind: str, folder: str) -> Ref:
    """The reference without a version whose `name_folder` this is; raises RefError."""
    return Ref(check_kind(kind), check_name(folder.replace(_SLASH, "/")))


def ref_key(ref: Ref, platform: Platform) -> str:
    """The key of a published version."""
    return f"{REFS}{name_folder(ref.kind, ref.name)}/{check_version_or_tag(ref.version)}/{platform.folder}"


def read_ref_key(key: str) -> RefKey | None:
    """What the key of a published version says; None for a key that no version has."""
    found = read_local_ref_key(key)
    return found if found is not None and is_version(found.ref.version) else None


def read_local_ref_key(key: str) -> RefKey | None:
    """What the key of a local name says, whose version may be a tag; None for a key that no name has."""
    parts = key.removeprefix(REFS).split("/")
    if len(parts) != 4:
        return None
    try:
        ref = name_in_folder(parts[0], parts[1]).with_version(parts[2])
        return RefKey(ref, Platform.parse(parts[3].replace("-", "/")))
    except RefError:
        return None


def tag_prefix(ref: Ref) -> str:
    """What the keys of a tag's generations begin with."""
    if is_version(ref.version):
        raise RefError(f"{ref.version!r} is a version, a tag is needed here", hint="a tag begins with a letter")
    return f"{TAGS}{name_folder(ref.kind, ref.name)}/{check_version_or_tag(ref.version)}/"


def tag_key(ref: Ref, generation: int) -> str:
    """The key of one generation of a tag; keys sort as generations do."""
    return f"{tag_prefix(ref)}{generation:0{_GENERATION_DIGITS}d}"


def read_tag_key(key: str) -> TagKey | None:
    """What the key of a tag's generation says; None for a key that no tag has."""
    parts = key.removeprefix(TAGS).split("/")
    if len(parts) != 4 or not (len(parts[3]) == _GENERATION_DIGITS and parts[3].isdecimal()):
        return None
    try:
        return TagKey(name_in_folder(parts[0], parts[1]).with_version(parts[2]), int(parts[3]))
    except RefError:
        return None


