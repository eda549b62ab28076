"""Checking of what the cache holds against the chunk indexes; imported by hostd. Blocking; any thread."""

from __future__ import annotations

from typing import NamedTuple

from layerkit.core.hashing import chunk_id
from layerkit.errors import HostError
from layerkit.fuse.host_layer import HostLayer


class CheckedLayer(NamedTuple):
    """What the check of one layer found: chunks hashed, and the numbers of those that were damaged."""

    digest: str
    checked: int
    damaged: list[int]


def check_layer(layer: HostLayer) -> CheckedLayer:
    """Hash every chunk that is said to be present; damaged ones are forgotten, so that readers fetch them anew."""
    checked, damaged = 0, []
    for number in range(layer.chunk_index.stored_count):
        if not (layer.present.has(number) or layer.is_unverified(number)):
            continue
        checked += 1
        try:
            right = chunk_id(layer.data.read(*layer.chunk_range(number))) == layer.chunk_index.stored_id(number)
        except (OSError, HostError):  # a bad sector, a file that was cut
            right = False
        if right:
            layer.mark([number])
        else:
            damaged.append(number)
    layer.forget(damaged)
    return CheckedLayer(layer.digest, checked, damaged)
