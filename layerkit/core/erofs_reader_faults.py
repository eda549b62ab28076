"""What the C reader's fault codes mean: their texts and error types. Pure; imported by the reader's wrappers only."""

from __future__ import annotations

from typing import Any

from layerkit.core._core import ffi, lib
from layerkit.errors import CorruptError, LayerkitError, LimitError, UnsupportedError

_UNSUPPORTED_HINT = "layerkit reads uncompressed EROFS with 4 KiB blocks; see docs/formats/meta-image-accepted.md"

_CORRUPT = {
    lib.LK_FAULT_TRUNCATED: "the image ends before byte {value}",
    lib.LK_FAULT_MAGIC: "no EROFS superblock (magic {value:#010x})",
    lib.LK_FAULT_SUPERBLOCK: "the superblock holds an impossible value ({value})",
    lib.LK_FAULT_DEVICE_SLOT: "the device slot lies outside the image or its range is impossible ({value})",
    lib.LK_FAULT_NID: "inode number {value} lies outside the image",
    lib.LK_FAULT_MODE: "unknown file type (mode {value:#o})",
    lib.LK_FAULT_SIZE: "impossible size {value}",
    lib.LK_FAULT_TIME: "{value} nanoseconds in a timestamp",
    lib.LK_FAULT_INLINE_TAIL: "{value} bytes of inline data cross a block or the end of the image",
    lib.LK_FAULT_BLOCK_RANGE: "blocks from {value} on lie outside metadata and data",
    lib.LK_FAULT_NOT_IN_IMAGE: "its bytes do not lie in the metadata image",
    lib.LK_FAULT_XATTR_BODY: "the xattrs do not fit their space ({value})",
    lib.LK_FAULT_XATTR_NAME: "an xattr name is empty, too long for its kind or holds a zero byte",
    lib.LK_FAULT_DIR_BLOCK: "a directory block is malformed ({value})",
    lib.LK_FAULT_NAME: "entry {value} has an impossible name",
    lib.LK_FAULT_ORDER: "the entries are not in ascending order without repetition",
    lib.LK_FAULT_DOTS: "`.` or `..` is missing or leads elsewhere ({value})",
    lib.LK_FAULT_FILE_TYPE: "the entry's file type {value} is not its inode's",
    lib.LK_FAULT_DIR_TWICE: "the directory has two names or contains itself",
    lib.LK_FAULT_OVERLAP: "more metadata than the image has room for: parts overlap",
    lib.LK_FAULT_NLINK: "the link count is wrong, {value} were found",
    lib.LK_FAULT_INODE_COUNT: "{value} inodes can be reached, the superblock says otherwise",
    lib.LK_FAULT_CHECKSUM: "the superblock's checksum does not match",
    lib.LK_FAULT_TARGET: "a symlink's target of {value} bytes is empty, too long or holds a zero byte",
    lib.LK_FAULT_ROOT: "the root is not a directory (mode {value:#o})",
    lib.LK_FAULT_NOT_A_DIRECTORY: "not a directory (mode {value:#o})",
}
_UNSUPPORTED = {
    lib.LK_FAULT_BLOCK_SIZE: "blocks of 2^{value} bytes or directory blocks of their own size",
    lib.LK_FAULT_FEATURES: "incompatible features {value:#x} (compression, long xattr prefixes, 48 bits, …)",
    lib.LK_FAULT_DEVICES: "{value} devices that are not one device mapped into the block space",
    lib.LK_FAULT_FORMAT: "an inode of format {value:#x}",
    lib.LK_FAULT_COMPRESSED: "a compressed inode (format {value:#x})",
    lib.LK_FAULT_COMPACT_TIME: "a compact inode with a time of its own ({value})",
    lib.LK_FAULT_CHUNK_FORMAT: "chunk format {value:#x}",
    lib.LK_FAULT_DEVICE_ID: "device id {value} in a chunk map",
    lib.LK_FAULT_XATTR_INDEX: "xattr name index {value}",
}


def fault_error(fault: Any, path: bytes | None = None) -> LayerkitError | MemoryError:
    """The typed error for a `struct lk_fault *`; `path` is where a walk met it, when it is known."""
    code, nid, value = fault.code, fault.nid, fault.value
    where = f"nid {nid}" if nid else "superblock"
    if path is not None:
        where = f"/{path.decode('utf-8', 'backslashreplace')} ({where})"
    if code == lib.LK_FAULT_NO_MEMORY:
        return MemoryError("no memory to walk an EROFS image")
    if code == lib.LK_FAULT_TOO_BIG:
        return LimitError(f"an image of {value} bytes is too large to walk", where=where)
    if code in _UNSUPPORTED:
        return UnsupportedError(_UNSUPPORTED[code].format(value=value), where=where, hint=_UNSUPPORTED_HINT)
    return CorruptError(_CORRUPT[code].format(value=value), where=where)


def new_fault() -> Any:
    """A `struct lk_fault *` for one call."""
    return ffi.new("struct lk_fault *")
