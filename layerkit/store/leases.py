"""Leases: what a running build, push or host still needs; garbage collection treats it as a root.

Imported by `store.py`. A lease is one object, renewed by writing it again; it lives `ttl_s` from its last writing, by
the store's clock, which on a share or in a cloud is not this host's. Functions without state, any thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import CorruptError, MissingError, RefError
from layerkit.ids import check_digest
from layerkit.store.keys import CLOCK, LEASES
from layerkit.store.objectstore import ObjectStore

DEFAULT_TTL_S = 3600
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Lease:
    """A claim on layers, and on everything that is stored while it lives.

    Attributes:
        owner: who holds it, for people.
        layers: digests of layers that must stay.
    """

    owner: str
    ttl_s: int = DEFAULT_TTL_S
    layers: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def key(self) -> str:
        """Its object."""
        return LEASES + self.id

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json({"owner": self.owner, "ttl_s": self.ttl_s, "layers": list(self.layers)})


def create_lease(
    objects: ObjectStore, owner: str, *, layers: Iterable[str] = (), ttl_s: int = DEFAULT_TTL_S
) -> Lease:
    """A new lease, durable before anything that relies on it is written."""
    lease = Lease(owner, ttl_s, tuple(check_digest(digest) for digest in layers))
    objects.put(lease.key, lease.to_bytes())
    return lease


def renew_lease(objects: ObjectStore, lease: Lease) -> None:
    """Let it live for another `ttl_s` from now; one that ran out is made anew."""
    objects.put(lease.key, lease.to_bytes())


def release_lease(objects: ObjectStore, lease: Lease) -> None:
    """Give it up."""
    objects.delete(lease.key)


def store_time_ns(objects: ObjectStore) -> int:
    """Now, by the store's clock: the time that it gives to an object written now."""
    probe = f"{CLOCK}{uuid.uuid4()}"
    objects.put(probe, b"")
    try:
        found = objects.stat(probe)
    finally:
        objects.delete(probe)
    if found is None:
        raise MissingError("an object just written is not there", where=probe)
    return found.mtime_ns


def list_live_leases(objects: ObjectStore, now_ns: int) -> Iterator[Lease]:
    """The leases that have not run out at `now_ns` by the store's clock.

    Raises:
        CorruptError: a lease that cannot be read, for what it protects is not known.
    """
    for found in objects.list(LEASES):
        try:
            lease = read_lease(objects, found.key)
        except MissingError:
            continue
        if found.mtime_ns + lease.ttl_s * 1_000_000_000 > now_ns:
            yield lease


def read_lease(objects: ObjectStore, key: str) -> Lease:
    """A lease by its key, live or not; MissingError, CorruptError."""
    value = read_json_object(objects.get(key, max_bytes=_MAX_BYTES), key, max_bytes=_MAX_BYTES)
    owner, ttl_s, layers = value.get("owner"), value.get("ttl_s"), value.get("layers")
    if not isinstance(owner, str) or type(ttl_s) is not int or not isinstance(layers, list):
        raise CorruptError("is no lease", where=key)
    try:
        return Lease(owner, ttl_s, tuple(check_digest(str(digest)) for digest in layers), key.removeprefix(LEASES))
    except RefError as error:
        raise CorruptError("the lease names no layers", where=key) from error
