"""Unix sockets at paths of any length: the kernel's addresses end at 107 bytes; standard library only; any thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS_MAX = 107


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A name for bind(2) or connect(2), valid within the block: the path, or a short way through its open folder.

    Raises:
        FileNotFoundError: the path is too long for an address and its folder does not exist.
    """
    if len(os.fsencode(path)) <= ADDRESS_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
