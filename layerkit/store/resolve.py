"""From a reference to a layer: local names first, then versions and tags; imported by `store.py`.

Functions over an object store and the local names, without state; safe in any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from layerkit._util.text import did_you_mean
from layerkit.errors import MissingError, MissingPlatformError
from layerkit.ids import DEV_TAG, Platform, Ref, is_version
from layerkit.store.keys import TAGS, name_folder
from layerkit.store.layers import has_layer
from layerkit.store.local_refs import LocalRefs
from layerkit.store.objectstore import ObjectStore
from layerkit.store.refs import list_names, list_platforms, read_ref
from layerkit.store.tags import list_tags, read_tag
from layerkit.store.versions import VersionRange, find_pep440, highest, sort_versions


@dataclass(frozen=True)
class ResolvedRef:
    """A layer that a reference means.

    Attributes:
        ref: with the version or local tag that was chosen, without a digest.
        origin: 'local', 'published', or 'digest' when the reference named the layer itself.
    """

    ref: Ref
    platform: Platform
    digest: str
    origin: str


def resolve(objects: ObjectStore, local: LocalRefs, ref: Ref, platform: Platform) -> ResolvedRef:
    """The layer that a reference means here and now.

    A digest decides alone. A version or tag is looked up among the local names, then in the store. Without either,
    the highest release that exists for the platform is meant, else the highest pre-release, else the local `dev`.

    Raises:
        MissingPlatformError: it exists for other platforms only.
        MissingError: nothing has this name; the hint suggests near ones.
    """
    if ref.digest:
        if not has_layer(objects, ref.digest):
            raise MissingError("the layer is not in this store", where=str(ref))
        return ResolvedRef(Ref(ref.kind, ref.name, ref.version), platform, ref.digest, "digest")
    if ref.version:
        found = _find_exact(objects, local, ref, platform)
    else:
        version = highest(_versions(objects, local, ref, platform)) or DEV_TAG
        found = _find_exact(objects, local, ref.with_version(version), platform)
    return found or _explain(objects, local, ref, platform)


def resolve_range(
    objects: ObjectStore, local: LocalRefs, ref: Ref, allowed: VersionRange, platform: Platform
) -> ResolvedRef:
    """The highest version of a name within a range; MissingError when there is none."""
    versions = _versions(objects, local, ref, platform)
    chosen = allowed.choose(versions)
    found = _find_exact(objects, local, ref.with_version(chosen), platform) if chosen else None
    if found is not None:
        return found
    if not versions:
        _explain(objects, local, ref, platform)
    raise MissingError(
        f"no version for {platform} is within {allowed}",
        where=ref.full_name, hint=f"there are {_some(sort_versions(versions))}",
    )  # fmt: skip


def _find_exact(objects: ObjectStore, local: LocalRefs, ref: Ref, platform: Platform) -> ResolvedRef | None:
    digest = local.find(ref, platform)
    # A local name may speak of a layer in another store, which the user has since turned away from.
    if digest is not None and has_layer(objects, digest):
        return ResolvedRef(ref, platform, digest, "local")
    if not is_version(ref.version):
        version = read_tag(objects, ref).version
        if not version:
            return None
        ref = ref.with_version(version)
    try:
        return ResolvedRef(ref, platform, read_ref(objects, ref, platform), "published")
    except MissingError:
        return None


def _versions(objects: ObjectStore, local: LocalRefs, ref: Ref, platform: Platform) -> set[str]:
    published = {found.version for found, there in list_platforms(objects, ref.kind, ref.name) if there == platform}
    here = [entry for entry in local.list(ref.kind, ref.name) if entry.platform == platform]
    return published | {
        entry.ref.version for entry in here if is_version(entry.ref.version) and has_layer(objects, entry.digest)
    }


def _explain(objects: ObjectStore, local: LocalRefs, ref: Ref, platform: Platform) -> NoReturn:
    """Raise the error that helps most."""
    there = [*list_platforms(objects, ref.kind, ref.name)]
    there += [(entry.ref, entry.platform) for entry in local.list(ref.kind, ref.name)]
    tags = dict(list_tags(objects, f"{TAGS}{name_folder(ref.kind, ref.name)}/"))
    if not there:
        raise MissingError("no layer has this name", where=str(ref), hint=_near_names(objects, local, ref))
    if local.find(ref, platform) is not None:
        raise MissingError(
            "is a local name for a layer that is not in this store",
            where=str(ref), hint="build it again, or choose its store with LAYERKIT_STORE",
        )  # fmt: skip
    meant = tags.get(ref, ref.version)
    platforms = sorted({str(where) for found, where in there if meant in ("", found.version)})
    if platforms and str(platform) not in platforms:
        raise MissingPlatformError(f"exists for {', '.join(platforms)}, not for {platform}", where=str(ref))
    known = {found.version for found, _ in there} | {tag.version for tag in tags}
    wanted = find_pep440(ref.version)
    same = [version for version in known if wanted is not None and find_pep440(version) == wanted]
    raise MissingError(
        "there is no such version or tag" if ref.version else "no version of it is here",
        where=str(ref),
        hint=_question(same) or did_you_mean(ref.version, known) or f"there are {_some(sort_versions(known))}",
    )


def _near_names(objects: ObjectStore, local: LocalRefs, ref: Ref) -> str:
    names = {*list_names(objects), *(entry.ref.full_name for entry in local.list())}
    same = [name for name in sorted(names) if name.partition("/")[2] == ref.name]
    return _question(same) or did_you_mean(ref.full_name, names) or "see `layerkit ls`"


def _question(names: list[str]) -> str:
    return f"did you mean {', '.join(names)}?" if names else ""


def _some(versions: Iterable[str], most: int = 8) -> str:
    shown = list(versions)
    return ", ".join(shown[-most:]) + (f" and {len(shown) - most} older ones" if len(shown) > most else "")
