"""The times of a new layer's files: MTIME and SOURCE_DATE_EPOCH. Pure; `build` only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from layerkit.build.headers import Header
from layerkit.layer.merge import same_attributes
from layerkit.layer.tree import Inode, find, walk

_SECOND_NS = 1_000_000_000


def with_times(tree: Inode, lower: Inode | None, header: Header, source_date_epoch: int | None) -> Inode:
    """The tree with its times as MTIME and SOURCE_DATE_EPOCH demand; directories of the base keep theirs (B32).

    A written `MTIME keep` changes nothing. With SOURCE_DATE_EPOCH later times become it, whether `MTIME clamp` is
    written or nothing. A number becomes every time.

    Args:
        tree: what the layer holds.
        lower: what it stands on, None when it stands alone.
        header: the stage's declarations.
        source_date_epoch: seconds, or None.
    """
    new_time = _rule(header, source_date_epoch)
    if new_time is None:
        return tree
    changed: dict[int, Inode] = {}

    def timed(path: bytes, inode: Inode) -> Inode:
        if id(inode) not in changed:
            mtime_ns = inode.mtime_ns if _is_of_base(lower, path, inode) else new_time(inode.mtime_ns)
            changed[id(inode)] = replace(inode, mtime_ns=mtime_ns, body={} if inode.is_dir else inode.body)
        return changed[id(inode)]

    top = timed(b"", tree)
    for path, inode in walk(tree):
        if inode.is_dir:
            target = changed[id(inode)]
            prefix = path + b"/" if path else b""
            for name, child in inode.entries.items():
                target.entries[name] = timed(prefix + name, child)
    return top


def _rule(header: Header, source_date_epoch: int | None) -> Callable[[int], int] | None:
    if header.mtime.mode == "fixed":
        fixed_ns = header.mtime.epoch * _SECOND_NS
        return lambda _: fixed_ns
    if source_date_epoch is None or (header.mtime.mode == "keep" and "MTIME" in header.words):
        return None
    latest_ns = source_date_epoch * _SECOND_NS
    return lambda mtime_ns: min(mtime_ns, latest_ns)


def _is_of_base(lower: Inode | None, path: bytes, inode: Inode) -> bool:
    """Whether the difference holds a directory only as the way to what changed beneath it."""
    there = find(lower, path) if lower is not None and inode.is_dir else None
    return there is not None and there.is_dir and same_attributes(there, inode)
