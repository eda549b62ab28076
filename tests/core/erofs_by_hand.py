"""EROFS images put together by hand, so that tests can get any field of them wrong (Linux fs/erofs/erofs_fs.h)."""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from layerkit.core.hashing import crc32c

BLOCK = 4096
PLAIN, INLINE, CHUNKS = 0, 2, 4
FILE, DIRECTORY, LINK = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777
KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFLNK)
TYPES = {kind: number for number, kind in enumerate(KINDS, 1)}


def compact(layout: int, mode: int, *, size: int = 0, word: int = 0, nlink: int = 1, uid: int = 0, gid: int = 0,
            xattrs: bytes = b"", tail: bytes = b"", delta: int = 0) -> bytes:  # fmt: skip
    head = struct.pack("<HHHHIIIIHHI", layout << 1, xattr_count(xattrs), mode, nlink, size, delta, word, 1, uid, gid, 0)
    return head + xattrs + tail


def extended(layout: int, mode: int, *, size: int = 0, word: int = 0, nlink: int = 1, uid: int = 0, gid: int = 0,
             mtime: int = 0, nsec: int = 0, xattrs: bytes = b"", tail: bytes = b"") -> bytes:  # fmt: skip
    head = struct.pack("<HHHHQIIIIqII16s", layout << 1 | 1, xattr_count(xattrs), mode, 0, size, word, 1, uid, gid,
                       mtime, nsec, nlink, b"")  # fmt: skip
    return head + xattrs + tail


def xattr_count(xattrs: bytes) -> int:
    return (len(xattrs) - 12) // 4 + 1 if xattrs else 0


def xattr_entry(index: int, name: bytes, value: bytes) -> bytes:
    entry = struct.pack("<BBH", len(name), index, len(value)) + name + value
    return entry + bytes(-len(entry) % 4)


def xattr_body(inline: Sequence[tuple[int, bytes, bytes]] = (), shared: Sequence[int] = ()) -> bytes:
    header = struct.pack("<IB7x", 0, len(shared)) + b"".join(struct.pack("<I", number) for number in shared)
    return header + b"".join(xattr_entry(*item) for item in inline)


def listing(entries: Sequence[tuple[bytes, int, int]], *, sort: bool = True) -> bytes:
    """Directory blocks for (name, nid, file type); as many entries a block as fit."""
    blocks: list[list[tuple[bytes, int, int]]] = [[]]
    room = BLOCK
    for entry in sorted(entries) if sort else entries:
        if room < 12 + len(entry[0]):
            blocks.append([])
            room = BLOCK
        blocks[-1].append(entry)
        room -= 12 + len(entry[0])
    out = bytearray()
    for block in blocks:
        out += bytes(-len(out) % BLOCK)
        records, names = b"", b""
        for name, nid, kind in block:
            records += struct.pack("<QHBB", nid, 12 * len(block) + len(names), kind, 0)
            names += name
        out += records + names
    return bytes(out)


@dataclass
class HandImage:
    """Parts by nid (bytes that begin with an inode), blocks by address, and every superblock field."""

    slots: dict[int, bytes] = field(default_factory=dict)
    extra: dict[int, bytes] = field(default_factory=dict)
    root_nid: int = 40
    inodes: int | None = None
    blocks: int | None = None
    meta_blkaddr: int = 0
    xattr_blkaddr: int = 0
    compat: int = 0x3
    incompat: int | None = None
    devices: int | None = None
    mapped: int = 0
    data_blocks: int = 0
    slot_at: int = 9
    epoch: tuple[int, int] = (0, 0)
    block_bits: int = 12
    dir_bits: int = 0
    extslots: int = 0
    magic: int = 0xE0F5E1E2
    good_checksum: bool = True

    def bytes(self) -> bytes:
        parts = {self.meta_blkaddr * BLOCK + nid * 32: part for nid, part in self.slots.items()}
        parts.update((address * BLOCK, part) for address, part in self.extra.items())
        end = max((at + len(part) for at, part in parts.items()), default=0)
        image = bytearray(max(BLOCK, -(-end // BLOCK) * BLOCK))
        for at, part in parts.items():
            image[at : at + len(part)] = part
        devices = int(self.mapped > 0) if self.devices is None else self.devices
        incompat = 4 | 8 * bool(devices) if self.incompat is None else self.incompat
        blocks = len(image) // BLOCK if self.blocks is None else self.blocks
        inodes = len(self.slots) if self.inodes is None else self.inodes
        image[1024:1152] = struct.pack(
            "<IIIBBHQqIIII16s16sIHHHBBIQB23s", self.magic, 0, self.compat, self.block_bits, self.extslots,
            self.root_nid, inodes, *self.epoch, blocks, self.meta_blkaddr, self.xattr_blkaddr, b"u" * 16, b"by hand",
            incompat, 0, devices, self.slot_at, self.dir_bits, 0, 0, 0, 0, b"")  # fmt: skip
        if devices and self.slot_at * 128 + 128 <= len(image):
            image[self.slot_at * 128 : self.slot_at * 128 + 128] = struct.pack(
                "<64sII56s", b"data", self.data_blocks, self.mapped, b"")  # fmt: skip
        return sealed(image, good=self.good_checksum)


def sealed(image: bytearray | bytes, *, good: bool = True) -> bytes:
    """The image with its superblock checksum right, or certainly wrong."""
    out = bytearray(image)
    out[1028:1032] = bytes(4)
    checksum = crc32c(out[1024:4096]) ^ (not good)
    out[1028:1032] = checksum.to_bytes(4, "little")
    return bytes(out)


def tree(root_nid: int, names: dict[bytes, tuple[int, int]], *, parent: int | None = None, nlink: int | None = None,
         mode: int = DIRECTORY, sort: bool = True) -> bytes:  # fmt: skip
    """An inline directory inode for names to (nid, mode); the root when parent is None."""
    entries = [(b".", root_nid, 2), (b"..", root_nid if parent is None else parent, 2)]
    entries += [(name, nid, TYPES[stat.S_IFMT(child)]) for name, (nid, child) in names.items()]
    content = listing(entries, sort=sort)
    links = 2 + sum(stat.S_ISDIR(child) for _, child in names.values()) if nlink is None else nlink
    return compact(INLINE, mode, size=len(content), word=0xFFFFFFFF, nlink=links, tail=content)
