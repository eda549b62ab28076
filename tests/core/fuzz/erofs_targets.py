"""What a fuzzed image is put through: every entry point of the reader, at most so many typed errors, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from layerkit.core.erofs_reader import ErofsImage, Walk, check_image
from layerkit.errors import CorruptError, LimitError, UnsupportedError

REFUSALS = (CorruptError, UnsupportedError, LimitError)


def attempt(call: Callable[[], object]) -> object:
    """The call's result, or None for a typed refusal that says where."""
    try:
        return call()
    except REFUSALS as error:
        if not error.where:
            raise AssertionError(f"no place in {error!r}") from error
        return None


def exercise(image: bytes, nids: list[int]) -> bool:
    """Puts an image through all of it; whether a walk accepted it."""
    reader = attempt(lambda: ErofsImage(image))
    if not isinstance(reader, ErofsImage):
        return False
    walk = attempt(reader.walk)
    attempt(lambda: check_image(image))
    for nid in [reader.superblock.root_nid, *nids]:
        for method in (reader.inode, reader.entries, reader.xattrs, reader.read_metadata, reader.map):
            attempt(lambda method=method, nid=nid: method(nid))  # type: ignore[misc]
        for name in (b"", b".", b"..", b"dir", b"\xff", b"n" * 255, b"0007"):
            attempt(lambda nid=nid, name=name: reader.find(nid, name))  # type: ignore[misc]
    return isinstance(walk, Walk)
