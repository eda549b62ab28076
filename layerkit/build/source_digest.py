"""What a COPY's cache key says of its sources: everything but times (B01, B03). Pure; `build` only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from layerkit.build.copying import CopySource
from layerkit.build.keys import step_key
from layerkit.layer.tree import Content, Inode, walk


def sources_digest(sources: Iterable[CopySource], *, owners: bool = True) -> bytes:
    """32 bytes over names, types, modes, owners, xattrs, link groups and contents of the sources' trees.

    Chunks stand for contents: they are cut by content alone, so equal files have equal chunks.

    Args:
        sources: what is copied.
        owners: whether they count; those of a build context do not get into the layer (B06, B13).
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(step_key("source", source.name, source.inode.is_dir))
        links: dict[int, int] = {}
        for path, inode in walk(source.inode):
            group = links.setdefault(id(inode), len(links))
            digest.update(step_key(path, group, *_attributes(inode), *((inode.uid, inode.gid) if owners else ())))
    return digest.digest()


def _attributes(inode: Inode) -> tuple[int | bytes | list[bytes], ...]:
    body = inode.body
    if isinstance(body, Content):
        content = b"".join(b"%d:%b" % chunk for chunk in body.chunks)
    else:
        content = body if isinstance(body, bytes) else b""
    xattrs = [part for name in sorted(inode.xattrs) for part in (name, inode.xattrs[name])]
    return inode.mode, inode.rdev, xattrs, content
