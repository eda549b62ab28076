"""Sizes, times and near names for people; standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def format_bytes(size: float) -> str:
    """`4.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `2 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def near_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look most like `name`."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=0.6)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean a, b?`, or '' when nothing is near."""
    near = near_names(name, known)
    return f"did you mean {', '.join(near)}?" if near else ""
