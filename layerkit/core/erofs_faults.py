"""Turns the C writer's fault codes into typed errors with the path; used by erofs_writer only. Pure, any thread."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn, Protocol

from layerkit.core._core import lib
from layerkit.errors import InputError, LayerkitError, LimitError


class Table(Protocol):
    """What of a NodeTable is needed to name a node."""

    links: bytearray
    names: bytearray
    xattrs: bytearray
    xattr_bytes: bytearray


NODE, LINK, XATTR = "node", "link", "xattr"

# Code -> error class, what `item` counts, message.
FAULTS: dict[int, tuple[type[LayerkitError], str, str]] = {
    lib.LK_EROFS_BAD_TABLE: (InputError, NODE, "the node table contradicts itself"),
    lib.LK_EROFS_BAD_ROOT: (InputError, NODE, "node 0 is not a directory"),
    lib.LK_EROFS_BAD_MODE: (InputError, NODE, "the mode has no known file type"),
    lib.LK_EROFS_BAD_BODY: (InputError, NODE, "the body does not suit the file type or size"),
    lib.LK_EROFS_BAD_BLOCKS: (InputError, NODE, "blocks outside the data, or chunks of an impossible size"),
    lib.LK_EROFS_BAD_TARGET: (InputError, NODE, "a link target is empty or holds a NUL byte"),
    lib.LK_EROFS_LONG_TARGET: (LimitError, NODE, "the link target is longer than 4095 bytes"),
    lib.LK_EROFS_LARGE_INLINE: (LimitError, NODE, "more than 4096 bytes inline"),
    lib.LK_EROFS_LARGE_RDEV: (LimitError, NODE, "the device number has more than 12 bits of major or 20 of minor"),
    lib.LK_EROFS_BAD_NAME: (InputError, LINK, "a name is empty, `.`, `..`, or holds a slash or NUL byte"),
    lib.LK_EROFS_LONG_NAME: (LimitError, LINK, "the name is longer than 255 bytes"),
    lib.LK_EROFS_SAME_NAME: (InputError, LINK, "the name stands twice in its directory"),
    lib.LK_EROFS_BAD_PARENT: (InputError, LINK, "the parent is not a directory"),
    lib.LK_EROFS_LINKED_DIRECTORY: (InputError, LINK, "a directory has a second name"),
    lib.LK_EROFS_UNREACHABLE: (InputError, NODE, "the root does not lead to this node"),
    lib.LK_EROFS_XATTR_PREFIX: (LimitError, XATTR, "EROFS has no number for the namespace of this xattr"),
    lib.LK_EROFS_XATTR_LONG_NAME: (LimitError, XATTR, "the xattr's name is longer than 255 bytes"),
    lib.LK_EROFS_XATTR_BAD_NAME: (InputError, XATTR, "an xattr's name is empty or holds a NUL byte"),
    lib.LK_EROFS_XATTR_SAME_NAME: (InputError, NODE, "the same xattr twice"),
    lib.LK_EROFS_XATTR_LARGE_VALUE: (LimitError, XATTR, "the xattr's value is longer than 65535 bytes"),
    lib.LK_EROFS_XATTR_LARGE_SUM: (LimitError, NODE, "the xattrs take more than 262148 bytes together"),
    lib.LK_EROFS_ADDRESS_SPACE: (LimitError, NODE, "metadata and data take more than 2^32 blocks of 4 KiB"),
}


def raise_fault(table: Table, code: int, node: int, item: int) -> NoReturn:
    """Raise the error for a fault that the C writer reported."""
    if code == lib.LK_EROFS_NO_MEMORY:
        raise MemoryError("no memory for the plan of an EROFS image")
    error, counted, message = FAULTS[code]
    if code == lib.LK_EROFS_ADDRESS_SPACE:
        raise error(message)
    where = path_of_link(table, item) if counted == LINK else path_of(table, node)
    if counted == XATTR:
        message = f"{message}: {shown(xattr_name(table, item))}"
    raise error(message, where=where)


def _links(table: Table) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    for parent, child, size in struct.iter_unpack("<III", table.links):
        yield parent, child, bytes(table.names[offset : offset + size])
        offset += size


def path_of(table: Table, node: int) -> str:
    """An absolute path of a node by its first names; `node N` for one that the root does not lead to.

    One pass over the links for the whole path: it is only taken on the way to an error.
    """
    first_link: dict[int, tuple[int, bytes]] = {}
    for parent, child, name in _links(table):
        first_link.setdefault(child, (parent, name))
    names: list[bytes] = []
    at = node
    while at:
        if at not in first_link or len(names) > len(first_link):
            return f"node {node}"
        at, name = first_link[at]
        names.append(name)
    return shown(b"/" + b"/".join(reversed(names)))


def path_of_link(table: Table, number: int) -> str:
    """The path that a link makes, by its parent's path and its name."""
    for index, (parent, _child, name) in enumerate(_links(table)):
        if index == number:
            return f"{path_of(table, parent).rstrip('/')}/{shown(name)}"
    return f"link {number}"


def xattr_name(table: Table, number: int) -> bytes:
    """The name of an xattr by its number in the table."""
    offset = 0
    for index, (name_size, value_size) in enumerate(struct.iter_unpack("<II", table.xattrs)):
        if index == number:
            return bytes(table.xattr_bytes[offset : offset + name_size])
        offset += name_size + value_size
    return b""


def shown(name: bytes) -> str:
    """Bytes as text for a message: what is not UTF-8 as backslash escapes."""
    return name.decode("utf-8", "backslashreplace")
