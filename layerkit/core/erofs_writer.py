"""Writes the metadata image of a layer: a table of nodes and links in, EROFS out (docs/formats/meta-image.md).

The same logical tree gives the same bytes whatever the order of `add`, `link` and xattrs. A NodeTable belongs to one
thread; `write_erofs` and `seal_erofs` run on any, without the GIL while they are in C.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

from layerkit.core._core import ffi, lib
from layerkit.core.erofs_faults import raise_fault
from layerkit.core.hashing import crc32c
from layerkit.errors import CorruptError, InputError

HOLE = 0xFFFFFFFF
BLOCK_SIZE = 4096
SUPERBLOCK_OFFSET = 1024
EROFS_MAGIC = 0xE0F5E1E2
UUID_OFFSET = SUPERBLOCK_OFFSET + 48
CHECKSUM_OFFSET = SUPERBLOCK_OFFSET + 4

# The C structs lk_erofs_node, lk_erofs_link and lk_erofs_xattr of src/erofs_writer.h.
_pack_node = struct.Struct("<qQQIIIIIBBH").pack
_pack_link = struct.Struct("<III").pack
_pack_xattr = struct.Struct("<II").pack
_LINK_SIZE = 12
_NONE, _INLINE, _BLOCKS, _CHUNKS = (
    lib.LK_EROFS_BODY_NONE, lib.LK_EROFS_BODY_INLINE, lib.LK_EROFS_BODY_BLOCKS, lib.LK_EROFS_BODY_CHUNKS
)  # fmt: skip
_NANOSECONDS = 1_000_000_000


class NodeTable:
    """The nodes of a tree and the names that lead to them, packed as C reads them; node 0 is the root directory.

    About 170 bytes a node with one name. One thread at a time.
    """

    __slots__ = ("bodies", "chunk_map", "count", "links", "names", "nodes", "xattr_bytes", "xattrs")

    def __init__(self) -> None:
        self.count = 0
        self.nodes = bytearray()
        self.links = bytearray()
        self.names = bytearray()
        self.bodies = bytearray()
        self.xattrs = bytearray()
        self.xattr_bytes = bytearray()
        self.chunk_map = array("I")

    def add(
        self,
        *,
        mode: int,
        uid: int,
        gid: int,
        mtime_ns: int,
        rdev: int = 0,
        xattrs: Sequence[tuple[bytes, bytes]] = (),
        size: int = 0,
        inline: bytes | None = None,
        block: int | None = None,
        chunk_bits: int = 0,
        chunk_blocks: array[int] | None = None,
    ) -> int:
        """Add one inode and return its number.

        Args:
            mode: st_mode with its type bits.
            mtime_ns: nanoseconds since the epoch, any sign.
            rdev: os.makedev number of a device, else 0.
            xattrs: full names and values; the order does not matter.
            size: bytes of a regular file that has `block` or `chunk_blocks`.
            inline: the bytes of a small regular file, or a symlink's target.
            block: the file's first block, counted from the start of `data`.
            chunk_bits, chunk_blocks: first block of every 2**chunk_bits bytes of the file, or HOLE.

        Raises:
            InputError: a number out of its range, or more than one body. What only the whole tree shows is found by
                `write_erofs`.
        """
        if (inline is not None) + (block is not None) + (chunk_blocks is not None) + (rdev != 0) > 1:
            raise InputError("a node has more than one body")
        kind = _NONE
        body = rdev
        if inline is not None:
            kind, body, size = _INLINE, len(self.bodies), len(inline)
            self.bodies += inline
        elif block is not None:
            kind, body = _BLOCKS, block
        elif chunk_blocks is not None:
            kind, body = _CHUNKS, self._add_chunks(size, chunk_bits, chunk_blocks)
        seconds, nanoseconds = divmod(mtime_ns, _NANOSECONDS)
        try:
            self.nodes += _pack_node(
                seconds, size, body, nanoseconds, mode, uid, gid, len(xattrs), kind, chunk_bits, 0
            )  # fmt: skip
        except struct.error as error:
            raise InputError(f"an attribute of a node is out of its range: {error}") from error
        if xattrs:
            self._add_xattrs(xattrs)
        number = self.count
        self.count = number + 1
        return number

    def link(self, parent: int, name: bytes, child: int) -> None:
        """Give a node a name in a directory; every further one is a hard link. `.` and `..` come by themselves."""
        try:
            self.links += _pack_link(parent, child, len(name))
        except struct.error as error:
            raise InputError(f"no such node: {error}") from error
        self.names += name

    def _add_chunks(self, size: int, chunk_bits: int, chunk_blocks: array[int]) -> int:
        if chunk_blocks.typecode != "I" or not 0 <= chunk_bits < 64 or len(chunk_blocks) != -(-size >> chunk_bits):
            raise InputError(f"{len(chunk_blocks)} chunks of 2^{chunk_bits} bytes for a file of {size} bytes")
        first = len(self.chunk_map)
        self.chunk_map += chunk_blocks
        return first

    def _add_xattrs(self, xattrs: Sequence[tuple[bytes, bytes]]) -> None:
        for name, value in xattrs:
            self.xattrs += _pack_xattr(len(name), len(value))
            self.xattr_bytes += name
            self.xattr_bytes += value


def _c_table(table: NodeTable, data_blocks: int) -> tuple[Any, list[Any]]:
    """The C view of a table and the buffers that it points into."""
    columns = {
        "nodes": ("lk_erofs_node[]", table.nodes),
        "links": ("lk_erofs_link[]", table.links),
        "xattrs": ("lk_erofs_xattr[]", table.xattrs),
        "names": ("uint8_t[]", table.names),
        "bodies": ("uint8_t[]", table.bodies),
        "xattr_bytes": ("uint8_t[]", table.xattr_bytes),
        "chunk_map": ("uint32_t[]", table.chunk_map),
    }
    buffers = {name: ffi.from_buffer(ctype, column) for name, (ctype, column) in columns.items()}
    view = ffi.new("lk_erofs_table *", buffers)
    view.node_count = table.count
    view.link_count = len(table.links) // _LINK_SIZE
    view.xattr_count = len(buffers["xattrs"])
    view.names_size = len(table.names)
    view.bodies_size = len(table.bodies)
    view.xattr_bytes_size = len(table.xattr_bytes)
    view.chunk_map_count = len(table.chunk_map)
    view.data_blocks = data_blocks
    return view, list(buffers.values())


def write_erofs(table: NodeTable, *, data_blocks: int) -> bytearray:
    """The whole metadata image; UUID and checksum are zero until `seal_erofs`.

    Args:
        data_blocks: blocks of the data device; 0 for none.

    Raises:
        LimitError: a name, link target, xattr, device number or the address space is larger than EROFS holds.
        InputError: the table is no tree, or a node makes no sense; both say where, with the path.
    """
    if not 0 <= data_blocks < 1 << 64:
        raise InputError(f"{data_blocks} data blocks")
    view, buffers = _c_table(table, data_blocks)
    fault = ffi.new("lk_erofs_fault *")
    plan = lib.lk_erofs_plan_new(view, fault)
    if plan == ffi.NULL:
        raise_fault(table, fault.code, fault.node, fault.item)
    try:
        image = bytearray(lib.lk_erofs_plan_image_size(plan))
        lib.lk_erofs_plan_emit(plan, ffi.from_buffer(image))
    finally:
        lib.lk_erofs_plan_free(plan)
        buffers.clear()
    return image


def check_superblock(image: bytes | bytearray | memoryview) -> None:
    """Whether this begins as a metadata image with a superblock at its place.

    Raises:
        CorruptError: it does not.
    """
    if len(image) < BLOCK_SIZE or struct.unpack_from("<I", image, SUPERBLOCK_OFFSET)[0] != EROFS_MAGIC:
        raise CorruptError("no EROFS superblock", where="metadata image")


def superblock_checksum(image: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of the first block from offset 1024 with the checksum zeroed: Linux fs/erofs/super.c."""
    block = bytearray(memoryview(image)[SUPERBLOCK_OFFSET:BLOCK_SIZE])
    struct.pack_into("<I", block, CHECKSUM_OFFSET - SUPERBLOCK_OFFSET, 0)
    return crc32c(block)


def seal_erofs(image: bytearray, uuid: bytes) -> None:
    """Set the UUID and then the checksum, in place.

    Raises:
        InputError: the UUID has not 16 bytes or is nil (overlayfs drops stable inode numbers when lowers share one).
        CorruptError: this is no metadata image.
    """
    check_superblock(image)
    if len(uuid) != 16 or uuid == bytes(16):
        raise InputError("a UUID has 16 bytes, not all zero")
    image[UUID_OFFSET : UUID_OFFSET + 16] = uuid
    struct.pack_into("<I", image, CHECKSUM_OFFSET, superblock_checksum(image))
