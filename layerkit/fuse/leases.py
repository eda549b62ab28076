"""Leases: who uses which layers; one small file each below `<run>/leases`, so that the next hostd knows them.

Imported by hostd; only its loop's thread calls. A lease belongs to a process (and ends with it) or to an overlay mount
(and ends with that).
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerkit._util.canonical import read_json_object
from layerkit._util.processes import Owner
from layerkit.errors import LayerkitError, MissingError
from layerkit.fuse.served import write_volatile
from layerkit.ids import check_digest

log = logging.getLogger("layerkit.host")


@dataclass(slots=True)
class Lease:
    """The use of some layers.

    Attributes:
        owner: the process that it ends with; None: it belongs to the mount at `mount`.
        layers: digests, in the order of the request.
        since: seconds since the epoch.
    """

    id: str
    owner: Owner | None
    layers: list[str]
    mount: str = ""
    since: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As kept and as shown in `status`."""
        return asdict(self)


class LeaseTable:
    """Every lease of this instance."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._leases: dict[str, Lease] = {}

    def load(self) -> None:
        """Read what an earlier hostd left."""
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else []:
            try:
                lease = _from_json(read_json_object(path.read_bytes(), "lease", max_bytes=1 << 20))
            except (LayerkitError, OSError, KeyError, TypeError, ValueError) as error:
                log.warning("%s is no lease: %s", path, error)
                path.unlink(missing_ok=True)
            else:
                self._leases[lease.id] = lease

    def add(self, owner: Owner | None, layers: list[str]) -> Lease:
        """A new lease."""
        lease = Lease(secrets.token_hex(8), owner, layers, since=time.time())
        self.save(lease)
        return lease

    def save(self, lease: Lease) -> None:
        """Keep a lease as it is now."""
        self._leases[lease.id] = lease
        write_volatile(self._folder / lease.id, lease.to_json())

    def get(self, lease_id: str) -> Lease:
        """A lease; MissingError when there is none."""
        if lease_id not in self._leases:
            raise MissingError(f"no lease {lease_id[:64]!r}", hint="its owner has ended, or it was released")
        return self._leases[lease_id]

    def remove(self, lease_id: str) -> Lease | None:
        """Take a lease out; None when there is none."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            (self._folder / lease.id).unlink(missing_ok=True)
        return lease

    def all(self) -> list[Lease]:
        """Every lease."""
        return list(self._leases.values())

    def dead(self) -> list[Lease]:
        """Leases whose owner runs no more."""
        return [lease for lease in self._leases.values() if lease.owner is not None and not lease.owner.is_alive]

    def uses(self, digest: str) -> bool:
        """Whether any lease names the layer."""
        return any(digest in lease.layers for lease in self._leases.values())


def _from_json(value: dict[str, Any]) -> Lease:
    owner = Owner(**value["owner"]) if value["owner"] is not None else None
    layers = [check_digest(str(digest)) for digest in value["layers"]]
    return Lease(str(value["id"]), owner, layers, str(value["mount"]), float(value["since"]))
