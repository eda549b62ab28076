"""Reads EROFS images that nobody vouches for, over the C reader: what layer, fuse and export open metadata with.

Accepted: what `core.erofs_writer` writes and ordinary uncompressed images of mkfs.erofs, with 4 KiB blocks
(docs/formats/meta-image-accepted.md). An ErofsImage is immutable and may be used by any thread. It keeps the buffer
exported: an mmap under it cannot be closed before the image is gone.
"""

from __future__ import annotations

import enum
import mmap
from dataclasses import dataclass
from typing import Any, NamedTuple

from layerkit.core._core import ffi, lib
from layerkit.core.erofs_reader_faults import fault_error, new_fault
from layerkit.core.erofs_walk import BodyKind, Walk, walk_image, xattr_item
from layerkit.errors import CorruptError

__all__ = [
    "BLOCK_SIZE",
    "HOLE",
    "BodyKind",
    "DirEntry",
    "ErofsImage",
    "Extent",
    "InodeInfo",
    "Layout",
    "Superblock",
    "Walk",
    "check_image",
]

BLOCK_SIZE: int = lib.LK_EROFS_BLOCK
HOLE: int = lib.LK_EROFS_HOLE
"""The block address of a hole in chunk maps."""


class Layout(enum.IntEnum):
    """How an inode's bytes are laid out; the numbers are those on disk."""

    FLAT_PLAIN = 0
    FLAT_INLINE = 2
    CHUNK_BASED = 4


@dataclass(frozen=True, slots=True)
class Superblock:
    """The superblock and device table.

    Attributes:
        blocks: blocks of the image itself, without the data device.
        inodes: how many inodes it claims to hold.
        epoch_ns: the mtime of compact inodes.
        mapped_blkaddr, data_blocks: where the data device begins in the block space and its length; both 0 without one.
        checksum_ok: the checksum matches, or the image carries none.
    """

    blocks: int
    inodes: int
    root_nid: int
    uuid: bytes
    epoch_ns: int
    mapped_blkaddr: int
    data_blocks: int
    feature_compat: int
    feature_incompat: int
    checksum_ok: bool


@dataclass(frozen=True, slots=True)
class InodeInfo:
    """One inode as it is on disk; `rdev` is an `os.makedev` number, `ino` the 32-bit number kept for stat."""

    nid: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    nlink: int
    size: int
    rdev: int
    layout: Layout
    ino: int


class DirEntry(NamedTuple):
    """A directory entry; `file_type` is 1 to 7 as in d_type's FT_* numbers (Linux include/linux/fs_types.h)."""

    name: bytes
    nid: int
    file_type: int


class Extent(NamedTuple):
    """A range of a file in bytes: at `data_offset` of the data device, at `image_offset` of the image, or a hole."""

    file_offset: int
    length: int
    data_offset: int | None
    image_offset: int | None = None


class ErofsImage:
    """An EROFS metadata image, or a whole image without a data device.

    Args:
        meta: the image; it must not change while this object lives.

    Raises:
        CorruptError, UnsupportedError: by the constructor for the superblock and device table, by every method for
            what it reads; `where` names the nid, in a walk also the path.
    """

    def __init__(self, meta: bytes | bytearray | memoryview | mmap.mmap) -> None:
        # A view that exports a buffer crashes CPython 3.11 when both are garbage in one cycle: see core.fastcdc.
        whole = bytes(meta) if isinstance(meta, memoryview) else meta
        self._bytes = memoryview(whole).cast("B")
        self._address = ffi.from_buffer("uint8_t[]", whole)
        self._image = ffi.new("struct lk_erofs *")
        fault = new_fault()
        if lib.lk_erofs_open(self._image, self._address, len(self._bytes), fault):
            raise fault_error(fault)
        image = self._image
        self.superblock = Superblock(
            blocks=image.blocks,
            inodes=image.inodes,
            root_nid=image.root_nid,
            uuid=bytes(image.uuid),
            epoch_ns=image.epoch_s * 1_000_000_000 + image.epoch_nsec,
            mapped_blkaddr=image.mapped_blkaddr,
            data_blocks=image.data_blocks,
            feature_compat=image.feature_compat,
            feature_incompat=image.feature_incompat,
            checksum_ok=bool(image.checksum_ok),
        )

    def _inode(self, nid: int) -> Any:
        inode, fault = ffi.new("struct lk_erofs_inode *"), new_fault()
        if not 0 <= nid < 1 << 64:
            raise CorruptError("inode number outside the image", where=f"nid {nid}")
        if lib.lk_erofs_inode(self._image, nid, inode, fault):
            raise fault_error(fault)
        return inode

    def inode(self, nid: int) -> InodeInfo:
        """The inode at a nid."""
        inode = self._inode(nid)
        return InodeInfo(
            nid=nid,
            mode=inode.mode,
            uid=inode.uid,
            gid=inode.gid,
            mtime_ns=inode.mtime_s * 1_000_000_000 + inode.mtime_nsec,
            nlink=inode.nlink,
            size=inode.size,
            rdev=inode.rdev,
            layout=Layout(inode.layout),
            ino=inode.ino,
        )

    def _in_image(self, inode: Any) -> None:
        if inode.size > len(self._bytes):
            raise CorruptError(f"{inode.size} bytes are more than the image holds", where=f"nid {inode.nid}")

    def entries(self, nid: int) -> list[DirEntry]:
        """The entries of a directory in their order, without `.` and `..`."""
        inode, fault, count = self._inode(nid), new_fault(), ffi.new("size_t *")
        self._in_image(inode)
        out = ffi.new("struct lk_erofs_dirent[]", inode.size // 12 + 1)
        if lib.lk_erofs_entries(self._image, inode, out, count, fault):
            raise fault_error(fault)
        found = (DirEntry(self._take(d.name_at, d.name_size), d.nid, d.file_type) for d in out[0 : count[0]])
        return [entry for entry in found if entry.name not in (b".", b"..")]

    def find(self, nid: int, name: bytes) -> int | None:
        """The nid of one entry of a directory (`.` and `..` too), by binary search as the kernel does it."""
        inode, fault, out = self._inode(nid), new_fault(), ffi.new("struct lk_erofs_dirent *")
        found = lib.lk_erofs_find(self._image, inode, ffi.from_buffer("uint8_t[]", name), len(name), out, fault)
        if found < 0:
            raise fault_error(fault)
        return int(out.nid) if found else None

    def xattrs(self, nid: int) -> dict[bytes, bytes]:
        """Full names to values."""
        inode, fault, count = self._inode(nid), new_fault(), ffi.new("size_t *")
        out = ffi.new("struct lk_erofs_xattr_place[]", inode.xattr_size // 4 + 1)
        if lib.lk_erofs_xattrs(self._image, inode, out, count, fault):
            raise fault_error(fault)
        found = dict(xattr_item(self._bytes, x) for x in out[0 : count[0]])
        if len(found) != count[0]:
            raise CorruptError("two xattrs of one name", where=f"nid {nid}")
        return found

    def read_metadata(self, nid: int) -> bytes:
        """The bytes of an inode that lie in the image: a symlink's target, an inline file, a directory's blocks.

        CorruptError for bytes that lie in the data device, and for chunk-based inodes (ask `map`).
        """
        inode, fault = self._inode(nid), new_fault()
        self._in_image(inode)
        out = bytearray(inode.size)
        if lib.lk_erofs_read(self._image, inode, ffi.from_buffer("uint8_t[]", out), fault):
            raise fault_error(fault)
        return bytes(out)

    def map(self, nid: int) -> list[Extent]:
        """The ranges of a file in order, neighbours joined; they cover its size exactly."""
        inode, fault, count = self._inode(nid), new_fault(), ffi.new("size_t *")
        out = ffi.new("struct lk_erofs_extent[]", max(inode.chunk_count, 2))
        if lib.lk_erofs_map(self._image, inode, out, count, fault):
            raise fault_error(fault)
        return [
            Extent(
                extent.file_offset,
                extent.length,
                extent.at if extent.place == lib.LK_IN_DATA else None,
                extent.at if extent.place == lib.LK_IN_IMAGE else None,
            )
            for extent in out[0 : count[0]]
        ]

    def walk(self) -> Walk:
        """Checks everything that can be reached from the root, and lists it; time and memory follow the image's size.

        Checked beyond what each method checks: the superblock's checksum, order and uniqueness of names, `.` and `..`,
        file types in entries, directories named once, link counts, block ranges, the number of inodes, and that the
        parts of the metadata do not overlap.
        """
        return walk_image(self._image, self._bytes)

    def _take(self, at: int, size: int) -> bytes:
        return bytes(self._bytes[at : at + size])


def check_image(meta: bytes | bytearray | memoryview | mmap.mmap) -> None:
    """Checks a whole image; CorruptError or UnsupportedError names the first thing that is wrong, and its path."""
    ErofsImage(meta).walk()
