"""Comparing trees: what differs, and one digest for a whole tree; imported by rank 2 up. Pure; any thread."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from layerkit.layer.contents import canonical_chunks, same_body
from layerkit.layer.tree import Content, Inode, walk

_HEAD = struct.Struct("<BIIIqQI")
_LINK, _INODE = 0, 1


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that two trees do not share.

    Attributes:
        path: without a leading slash, b'' for the root.
        kind: added, removed or changed.
        fields: for changed paths what differs: type, mode, owner, mtime, device, xattrs, content, links.
        before, after: the inodes; None where the path is missing.
    """

    path: bytes
    kind: Literal["added", "removed", "changed"]
    fields: tuple[str, ...]
    before: Inode | None
    after: Inode | None


def differences(before: Inode, after: Inode) -> Iterator[Difference]:
    """Every path that differs, parents first, in byte order within a directory; subtrees path by path.

    Hard links: `links` stands among the fields when a path's inode has other names than before.
    """
    old_links, new_links = _link_groups(before), _link_groups(after)
    pending: list[tuple[bytes, Inode | None, Inode | None]] = [(b"", before, after)]
    while pending:
        path, old, new = pending.pop()
        if old is None or new is None:
            yield Difference(path, "added" if old is None else "removed", (), old, new)
        elif fields := _changed_fields(old, new, old_links.get(old), new_links.get(new)):
            yield Difference(path, "changed", fields, old, new)
        olds = old.body if old is not None and isinstance(old.body, dict) else {}
        news = new.body if new is not None and isinstance(new.body, dict) else {}
        prefix = path + b"/" if path else b""
        for name in sorted(olds.keys() | news.keys(), reverse=True):
            pending.append((prefix + name, olds.get(name), news.get(name)))


def trees_equal(one: Inode, other: Inode) -> bool:
    """Whether two trees hold the same names, attributes, bytes and hard links."""
    return next(differences(one, other), None) is None


def tree_digest(root: Inode) -> str:
    """`sha256:<hex>` over everything that a tree holds; equal for equal trees, whatever order they were made in.

    Not part of any format: it serves comparisons within one version of layerkit.
    """
    digest = hashlib.sha256()
    numbers: dict[Inode, int] = {}
    for number, (path, inode) in enumerate(walk(root)):
        first = numbers.setdefault(inode, number)
        digest.update(_sized(path))
        digest.update(struct.pack("<BQ", _LINK, first) if first != number else _encode_inode(inode))
    return f"sha256:{digest.hexdigest()}"


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _encode_inode(inode: Inode) -> bytes:
    seconds, nanoseconds = divmod(inode.mtime_ns, 1_000_000_000)
    parts = [
        _HEAD.pack(_INODE, inode.mode, inode.uid, inode.gid, seconds, inode.rdev, nanoseconds),
        len(inode.xattrs).to_bytes(4, "little"),
    ]
    for name in sorted(inode.xattrs):
        parts += (_sized(name), _sized(inode.xattrs[name]))
    if isinstance(inode.body, bytes):
        parts += (b"b", _sized(inode.body))
    elif isinstance(inode.body, Content):
        chunks = canonical_chunks(inode.body.chunks)
        parts += (b"c", struct.pack("<QQ", inode.body.size, len(chunks)))
        for length, chunk_id in chunks:
            parts += (length.to_bytes(4, "little"), _sized(chunk_id))
    return b"".join(parts)


def _link_groups(root: Inode) -> dict[Inode, bytes]:
    """The names of inodes that have several, joined, for comparison of groups between trees."""
    first: dict[Inode, bytes] = {}
    several: dict[Inode, list[bytes]] = {}
    for path, inode in walk(root):
        if isinstance(inode.body, dict):
            continue
        if inode in first:
            several.setdefault(inode, [first[inode]]).append(path)
        else:
            first[inode] = path
    return {inode: b"\0".join(paths) for inode, paths in several.items()}


def _changed_fields(old: Inode, new: Inode, old_names: bytes | None, new_names: bytes | None) -> tuple[str, ...]:
    fields = []
    if old.mode >> 12 != new.mode >> 12:
        fields.append("type")
    if old.mode & 0o7777 != new.mode & 0o7777:
        fields.append("mode")
    if (old.uid, old.gid) != (new.uid, new.gid):
        fields.append("owner")
    if old.mtime_ns != new.mtime_ns:
        fields.append("mtime")
    if old.rdev != new.rdev:
        fields.append("device")
    if old.xattrs != new.xattrs:
        fields.append("xattrs")
    if "type" not in fields and not isinstance(old.body, dict) and not same_body(old.body, new.body):
        fields.append("content")
    if old_names != new_names:
        fields.append("links")
    return tuple(fields)
