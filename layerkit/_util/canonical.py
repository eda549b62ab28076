"""Canonical JSON: one spelling for one value, so that digests of it are stable; standard library only."""

from __future__ import annotations

import json
from typing import Any

from layerkit.errors import CorruptError


def canonical_json(value: Any) -> bytes:
    """UTF-8, keys sorted, no white space, no NaN, no escapes but those JSON demands."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_json_object(data: bytes, what: str, *, max_bytes: int = 64 << 20) -> dict[str, Any]:
    """Read a JSON object from untrusted bytes.

    Raises:
        CorruptError: too large, not JSON, not an object, nested too deeply.
    """
    if len(data) > max_bytes:
        raise CorruptError(f"{what} has {len(data)} bytes, more than {max_bytes}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{what} is not a JSON object")
    return value
