"""Keeps the layers of cached steps within a budget. Imported by the command line.

Builds, imports and publishing hold the instance's lock shared (`step_cache_in_use`) from before they look for a layer
until it has its name; pruning holds it alone. Other machines that use the same store protect what they need by names
and leases. A layer that any of these needs stays; so do packs, which garbage collection looks after.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from layerkit import settings
from layerkit._util.files import locked, translate_os_error
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.stored import StoredLayers
from layerkit.errors import LayerkitError, MissingError, UnavailableError
from layerkit.store.keys import layer_prefix, locator_key, manifest_key
from layerkit.store.leases import DEFAULT_TTL_S, list_live_leases, store_time_ns
from layerkit.store.objectstore import ObjectStore
from layerkit.store.store import Store

FILES_BUDGET_BYTES = 256 << 20
"""Records of known files beyond this are forgotten, the least recently used first: about a million files."""

_LOCK = "step-cache.lock"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrunedSteps:
    """What went, or would go.

    Attributes:
        steps: how many records.
        layers: digests of the layers that went with them.
        freed_bytes: of those layers' objects.
        kept_layers: layers of such steps that something else needs.
    """

    steps: int
    layers: tuple[str, ...]
    freed_bytes: int
    kept_layers: int


@contextmanager
def step_cache_in_use() -> Iterator[None]:
    """While this is open no other process prunes; raises a LayerkitError where the home cannot be written."""
    with _locked(shared=True):
        yield


@contextmanager
def _locked(*, shared: bool) -> Iterator[None]:
    path = settings.home_dir() / _LOCK
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, shared=shared, blocking=shared))
        except BlockingIOError as error:
            raise UnavailableError(
                "a build, an import or a publication is under way", hint="prune again when it has ended"
            ) from error
        except OSError as error:
            failure = translate_os_error(error, str(path))
            failure.hint = "LAYERKIT_HOME names another folder for state and caches"
            raise failure from error
        yield


def prune_steps(store: Store, knowledge: BuildKnowledge, budget_bytes: int, *, dry_run: bool = False) -> PrunedSteps:
    """Forget the steps that were not used for longest, and delete their layers where nothing needs these.

    Args:
        budget_bytes: what the remaining steps may have added to stores.
        dry_run: only say what would go.

    Raises:
        UnavailableError: a build, import or publication is under way.
        CorruptError: a layer that is needed cannot be read, so that what it stands on is not known.
    """
    with _locked(shared=False):
        return _prune(store, knowledge, budget_bytes, dry_run=dry_run)


def keep_within_budget(store: Store, knowledge: BuildKnowledge, budget_bytes: int) -> None:
    """Prune at the end of a build that added something; when another one is under way, that one's end will.

    Whatever stands in the way is no failure of the build: it is logged.
    """
    try:
        if knowledge.step_bytes() > budget_bytes:
            prune_steps(store, knowledge, budget_bytes)
        knowledge.files.prune(FILES_BUDGET_BYTES)
    except UnavailableError:
        return
    except LayerkitError as error:
        log.warning("the step cache is not within its budget: %s", error)


def _prune(store: Store, knowledge: BuildKnowledge, budget_bytes: int, *, dry_run: bool) -> PrunedSteps:
    doomed = knowledge.oldest_steps(budget_bytes)
    layers = {digest for digest in doomed.values() if digest and store.has_layer(digest)}
    gone: list[str] = []
    if layers:  # both ask the store for its time, by writing
        needed = _needed(store, knowledge.step_layers(without=doomed.keys()))
        gone = sorted(layers - needed - _young(store, layers))
    freed = sum(_size(store.objects, digest) for digest in gone)
    if not dry_run:
        for digest in gone:
            _delete_layer(store.objects, digest)
        # After the layers: a crash in between leaves records that `find_step` sees through, and the next run ends it.
        knowledge.forget_steps(doomed.keys())
        knowledge.files.prune(FILES_BUDGET_BYTES)
    return PrunedSteps(len(doomed), tuple(gone), freed, len(layers) - len(gone))


def _needed(store: Store, steps: Iterable[str]) -> set[str]:
    """Every layer that a name, a lease or another step means, with all that these stand on."""
    leases = list_live_leases(store.objects, store_time_ns(store.objects))
    roots = {entry.digest for entry in store.list_refs()} | {digest for lease in leases for digest in lease.layers}
    library = StoredLayers(store)
    needed: set[str] = set()
    for digest in roots | set(steps):
        try:
            needed.update(library.stack_of(digest))
        except MissingError:
            needed.add(digest)  # a name for a layer of another store, or a chain that has lost its end
    return needed


def _young(store: Store, layers: Iterable[str]) -> set[str]:
    """Layers that another machine may just be about to name: written within a lease's term, while leases live."""
    now_ns = store_time_ns(store.objects)
    if not any(True for _ in list_live_leases(store.objects, now_ns)):
        return set()
    since = now_ns - DEFAULT_TTL_S * 1_000_000_000
    found = {digest: store.objects.stat(manifest_key(digest)) for digest in layers}
    return {digest for digest, stat in found.items() if stat is not None and stat.mtime_ns > since}


def _size(objects: ObjectStore, digest: str) -> int:
    locator = objects.stat(locator_key(digest))
    return sum(found.size for found in objects.list(layer_prefix(digest))) + (locator.size if locator else 0)


def _delete_layer(objects: ObjectStore, digest: str) -> None:
    """The manifest first: without it the layer is not there, whatever else a crash leaves."""
    objects.delete(manifest_key(digest))
    for found in list(objects.list(layer_prefix(digest))):
        objects.delete(found.key)
    objects.delete(locator_key(digest))
