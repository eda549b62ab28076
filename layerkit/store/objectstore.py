"""The protocol of object stores and the one check of keys; imported by everything in `store/`.

Implementations (`directory.py`, later S3 and registries) and wrappers (`wrappers.py`, `faults.py`) follow the same
protocol, and one contract suite (tests/store/contract) runs over all of them. All of them are safe in any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from layerkit.errors import InputError

Data = bytes | bytearray | memoryview

MAX_OBJECT_BYTES = 1 << 30
"""What `get` reads at most when the caller names no bound: nothing that layerkit stores is larger."""

MAX_KEY_BYTES = 900
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,254}")


def check_key(key: str) -> str:
    """Return `key` when it is an object's key: parts joined by single slashes.

    A part begins with a letter or digit, so that neither `..` nor the temporary names of a directory are keys, and
    holds letters, digits and `. _ + ~ -`, so that no implementation needs escapes. Keys are made from digests and
    names that strangers wrote: this is where a path that leads out of the store ends.

    Raises:
        InputError: anything else.
    """
    if len(key) > MAX_KEY_BYTES or not all(map(is_key_part, key.split("/"))):
        raise InputError(f"not an object's key: {key[:200]!r}")
    return key


def is_key_part(name: str) -> bool:
    """Whether `name` can stand between two slashes of a key."""
    return bool(_PART.fullmatch(name))


def check_prefix(prefix: str) -> str:
    """Return `prefix` when it is '' or may begin a key; its last part may be cut anywhere. Raises InputError."""
    *parts, tail = prefix.split("/")
    if len(prefix) > MAX_KEY_BYTES or not all(map(is_key_part, [*parts, tail] if tail else parts)):
        raise InputError(f"not the beginning of an object's key: {prefix[:200]!r}")
    return prefix


def check_range(offset: int, length: int) -> None:
    """Raise ValueError for a range that no object can have; a caller's mistake, never the store's."""
    if offset < 0 or length < 0:
        raise ValueError(f"range of {length} bytes at {offset}")


class ObjectStat(NamedTuple):
    """What a store knows about an object without reading it; `mtime_ns` is by the store's clock."""

    key: str
    size: int
    mtime_ns: int


class ObjectStore(Protocol):
    """Named byte strings. Every method raises InputError for a malformed key, and for the store's answers:

    MissingError (the object is not there), CorruptError (bytes that cannot be what was asked for), UnavailableError
    (no complete answer; trying again is right), DeniedError (credentials or permissions), NoSpaceError.
    """

    def get(self, key: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object; CorruptError when it is larger than `max_bytes`."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; CorruptError when the object ends before."""
        ...

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Create the object whole and durably; False, and nothing changed, when the key exists already."""
        ...

    def put(self, key: str, data: Data) -> None:
        """Create or replace the object whole and durably; readers see the old bytes or the new ones."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with `prefix`, in the byte order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when it is not there."""
        ...

    def stat(self, key: str) -> ObjectStat | None:
        """Size and time of the object, None when it is not there."""
        ...
