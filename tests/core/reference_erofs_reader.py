"""The slow, plain EROFS reader that the C one must agree with: what it finds and what it refuses.

Written from Linux fs/erofs and docs/formats/meta-image-accepted.md, not from the C code.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass, field

from layerkit.core.hashing import crc32c

BLOCK = 4096
HOLE = 0xFFFFFFFF
FILE_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}
PREFIXES = {1: b"user.", 2: b"system.posix_acl_access", 3: b"system.posix_acl_default", 4: b"trusted.", 6: b"security."}


class RefusedError(Exception):
    """The image is not acceptable."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise RefusedError(why)


@dataclass
class Inode:
    nid: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    nlink: int
    size: int
    rdev: int
    layout: int
    ino: int
    word: int
    record_size: int
    xattr_at: int
    xattr_size: int

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)

    @property
    def tail_at(self) -> int:
        return self.xattr_at + self.xattr_size

    @property
    def tail_size(self) -> int:
        """Bytes behind the inode of a FLAT_INLINE one."""
        return (self.size - 1) % BLOCK + 1 if self.layout == 2 and self.size else 0


@dataclass
class Node:
    """An inode of a walk; `links` are (parent, name) pairs, `extents` those of regular files."""

    inode: Inode
    xattrs: dict[bytes, bytes]
    data: bytes | None = None
    extents: list[tuple[int, int, int | None, int | None]] = field(default_factory=list)
    links: list[tuple[int, bytes]] = field(default_factory=list)


class ReferenceImage:
    def __init__(self, image: bytes) -> None:
        self.image = image
        need(len(image) >= BLOCK, "short")
        (magic, self.checksum, self.compat, block_bits, extra, self.root_nid, self.inodes, epoch, epoch_ns, self.blocks,
         meta, xattr, self.uuid, _name, self.incompat, _, devices, slot, directory_bits) = struct.unpack_from(
            "<IIIBBHQqIIII16s16sIHHHB", image, 1024)  # fmt: skip
        need(magic == 0xE0F5E1E2, "magic")
        need(block_bits == 12 and directory_bits == 0, "block size")
        need(self.incompat & ~0xD == 0, "features")
        need(128 + extra * 16 <= 3072, "extra slots")
        need(epoch_ns < 10**9, "epoch")
        self.epoch_ns = epoch * 10**9 + epoch_ns
        self.meta_at, self.xattr_at = meta * BLOCK, xattr * BLOCK
        self.mapped = self.data_blocks = 0
        if self.incompat & 8 and devices:
            need(devices == 1, "devices")
            self.data_blocks, self.mapped = struct.unpack("<II", self.take(slot * 128, 128)[64:72])
            need(self.mapped, "device without address")
            need(self.mapped >= self.blocks and self.mapped + self.data_blocks <= 1 << 32, "device range")
            need(self.blocks * BLOCK <= len(image), "truncated")

    @property
    def checksum_ok(self) -> bool:
        head = self.image[1024:1028] + bytes(4) + self.image[1032:4096]
        return not self.compat & 1 or crc32c(head) == self.checksum

    def take(self, at: int, size: int) -> bytes:
        need(at >= 0 and at + size <= len(self.image), "out of bounds")
        return self.image[at : at + size]

    def inode(self, nid: int) -> Inode:
        at = self.meta_at + nid * 32
        head = self.take(at, 32)
        form, xattr_count, mode = struct.unpack_from("<HHH", head)
        word, ino = struct.unpack_from("<I I", head, 16)
        layout = form >> 1
        need(layout in (0, 2, 4), "format")
        if form & 1:
            record = self.take(at, 64)
            (size,) = struct.unpack_from("<Q", record, 8)
            uid, gid, seconds, nanoseconds, nlink = struct.unpack_from("<IIqII", record, 24)
            need(nanoseconds < 10**9, "time")
            mtime = seconds * 10**9 + nanoseconds
        else:
            nlink, size, delta = struct.unpack_from("<HII", head, 6)
            uid, gid = struct.unpack_from("<HH", head, 24)
            need(delta == 0, "compact time")
            mtime = self.epoch_ns
        need(size < 1 << 63, "size")
        record_size = 64 if form & 1 else 32
        xattr_size = 12 + 4 * (xattr_count - 1) if xattr_count else 0
        self.take(at + record_size, xattr_size)
        kind = stat.S_IFMT(mode)
        need(kind in FILE_TYPES, "mode")
        is_device = kind in (stat.S_IFCHR, stat.S_IFBLK)
        special = is_device or kind in (stat.S_IFIFO, stat.S_IFSOCK)
        need(not special or (layout == 0 and size == 0), "special file with bytes")
        inode = Inode(nid, mode, uid, gid, mtime, nlink, size, word if is_device else 0, layout, ino, word, record_size,
                      at + record_size, xattr_size)  # fmt: skip
        if layout == 4:
            self.chunk_entries(inode)
        if inode.tail_size:
            need(inode.tail_at % BLOCK + inode.tail_size <= BLOCK, "inline data")
            self.take(inode.tail_at, inode.tail_size)
        return inode

    def chunk_entries(self, inode: Inode) -> tuple[int, list[tuple[int, int]]]:
        """Chunk size and (device id, block) pairs."""
        form = inode.word & 0xFFFF
        need(form & ~0x3F == 0, "chunk format")
        chunk_size = BLOCK << (form & 31)
        unit = 8 if form & 32 else 4
        count = -(-inode.size // chunk_size)
        table = self.take(-(-inode.tail_at // unit) * unit, count * unit)
        if unit == 4:
            return chunk_size, [(0, block) for (block,) in struct.iter_unpack("<I", table)]
        return chunk_size, [(device, block) for _, device, block in struct.iter_unpack("<HHI", table)]

    def place(self, block: int, size: int) -> tuple[int | None, int | None]:
        """(data offset, image offset) of a range of blocks, one of them None."""
        end = block + -(-size // BLOCK)
        if self.mapped and block >= self.mapped:
            need(end <= self.mapped + self.data_blocks, "blocks")
            return (block - self.mapped) * BLOCK, None
        need(end <= self.blocks, "blocks")
        return None, block * BLOCK

    def map(self, inode: Inode) -> list[tuple[int, int, int | None, int | None]]:
        extents: list[tuple[int, int, int | None, int | None]] = []
        if inode.layout == 4:
            chunk_size, entries = self.chunk_entries(inode)
            for number, (device, block) in enumerate(entries):
                start = number * chunk_size
                length = min(chunk_size, inode.size - start)
                if block == HOLE:
                    extents.append((start, length, None, None))
                else:
                    need(not (self.mapped and device & 1), "device id")
                    extents.append((start, length, *self.place(block, length)))
            return joined(extents)
        in_blocks = inode.size - inode.tail_size
        if in_blocks:
            extents.append((0, in_blocks, *self.place(inode.word, in_blocks)))
        if inode.tail_size:
            extents.append((in_blocks, inode.tail_size, None, inode.tail_at))
        return extents

    def read(self, inode: Inode) -> bytes:
        need(inode.layout != 4, "chunks")
        out = b""
        for _, length, data_offset, image_offset in self.map(inode):
            need(data_offset is None and image_offset is not None, "not in the image")
            out += self.take(image_offset or 0, length)
        return out

    def entries(self, inode: Inode) -> list[tuple[bytes, int, int]]:
        need(inode.kind == stat.S_IFDIR, "not a directory")
        content = self.read(inode)
        found = []
        for start in range(0, len(content), BLOCK):
            block = content[start : start + BLOCK]
            need(len(block) >= 12, "directory block")
            (names_at,) = struct.unpack_from("<H", block, 8)
            need(names_at % 12 == 0 and 12 <= names_at < len(block), "directory block")
            if len(block) < BLOCK and not inode.tail_size:
                at = inode.word * BLOCK + start + len(block)
                need(self.take(at, 1) == b"\0", "no zero behind the last name")
            records = list(struct.iter_unpack("<QHBB", block[:names_at]))
            ends = [offset for _, offset, _, _ in records[1:]] + [len(block)]
            for number, ((nid, offset, kind, _), end) in enumerate(zip(records, ends, strict=True)):
                need(names_at <= offset < end <= len(block), "name offsets")
                name = block[offset:end]
                if number == len(records) - 1:
                    name = name.split(b"\0")[0]
                need(0 < len(name) <= 255 and b"\0" not in name and b"/" not in name, "name")
                found.append((name, nid, kind))
        return found

    def xattr_entries(self, inode: Inode) -> list[tuple[int | None, bytes, bytes, int]]:
        """(shared number, name, value, entry size) of every xattr."""
        if not inode.xattr_size:
            return []
        body = self.take(inode.xattr_at, inode.xattr_size)
        shared = body[4]
        need(len(body) > 12 and 12 + 4 * shared <= len(body), "xattr body")
        found = []
        at = 12 + 4 * shared
        while at < len(body):
            name, value, size = self.xattr_entry(body[at:])
            found.append((None, name, value, size))
            at += (size + 3) // 4 * 4
        for (number,) in struct.iter_unpack("<I", body[12 : 12 + 4 * shared]):
            start = self.xattr_at + number * 4
            self.take(start, 4)
            found.append((number, *self.xattr_entry(self.image[start : start + 66_000])))
        return found

    @staticmethod
    def xattr_entry(data: bytes) -> tuple[bytes, bytes, int]:
        need(len(data) >= 4, "xattr entry")
        name_size, index, value_size = struct.unpack_from("<BBH", data)
        size = 4 + name_size + value_size
        need(size <= len(data), "xattr entry")
        need(index in PREFIXES, "xattr index")
        name = data[4 : 4 + name_size]
        need(b"\0" not in name and bool(name) == (index not in (2, 3)), "xattr name")
        return PREFIXES[index] + name, data[4 + name_size : size], size

    def xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        entries = self.xattr_entries(inode)
        found = {name: value for _, name, value, _ in entries}
        need(len(found) == len(entries), "two xattrs of one name")
        return found

    def walk(self) -> list[Node]:
        return Walker(self).run()


def joined(extents: list[tuple[int, int, int | None, int | None]]) -> list[tuple[int, int, int | None, int | None]]:
    out: list[tuple[int, int, int | None, int | None]] = []
    for start, length, data, image in extents:
        if out:
            first, before, last_data, last_image = out[-1]
            follows = (
                (data is None and image is None and last_data is None and last_image is None)
                or (data is not None and last_data is not None and last_data + before == data)
                or (image is not None and last_image is not None and last_image + before == image)
            )
            if follows:
                out[-1] = (first, before + length, last_data, last_image)
                continue
        out.append((start, length, data, image))
    return out


class Walker:
    def __init__(self, image: ReferenceImage) -> None:
        self.image = image
        self.budget = self.small_budget = len(image.image)
        self.nodes: list[Node] = []
        self.row_of: dict[int, int] = {}
        self.shared_seen: set[int] = set()

    def spend(self, size: int) -> None:
        self.budget -= size
        need(self.budget >= 0, "overlap")

    def add(self, nid: int) -> int:
        image = self.image
        inode = image.inode(nid)
        self.spend(inode.record_size + inode.xattr_size)
        for number, _, _, size in image.xattr_entries(inode):
            if number is not None and number not in self.shared_seen:
                self.shared_seen.add(number)
                self.spend(size)
        node = Node(inode, image.xattrs(inode))
        if inode.kind == stat.S_IFDIR:
            self.spend(inode.size)
        elif inode.kind == stat.S_IFLNK:
            need(0 < inode.size <= 4095, "target")
            node.data = image.read(inode)
            need(b"\0" not in node.data, "target")
            self.spend(inode.size)
        elif inode.kind == stat.S_IFREG:
            self.add_file(node)
        self.row_of[nid] = len(self.nodes)
        self.nodes.append(node)
        return self.row_of[nid]

    def add_file(self, node: Node) -> None:
        inode = node.inode
        if not inode.size:
            node.data = b""
            return
        node.extents = self.image.map(inode)
        if inode.layout == 4:
            self.spend(len(self.image.chunk_entries(inode)[1]) * (8 if inode.word & 32 else 4))
        self.spend(inode.tail_size)
        if inode.tail_size == inode.size:
            node.data = self.image.read(inode)
        elif inode.layout == 0 and node.extents[0][3] is not None and inode.size <= min(BLOCK, self.small_budget):
            self.small_budget -= inode.size
            at = node.extents[0][3]
            node.data = self.image.image[at : at + inode.size] if at + inode.size <= len(self.image.image) else None

    def run(self) -> list[Node]:
        need(self.image.checksum_ok, "checksum")
        self.add(self.image.root_nid)
        need(self.nodes[0].inode.kind == stat.S_IFDIR, "root")
        parents = {0: 0}
        row = 0
        while row < len(self.nodes):
            if self.nodes[row].inode.kind == stat.S_IFDIR:
                self.visit(row, parents)
            row += 1
        subdirectories = [0] * len(self.nodes)
        for child, parent in parents.items():
            subdirectories[parent] += child != 0
        for row, node in enumerate(self.nodes):
            is_dir = node.inode.kind == stat.S_IFDIR
            need(node.inode.nlink == (2 + subdirectories[row] if is_dir else len(node.links)), "nlink")
        need(len(self.nodes) == self.image.inodes, "inode count")
        return self.nodes

    def visit(self, row: int, parents: dict[int, int]) -> None:
        entries = self.image.entries(self.nodes[row].inode)
        names = [name for name, _, _ in entries]
        need(names == sorted(set(names)), "order")
        dots = {b".": self.nodes[row].inode.nid, b"..": self.nodes[parents[row]].inode.nid}
        need(b"." in names and b".." in names, "dots")
        for name, nid, kind in entries:
            if name in dots:
                need((nid, kind) == (dots[name], 2), "dots")
                continue
            is_new = nid not in self.row_of
            child = self.add(nid) if is_new else self.row_of[nid]
            node = self.nodes[child]
            need(FILE_TYPES[node.inode.kind] == kind, "file type")
            if node.inode.kind == stat.S_IFDIR:
                need(is_new, "directory named twice")
                parents[child] = row
            node.links.append((row, name))
