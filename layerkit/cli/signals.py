"""SIGTERM and SIGHUP as an orderly end: what a command has made goes first. `cli` only, main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Within the block the first of these signals raises SystemExit(128 + n); those after it wait for the clean-up.

    A signal that the caller has set to be ignored (nohup) stays ignored.
    """
    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            raise SystemExit(128 + number)

    changed = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
