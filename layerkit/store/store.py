"""A store: the one place where layers, packs and names are read and published; imported from rank 3 up.

`open_store` takes a URL. A `Store` has no state but its parameters, and is safe in any thread; any number of
processes and hosts may use one store at once, nothing takes a global lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from layerkit import settings
from layerkit.errors import InputError, MissingError, RefError, UnsupportedError
from layerkit.ids import Platform, Ref, is_range, is_version
from layerkit.store import layers, leases, refs, resolve, tags
from layerkit.store.directory import STALE_AFTER_S, DirectoryStore
from layerkit.store.keys import PARAMS_KEY
from layerkit.store.layers import LayerParts
from layerkit.store.leases import Lease
from layerkit.store.local_refs import LocalRefs
from layerkit.store.locator import Locator
from layerkit.store.objectstore import ObjectStore
from layerkit.store.params import StoreParams, ensure_params, read_params
from layerkit.store.refs import RefEntry
from layerkit.store.resolve import ResolvedRef
from layerkit.store.tags import TagState
from layerkit.store.versions import VersionRange, split_requirement
from layerkit.store.wrappers import Retrying, RetryPolicy, Verifying

# A share that hangs answers by itself after its own time; this bridges a server's change-over.
_DIRECTORY_RETRY = RetryPolicy(first_s=0.05, most_s=1.0, deadline_s=5.0)


class Store:
    """Layers by digest and by name.

    Attributes:
        url: as it was opened, for people.
        objects: the object store beneath, with retry and verification.
        params: sizes and compression level, fixed at creation.
        local_refs: this machine's mutable names.
    """

    def __init__(self, url: str, objects: ObjectStore, params: StoreParams, local_refs: LocalRefs) -> None:
        self.url = url
        self.objects = objects
        self.params = params
        self.local_refs = local_refs

    @property
    def id(self) -> str:
        """32 hexadecimal digits drawn at creation; local knowledge is filed under it."""
        return self.params.id

    def put_layer(self, parts: LayerParts, locator: bytes) -> str:
        """Publish a layer whose packs are stored; returns its digest. See `layers.put_layer`."""
        return layers.put_layer(self.objects, parts, locator, level=self.params.zstd_level)

    def has_layer(self, digest: str) -> bool:
        """Whether the layer is in the store."""
        return layers.has_layer(self.objects, digest)

    def get_manifest(self, digest: str) -> bytes:
        """The verified manifest of a layer."""
        return layers.get_manifest(self.objects, digest)

    def get_part(self, digest: str, part: str, expected_digest: str, max_bytes: int) -> bytes:
        """The verified plain bytes of config, meta, chunk_index or facts."""
        return layers.get_part(self.objects, digest, part, expected_digest, max_bytes)

    def get_locator(self, digest: str) -> Locator:
        """The newest locator of a layer."""
        return layers.get_locator(self.objects, digest)

    def resolve(self, ref: Ref, platform: Platform) -> ResolvedRef:
        """The layer that a reference means here and now. See `resolve.resolve`."""
        return resolve.resolve(self.objects, self.local_refs, ref, platform)

    def resolve_range(self, ref: Ref, allowed: VersionRange, platform: Platform) -> ResolvedRef:
        """The highest version of a name within a range."""
        return resolve.resolve_range(self.objects, self.local_refs, ref, allowed, platform)

    def resolve_text(self, text: str, platform: Platform) -> ResolvedRef:
        """The layer that a reference or a range (`base/debian>=12,<14`) means.

        Raises:
            RefError: neither of them.
            MissingError: there is none.
        """
        if not is_range(text):
            return self.resolve(Ref.parse(text), platform)
        name, allowed = split_requirement(text)
        ref = Ref.parse(name)
        if ref.version or ref.digest:
            raise RefError(f"{text!r} has a version and a range", hint="write KIND/NAME and the range, in quotes")
        return self.resolve_range(ref, allowed, platform)

    def publish_ref(self, ref: Ref, platform: Platform, digest: str) -> bool:
        """Publish a layer under a version, for good; False when it has that name already. See `refs.create_ref`."""
        return refs.create_ref(self.objects, ref, platform, digest)

    def list_refs(self) -> list[RefEntry]:
        """Every name: local ones, published versions, and tags on each platform of the version that they name."""
        published = list(refs.list_refs(self.objects))
        entries = [*self.local_refs.list(), *published]
        for tag, version in tags.list_tags(self.objects):
            meant = tag.with_version(version)
            entries += [
                RefEntry(tag, entry.platform, entry.digest, "tag") for entry in published if entry.ref == meant
            ]  # fmt: skip
        return entries

    def delete_ref(self, ref: Ref, platform: Platform) -> bool:
        """Remove one published version for one platform, not its layer; whether it was there."""
        return refs.delete_ref(self.objects, ref, platform)

    def remove_ref(self, ref: Ref, platform: Platform | None = None, *, origin: str = "") -> list[RefEntry]:
        """Remove a name wherever it stands, and the tags that would name nothing then; layers stay.

        Args:
            platform: only this one; all when None.
            origin: only 'local', 'published' or 'tag' names; all when ''.

        Returns:
            What was removed.

        Raises:
            MissingError: nothing has this name.
        """
        everything = self.list_refs()
        gone = [
            entry for entry in everything
            if entry.ref == ref and origin in ("", entry.origin)
            and (platform in (None, entry.platform) or entry.origin == "tag")
        ]  # fmt: skip
        if not gone:
            raise MissingError("nothing has this name", where=str(ref), hint="see `layerkit ls`")
        for entry in gone:
            if entry.origin == "local":
                self.local_refs.delete(entry.ref, entry.platform)
            elif entry.origin == "published":
                self.delete_ref(entry.ref, entry.platform)
        if any(entry.origin == "published" for entry in gone):
            self._drop_tags_of(ref)
        if any(entry.origin == "tag" for entry in gone):
            self.set_tag(ref, "")
        return gone

    def _drop_tags_of(self, ref: Ref) -> None:
        if any(refs.list_platforms(self.objects, ref.kind, ref.name, ref.version)):
            return
        for tag, version in list(tags.list_tags(self.objects)):
            if tag.with_version(version) == ref:
                self.set_tag(tag, "", expected=tags.read_tag(self.objects, tag))

    def read_tag(self, ref: Ref) -> TagState:
        """A tag with its generation, for a later `set_tag(expected=…)`."""
        return tags.read_tag(self.objects, ref)

    def get_tag(self, ref: Ref) -> str:
        """The version that a tag names; MissingError."""
        return tags.get_tag(self.objects, ref)

    def set_tag(self, ref: Ref, version: str, *, expected: TagState | None = None) -> TagState:
        """Move a tag, '' to remove it; ConflictError when it is no longer as expected.

        Raises:
            MissingError: the version is not published.
        """
        if version and is_version(version) and not any(
            refs.list_platforms(self.objects, ref.kind, ref.name, version)
        ):  # fmt: skip
            raise MissingError(f"version {version} is not published", where=ref.full_name)
        return tags.set_tag(self.objects, ref, version, expected=expected)

    def create_lease(self, owner: str, *, holds: Iterable[str] = (), ttl_s: int = leases.DEFAULT_TTL_S) -> Lease:
        """Claim the layers `holds` (digests), and what is stored from now on."""
        return leases.create_lease(self.objects, owner, layers=holds, ttl_s=ttl_s)

    def renew_lease(self, lease: Lease) -> None:
        """Let a lease live for another of its terms."""
        leases.renew_lease(self.objects, lease)

    def release_lease(self, lease: Lease) -> None:
        """Give a lease up."""
        leases.release_lease(self.objects, lease)

    def sweep_stale(self, *, min_age_s: float = STALE_AFTER_S) -> int:
        """Remove temporary files that killed writers left in a directory store and among the local names."""
        directory = DirectoryStore(directory_of(self.url))
        return directory.sweep_stale(min_age_s=min_age_s) + self.local_refs.sweep_stale(min_age_s=min_age_s)


def open_store(
    url: str = "", *, create: bool = False, params: StoreParams | None = None, home: Path | None = None
) -> Store:
    """Open a store.

    Args:
        url: `/path` or `file:///path`; '' for the one that the settings name.
        create: make it when there is none; several processes may do so at once.
        params: for a new store; an existing one keeps its own.
        home: where local names are; LAYERKIT_HOME when None.

    Raises:
        MissingError: there is none, and `create` is False.
        UnsupportedError: its format is newer than this layerkit, or no such kind of store is known.
        DeniedError, NoSpaceError, UnavailableError: as the file system answers.
    """
    url = url or settings.store_url()
    root = directory_of(url)
    # Without the marker: a store that is not there yet is missing, not unavailable.
    plain = _wrapped(DirectoryStore(root))
    found = ensure_params(plain, url, params or StoreParams()) if create else read_params(plain, url)
    objects = _wrapped(DirectoryStore(root, marker=PARAMS_KEY))
    return Store(url, objects, found, LocalRefs(home or settings.home_dir()))


def directory_of(url: str) -> Path:
    """The folder of a directory store.

    Raises:
        UnsupportedError: another kind of store.
        InputError: a file URL that names another host, or no path.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InputError(f"not a URL: {error}", where=url) from error
    if not parts.scheme:
        return Path(url).absolute()
    if parts.scheme != "file":
        raise UnsupportedError(
            f"stores of the kind {parts.scheme}:// are not supported",
            where=url, hint="a store is a directory: /path or file:///path",
        )  # fmt: skip
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InputError("not the URL of a directory", where=url, hint="write file:///path with three slashes")
    path = unquote(parts.path)
    if "\0" in path:
        raise InputError("a path with a NUL byte", where=url)
    return Path(path)


def _wrapped(objects: ObjectStore) -> ObjectStore:
    return Retrying(Verifying(objects), _DIRECTORY_RETRY)
