"""Tells Python's garbage collector what commands that hold whole trees know of their memory. `cli` only."""

from __future__ import annotations

import gc


def expect_large_trees() -> None:
    """Collect cycles less often: a tree of 100,000 inodes holds none, and walking it again and again takes an eighth
    of the time that an unchanged import needs (measured). What is no cycle is freed at once all the same."""
    gc.set_threshold(50_000, 20, 50)
