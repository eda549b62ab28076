"""The slow EROFS writer: what docs/formats/meta-image.md says, in plain Python, for the C writer to agree with.

Takes a `tests.support.erofs_images.Script`. No checks: it is given valid trees only.
"""

from __future__ import annotations

import stat
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.erofs_images import Script

BLOCK, SLOT, NONE = 4096, 32, 0xFFFFFFFF
PLAIN, INLINE, CHUNKED = 0, 2, 4
PREFIXES = (
    (b"user.", 1), (b"system.posix_acl_access", 2), (b"system.posix_acl_default", 3), (b"trusted.", 4),
    (b"security.", 6),
)  # fmt: skip
TYPES = {stat.S_IFREG: 1, stat.S_IFDIR: 2, stat.S_IFCHR: 3, stat.S_IFBLK: 4, stat.S_IFIFO: 5, stat.S_IFSOCK: 6,
         stat.S_IFLNK: 7}  # fmt: skip
Xattr = tuple[bytes, bytes]


@dataclass
class Placed:
    """A node with everything that is decided about it."""

    given: dict[str, Any]
    entries: dict[bytes, int] = field(default_factory=dict)
    nlink: int = 0
    ino: int = 0
    parent: int = 0
    layout: int = PLAIN
    is_extended: bool = False
    size: int = 0
    address: int = NONE
    position: int = 0

    @property
    def type(self) -> int:
        """Its S_IFMT bits."""
        return stat.S_IFMT(self.given["mode"])

    @property
    def head(self) -> int:
        """Bytes of its inode."""
        return 64 if self.is_extended else 32


def align(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def encode_xattr(name: bytes, value: bytes) -> bytes:
    prefix, number = next(pair for pair in PREFIXES if name.startswith(pair[0]))
    raw = struct.pack("<BBH", len(name) - len(prefix), number, len(value)) + name[len(prefix) :] + value
    return raw.ljust(align(len(raw), 4), b"\0")


def link(nodes: list[Placed], links: list[tuple[int, bytes, int]]) -> list[int]:
    """Entries, link counts, and the canonical order."""
    for parent, name, child in links:
        nodes[parent].entries[name] = child
        nodes[child].nlink += 1
    for number, node in enumerate(nodes):
        if node.type != stat.S_IFDIR:
            continue
        children = [child for child in node.entries.values() if nodes[child].type == stat.S_IFDIR]
        node.nlink = 2 + len(children)
        for child in children:
            nodes[child].parent = number
    order = [0]
    pending = [0]
    nodes[0].ino = 1
    while pending:
        node = nodes[pending.pop()]
        children = [node.entries[name] for name in sorted(node.entries)]
        for child in children:
            if not nodes[child].ino:
                order.append(child)
                nodes[child].ino = len(order)
        pending += [child for child in reversed(children) if nodes[child].type == stat.S_IFDIR]
    return order


def directory_blocks(node: Placed, number: int) -> list[list[tuple[bytes, int]]]:
    entries = sorted({b".": number, b"..": node.parent, **node.entries}.items())
    blocks: list[list[tuple[bytes, int]]] = [[]]
    used = 0
    for name, child in entries:
        if used + 12 + len(name) > BLOCK:
            blocks.append([])
            used = 0
        blocks[-1].append((name, child))
        used += 12 + len(name)
    return blocks


def encode_directory(entries: list[tuple[bytes, int]], nodes: list[Placed]) -> bytes:
    at, records, names = 12 * len(entries), b"", b""
    for name, child in entries:
        nid = nodes[child].position // SLOT
        records += struct.pack("<QHBB", nid, at + len(names), TYPES[nodes[child].type], 0)
        names += name
    return records + names


def shared_xattrs(nodes: list[Placed]) -> list[Xattr]:
    counts = Counter(xattr for node in nodes for xattr in node.given["xattrs"])
    sizes = {xattr: len(encode_xattr(*xattr)) for xattr in counts}
    return sorted(x for x, count in counts.items() if count > 1 and count * sizes[x] > count * 4 + sizes[x])


def split_xattrs(node: Placed, shared: set[Xattr]) -> tuple[list[Xattr], list[Xattr]]:
    """Its shared xattrs (at most 255) and its inline ones, in order of their names."""
    ordered = sorted(node.given["xattrs"])
    referred = [xattr for xattr in ordered if xattr in shared][:255]
    return referred, [xattr for xattr in ordered if xattr not in referred]


def xattr_size(node: Placed, shared: set[Xattr]) -> int:
    if not node.given["xattrs"]:
        return 0
    referred, inline = split_xattrs(node, shared)
    return 12 + 4 * len(referred) + sum(len(encode_xattr(*xattr)) for xattr in inline)


def choose(node: Placed, number: int, epoch: int, xattrs_size: int) -> tuple[int, int]:
    """Form and data layout of a node; its tail's size and the number of its metadata blocks."""
    given = node.given
    node.size = given.get("size", 0)
    if "inline" in given:
        node.size = len(given["inline"])
    elif node.type == stat.S_IFDIR:
        blocks = directory_blocks(node, number)
        node.size = (len(blocks) - 1) * BLOCK + sum(12 + len(name) for name, _ in blocks[-1])
    node.is_extended = (
        given["mtime_ns"] != epoch or max(given["uid"], given["gid"], node.nlink) > 65535 or node.size > 0xFFFFFFFF
    )
    if node.type in (stat.S_IFCHR, stat.S_IFBLK):
        node.address = given["rdev"]
    elif node.type in (stat.S_IFIFO, stat.S_IFSOCK):
        node.address = 0
    elif "chunk_blocks" in given:
        node.layout = CHUNKED
        node.address = given["chunk_bits"] - 12
        return 4 * len(given["chunk_blocks"]), 0
    elif "block" not in given:
        blocks_count = -(-node.size // BLOCK)
        tail = node.size - (blocks_count - 1) * BLOCK if node.size else 0
        if tail and node.head + xattrs_size + tail <= BLOCK:
            node.layout = INLINE
            return tail, blocks_count - 1
        return 0, blocks_count
    return 0, 0


class Packer:
    """First fit into up to four unfinished blocks; the fullest gives way."""

    def __init__(self, start: int) -> None:
        self.open = [[0, start]]
        self.blocks = 1
        self.end = start

    def place(self, size: int) -> int:
        size = align(size, SLOT)
        found = next((one for one in self.open if one[1] + size <= BLOCK), None)
        if found is None:
            position = self.blocks * BLOCK
            self.blocks += -(-size // BLOCK)
            left = [self.blocks - 1, (size - 1) % BLOCK + 1]
            if left[1] < BLOCK:
                if len(self.open) == 4:
                    self.open.remove(max(self.open, key=lambda one: one[1]))
                self.open.append(left)
        else:
            position = found[0] * BLOCK + found[1]
            found[1] += size
            if found[1] == BLOCK:
                self.open.remove(found)
        self.end = max(self.end, position + size)
        return position


def encode_inode(node: Placed, xattrs_size: int) -> bytes:
    given = node.given
    icount = (xattrs_size - 12) // 4 + 1 if xattrs_size else 0
    start = struct.pack("<HHH", node.layout << 1 | node.is_extended, icount, given["mode"])
    if not node.is_extended:
        return start + struct.pack(
            "<HIIIIHHI", node.nlink, node.size, 0, node.address, node.ino, given["uid"], given["gid"], 0
        )  # fmt: skip
    seconds, nanoseconds = divmod(given["mtime_ns"], 10**9)
    return start + struct.pack(
        "<HQIIIIqII16x", 0, node.size, node.address, node.ino, given["uid"], given["gid"], seconds, nanoseconds,
        node.nlink,
    )  # fmt: skip


def encode_body(node: Placed, number: int, nodes: list[Placed], meta_blocks: int) -> tuple[list[bytes], bytes]:
    """Whole metadata blocks and the tail."""
    given = node.given
    if "chunk_blocks" in given:
        moved = [block if block == NONE else block + meta_blocks for block in given["chunk_blocks"]]
        return [], struct.pack(f"<{len(moved)}I", *moved)
    if node.type == stat.S_IFDIR:
        parts = [encode_directory(entries, nodes) for entries in directory_blocks(node, number)]
    else:
        parts = [given["inline"]] if given.get("inline") else []
    tail = parts.pop() if node.layout == INLINE else b""
    return parts, tail


def write(script: Script) -> bytes:
    """The image, UUID and checksum zero."""
    nodes = [Placed(given) for given in script.nodes]
    order = link(nodes, script.links)
    times = Counter(node.given["mtime_ns"] for node in nodes)
    epoch = min(times, key=lambda time: (-times[time], time))
    shared = shared_xattrs(nodes)
    packer = Packer(1024 + 128 + (128 if script.data_blocks else 0))
    xattr_sizes, block_counts = {}, {}
    for number in order:
        xattr_sizes[number] = xattr_size(nodes[number], set(shared))
        tail, block_counts[number] = choose(nodes[number], number, epoch, xattr_sizes[number])
        nodes[number].position = packer.place(nodes[number].head + xattr_sizes[number] + tail)
    ids, end = {}, packer.end
    base = packer.end // BLOCK
    for xattr in shared:
        ids[xattr] = (end - base * BLOCK) // 4
        end += len(encode_xattr(*xattr))
    next_block = -(-end // BLOCK)
    for number in order:
        if block_counts[number]:
            nodes[number].address = next_block
            next_block += block_counts[number]
    image = bytearray(next_block * BLOCK)
    for number in order:
        node = nodes[number]
        if "block" in node.given:
            node.address = node.given["block"] + next_block
        blocks, tail = encode_body(node, number, nodes, next_block)
        raw = encode_inode(node, xattr_sizes[number])
        if node.given["xattrs"]:
            referred, inline = split_xattrs(node, set(shared))
            raw += struct.pack("<IB7x", 0, len(referred)) + b"".join(struct.pack("<I", ids[x]) for x in referred)
            raw += b"".join(encode_xattr(*xattr) for xattr in inline)
        raw += tail
        image[node.position : node.position + len(raw)] = raw
        for index, block in enumerate(blocks):
            at = (node.address + index) * BLOCK
            image[at : at + len(block)] = block
    for xattr in shared:
        raw = encode_xattr(*xattr)
        at = base * BLOCK + ids[xattr] * 4
        image[at : at + len(raw)] = raw
    has_chunks = any(node.layout == CHUNKED for node in nodes)
    seconds, nanoseconds = divmod(epoch, 10**9)
    has_device = script.data_blocks > 0
    image[1024:1152] = struct.pack(
        "<IIIBBHQqIIII16x16xIHHHBBIQ24x", 0xE0F5E1E2, 0, 3, 12, 0, nodes[0].position // SLOT, len(nodes), seconds,
        nanoseconds, next_block, 0, base if shared else 0, 4 * has_chunks | 8 * has_device, 0, has_device,
        9 * has_device, 0, 0, 0, 0,
    )  # fmt: skip
    if has_device:
        image[1152:1280] = struct.pack("<64sII56x", b"data", script.data_blocks, next_block)
    return bytes(image)
