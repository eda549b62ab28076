"""Local references: the mutable names that builds on this machine write, LAYERKIT_HOME/refs; imported by `store.py`.

The same keys as in a store, over the same durable directory; the last writer wins. Safe in any thread and process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from layerkit.errors import MissingError, RefError
from layerkit.ids import DEV_TAG, Platform, Ref
from layerkit.store.directory import STALE_AFTER_S, DirectoryStore
from layerkit.store.keys import REFS, name_folder, read_local_ref_key, ref_key
from layerkit.store.refs import MAX_REF_BYTES, RefEntry, digest_from_bytes, digest_to_bytes


class LocalRefs:
    """KIND/NAME:VERSION or :TAG to a layer's digest, by platform; where no version is given, `dev` is meant.

    Args:
        home: LAYERKIT_HOME; nothing is made before the first `set`.
    """

    def __init__(self, home: Path) -> None:
        self._objects = DirectoryStore(home)

    def set(self, ref: Ref, platform: Platform, digest: str) -> None:
        """Create or move a name."""
        self._objects.put(ref_key(_named(ref), platform), digest_to_bytes(digest))

    def find(self, ref: Ref, platform: Platform) -> str | None:
        """The digest under a name, None when there is none."""
        key = ref_key(_named(ref), platform)
        try:
            return digest_from_bytes(self._objects.get(key, max_bytes=MAX_REF_BYTES), key)
        except MissingError:
            return None

    def get(self, ref: Ref, platform: Platform) -> str:
        """The digest under a name; MissingError."""
        digest = self.find(ref, platform)
        if digest is None:
            raise MissingError(f"no local layer has this name for {platform}", where=str(_named(ref)))
        return digest

    def delete(self, ref: Ref, platform: Platform) -> bool:
        """Remove a name, not its layer; whether it was there."""
        key = ref_key(_named(ref), platform)
        found = self._objects.stat(key) is not None
        self._objects.delete(key)
        return found

    def list(self, kind: str = "", name: str = "") -> Iterator[RefEntry]:
        """Every local name, or those of one layer."""
        prefix = f"{REFS}{name_folder(kind, name)}/" if kind else REFS
        for found in self._objects.list(prefix):
            key = read_local_ref_key(found.key)
            if key is not None and (digest := self.find(key.ref, key.platform)) is not None:
                yield RefEntry(key.ref, key.platform, digest, "local")

    def sweep_stale(self, *, min_age_s: float = STALE_AFTER_S) -> int:
        """Remove temporary files that killed writers left; returns how many."""
        return self._objects.sweep_stale(below=REFS, min_age_s=min_age_s)


def _named(ref: Ref) -> Ref:
    if ref.digest:
        raise RefError("a local name cannot contain a digest", where=str(ref))
    return ref if ref.version else ref.with_version(DEV_TAG)
