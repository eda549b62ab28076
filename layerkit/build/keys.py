"""Cache keys: digests over length-prefixed fields, so that no two different inputs spell the same bytes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

KEY_VERSION = b"layerkit-step-1"


def step_key(*fields: Any) -> bytes:
    """32 bytes that stand for these fields in this order.

    Args:
        fields: str, bytes, int, bool, None, mappings of str to str (they count by their sorted items), and sequences
            of all these.
    """
    digest = hashlib.sha256()
    for part in _encoded((KEY_VERSION, *fields)):
        digest.update(part)
    return digest.digest()


def _encoded(value: Any) -> Iterable[bytes]:
    if value is None:
        yield b"n"
    elif isinstance(value, bool | int):
        text = str(int(value)).encode()
        yield b"i%d:" % len(text) + text
    elif isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        yield (b"s" if isinstance(value, str) else b"b") + b"%d:" % len(data) + data
    elif isinstance(value, Mapping):
        yield from _encoded([(name, value[name]) for name in sorted(value)])
    else:
        items = list(value)
        yield b"l%d:" % len(items)
        for item in items:
            yield from _encoded(item)
