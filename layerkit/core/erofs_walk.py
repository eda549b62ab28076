"""The columns of a walk over an EROFS image, for loading whole trees; imported through `core.erofs_reader`.

A Walk is a value: once made it belongs to its user and shares nothing with the image.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass
from typing import Any

from layerkit.core._core import ffi, lib
from layerkit.core.erofs_reader_faults import fault_error, new_fault
from layerkit.errors import CorruptError

_PREFIXES = {
    1: b"user.",
    2: b"system.posix_acl_access",
    3: b"system.posix_acl_default",
    4: b"trusted.",
    6: b"security.",
}


class BodyKind(enum.IntEnum):
    """How the bytes of a row are found; see Walk.body_at."""

    NONE = 0
    DIRECTORY = 1
    INLINE = 2
    DATA = 3
    CHUNKS = 4
    IMAGE = 5


@dataclass(frozen=True, slots=True)
class Walk:
    """Every inode of an image once, as parallel columns: row 0 is the root, parents come before their children.

    Attributes:
        nid, mode, uid, gid, nlink, rdev, size: one item a row.
        mtime_ns: one a row.
        body: BodyKind of each row, as a plain number.
        body_at: DATA: byte offset in the data device, where `size` bytes lie. CHUNKS: index in `chunks` of the row's
            first chunk; there are ceil(size / 2**chunk_bits) of them. INLINE: offset in the image. Else meaningless.
            IMAGE rows are larger files in blocks of the image itself, which layers never have: ErofsImage.map tells.
        chunk_bits: log2 of the chunk size in bytes of CHUNKS rows.
        inline: the bytes of INLINE rows (files of up to a block in the image, empty ones, symlink targets), else None.
        chunks: the chunk maps one after another: first block of each chunk in the data device, 0xffffffff for a hole.
        xattrs: rows that have any to their own dict of full names and values; equal values are one object.
        parent, name, child: one item for each directory entry but `.` and `..`: rows and names, directory by
            directory in the order of their rows, names of one in byte order. A row that is child twice is a hard link.
    """

    nid: array[int]
    mode: array[int]
    uid: array[int]
    gid: array[int]
    nlink: array[int]
    rdev: array[int]
    size: array[int]
    mtime_ns: list[int]
    body: array[int]
    body_at: array[int]
    chunk_bits: array[int]
    inline: list[bytes | None]
    chunks: array[int]
    xattrs: dict[int, dict[bytes, bytes]]
    parent: array[int]
    name: list[bytes]
    child: array[int]

    def __len__(self) -> int:
        return len(self.nid)


def walk_image(image: Any, view: memoryview) -> Walk:
    """Runs the C walk over a `struct lk_erofs *` whose bytes are `view`."""
    walk, fault = ffi.new("struct lk_erofs_walk *"), new_fault()
    try:
        if lib.lk_erofs_walk(image, walk, fault):
            raise fault_error(fault, _fault_path(walk, view))
        return _columns(walk, view)
    finally:
        lib.lk_erofs_walk_free(walk)


def xattr_item(view: memoryview, xattr: Any) -> tuple[bytes, bytes]:
    """Full name and value of a `struct lk_erofs_xattr_place`."""
    name = bytes(view[xattr.name_at : xattr.name_at + xattr.name_size])
    return _PREFIXES[xattr.name_index] + name, bytes(view[xattr.value_at : xattr.value_at + xattr.value_size])


def _copied(code: str, address: Any, count: int) -> array[int]:
    column = array(code)
    if count:
        column.frombytes(ffi.buffer(address, count * column.itemsize))
    return column


def _fields(walk: Any, code: str, *names: str) -> list[array[int]]:
    """Columns of the rows: every n-th word of all of them, so that no row is looked at in Python."""
    words = _copied(code, walk.rows, walk.row_count * ffi.sizeof("struct lk_erofs_row") // array(code).itemsize)
    stride = ffi.sizeof("struct lk_erofs_row") // words.itemsize
    return [words[ffi.offsetof("struct lk_erofs_row", name) // words.itemsize :: stride] for name in names]


def _columns(walk: Any, view: memoryview) -> Walk:
    nid, size, body_at = _fields(walk, "Q", "nid", "size", "body_at")
    (seconds,) = _fields(walk, "q", "mtime_s")
    mode, uid, gid, nlink, rdev = _fields(walk, "I", "mode", "uid", "gid", "nlink", "rdev")
    nanoseconds, body, chunk_bits, first, count = _fields(
        walk, "I", "mtime_nsec", "body", "chunk_bits", "xattr_first", "xattr_count"
    )
    links = _copied("I", walk.links, walk.link_count * 2)
    return Walk(
        nid=nid,
        mode=mode,
        uid=uid,
        gid=gid,
        nlink=nlink,
        rdev=rdev,
        size=size,
        mtime_ns=[s * 1_000_000_000 + ns for s, ns in zip(seconds, nanoseconds, strict=True)],
        body=body,
        body_at=body_at,
        chunk_bits=chunk_bits,
        inline=[
            bytes(view[at : at + length]) if kind == BodyKind.INLINE.value else None
            for kind, at, length in zip(body, body_at, size, strict=True)
        ],
        chunks=_copied("I", walk.chunks, walk.chunk_count),
        xattrs=_xattrs(walk, view, first, count),
        parent=links[0::2],
        name=_names(walk),
        child=links[1::2],
    )


def _names(walk: Any) -> list[bytes]:
    names = bytes(ffi.buffer(walk.names, walk.names_size)).split(b"\0") if walk.names_size else [b""]
    names.pop()
    return names


def _xattrs(walk: Any, view: memoryview, first: array[int], count: array[int]) -> dict[int, dict[bytes, bytes]]:
    interned: dict[bytes, bytes] = {}
    items = []
    for number in range(walk.xattr_count):
        name, value = xattr_item(view, walk.xattrs[number])
        items.append((interned.setdefault(name, name), interned.setdefault(value, value)))
    refs = _copied("I", walk.xattr_refs, walk.xattr_ref_count)
    found: dict[int, dict[bytes, bytes]] = {}
    for row, many in enumerate(count):
        if many:
            found[row] = dict([items[number] for number in refs[first[row] : first[row] + many]])
            if len(found[row]) != many:
                raise CorruptError("two xattrs of one name", where=f"/{_shown(_path(walk, row))}")
    return found


def _fault_path(walk: Any, view: memoryview) -> bytes | None:
    """Where a walk stopped: a directory's path, and the name in it that was looked at."""
    if not walk.row_count:
        return None
    path = _path(walk, walk.at_row)
    if not walk.at_name_size:
        return path
    name = bytes(view[walk.at_name : walk.at_name + walk.at_name_size])
    return path + b"/" + name if path else name


def _path(walk: Any, row: int) -> bytes:
    """The first path of a row; one pass over the links, for errors only."""
    names = _names(walk)
    named: dict[int, tuple[int, bytes]] = {}
    for number, name in enumerate(names):
        link = walk.links[number]
        named.setdefault(link.child, (link.parent, name))
    parts: list[bytes] = []
    while row in named:
        row, name = named[row]
        parts.append(name)
    return b"/".join(reversed(parts))


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
