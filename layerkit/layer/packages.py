"""Packages that an image says it holds: dpkg and Python; imported by `layer.facts`. Pure readers; any thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PACKAGES_MAX_BYTES = 64 << 20
"""Longest package database that is read; a longer one is left out of the facts."""

METADATA_MAX_BYTES = 256 << 10
"""How much of a Python METADATA file is read; the headers stand at its beginning."""

_FIELD_MAX = 512


class Package(NamedTuple):
    """One installed package; `arch` is '' where the packager knows none."""

    name: str
    version: str
    arch: str = ""


def is_dpkg_database(path: bytes) -> bool:
    """Whether the file is dpkg's status, whole or one package a file (as distroless images have it)."""
    if path == b"var/lib/dpkg/status":
        return True
    return path.startswith(b"var/lib/dpkg/status.d/") and not path.endswith(b".md5sums")


def is_python_metadata(path: bytes) -> bool:
    """Whether the file is the METADATA of an installed Python distribution."""
    return path.endswith(b".dist-info/METADATA")


def read_dpkg(data: bytes) -> tuple[Package, ...]:
    """The packages that are installed according to a dpkg status file, sorted; odd stanzas are skipped."""
    found = set()
    for fields in _stanzas(data):
        status = fields.get(b"status", b"install ok installed")
        name, version = _text(fields.get(b"package", b"")), _text(fields.get(b"version", b""))
        if name and version and status.split()[-1:] == [b"installed"]:
            found.add(Package(name, version, _text(fields.get(b"architecture", b""))))
    return tuple(sorted(found))


def read_python_metadata(data: bytes) -> tuple[Package, ...]:
    """The distribution that a METADATA file describes; nothing when it lacks name or version."""
    fields = next(_stanzas(data[:METADATA_MAX_BYTES]), {})
    name, version = _text(fields.get(b"name", b"")), _text(fields.get(b"version", b""))
    return (Package(name, version),) if name and version else ()


def _stanzas(data: bytes) -> Iterator[dict[bytes, bytes]]:
    """Blocks of `Field: value` lines, parted by empty lines; continuation lines are left out."""
    fields: dict[bytes, bytes] = {}
    for line in data.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif line[:1] not in b" \t":
            key, colon, value = line.partition(b":")
            if colon:
                fields.setdefault(key.strip().lower(), value.strip())
    if fields:
        yield fields


def _text(data: bytes) -> str:
    return data[:_FIELD_MAX].decode("utf-8", "replace")
