"""Seeded random trees with everything that a layer must keep, for every test that compares trees.

`random_tree(seed)` gives the same tree for the same arguments on every machine; file bytes stand in `chunks` by id.
"""

from __future__ import annotations

import os
import random
import stat
import struct
from dataclasses import dataclass, field

from layerkit.layer.tree import INLINE_MAX, Inode
from tests.support.contents import Chunks, body_of

EPOCH_NS = 1_700_000_000 * 10**9
TIMES_NS = (
    0, -1, -10**9, 1, EPOCH_NS + 1, EPOCH_NS - 1, 2**31 * 10**9, 2**32 * 10**9 + 5, -(2**33) * 10**9 + 7,
    2**33 * 10**9 + 123_456_789, 2**34 * 10**9,
)  # fmt: skip
"""Times that have broken elsewhere: zero, negative, fractional, beyond 2038, 2106 and 64 bits of nanoseconds."""
ODD_NAMES = (
    b"!", b"+x", b"-", b"...", b".a", b"..b", b"\x01", b"\xff\xfe", b"\xc3\x28", b"new\nline", b"x" * 255,
    b"\xe2\x82" * 127, b" ", b"*", b".wh", b"a.b", b"a-b", b"ab", b"a",
)  # fmt: skip
SIZES = (0, 1, INLINE_MAX, INLINE_MAX + 1, 4095, 4096, 4097, 8192, 12_345, 70_000, 262_144, 262_145)
DEVICES = ((0, 0), (1, 3), (5, 255), (8, 256), (259, 65_536), (4095, 2**20 - 1))
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
"""security.capability of cap_net_raw+ep: a NUL in its second byte."""


def acl(entries: list[tuple[int, int, int]]) -> bytes:
    """A POSIX ACL as in an xattr: version 2, then (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ACL = acl([(1, 7, 2**32 - 1), (2, 5, 1000), (4, 5, 2**32 - 1), (16, 5, 2**32 - 1), (32, 5, 2**32 - 1)])


@dataclass
class RandomTree:
    """A tree and the plain bytes of its chunks."""

    root: Inode
    chunks: Chunks = field(default_factory=dict)


class _Generator:
    def __init__(self, seed: int, whiteouts: bool) -> None:
        self.random = random.Random(seed)
        self.chunks: Chunks = {}
        self.whiteouts = whiteouts
        self.bodies: list[bytes] = []

    def attributes(self, file_type: int) -> Inode:
        pick = self.random
        mode = pick.choice((0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777, 0o7777, 0, pick.randrange(0o10000)))
        ids = (0, 0, 0, 1000, 65_534, 65_535, 65_536, 2**31, 2**32 - 2)
        mtime_ns = EPOCH_NS if pick.random() < 0.6 else pick.choice((*TIMES_NS, pick.randrange(2**62)))
        inode = Inode(file_type | mode, pick.choice(ids), pick.choice(ids), mtime_ns)
        if pick.random() < 0.3:
            inode.xattrs = self.xattrs(file_type)
        return inode

    def xattrs(self, file_type: int) -> dict[bytes, bytes]:
        pick = self.random
        found: dict[bytes, bytes] = {}
        names = [b"trusted.overlay.x", b"trusted.x", b"security.selinux", b"security.x" + b"y" * pick.randrange(200)]
        if file_type in (stat.S_IFREG, stat.S_IFDIR):
            names += [b"user.a", b"user.mime_type", b"user.\xff\xfe", b"user." + b"n" * 250]
        for name in pick.sample(names, pick.randrange(1, len(names))):
            found[name] = self.value()
        if file_type == stat.S_IFREG and pick.random() < 0.2:
            found[b"security.capability"] = CAPABILITY
        if file_type != stat.S_IFLNK and pick.random() < 0.3:
            found[b"system.posix_acl_access"] = ACL
        if file_type == stat.S_IFDIR and pick.random() < 0.3:
            found[b"system.posix_acl_default"] = ACL
        return found

    def value(self) -> bytes:
        pick = self.random
        kind = pick.random()
        if kind < 0.5:
            return pick.choice((b"", b"\0", b"system_u:object_r:bin_t:s0\0", b"shared value", b"y"))
        return pick.randbytes(pick.choice((1, 2, 3, 30, 200, 5000)) if kind < 0.99 else 65_535)

    def file_bytes(self) -> bytes:
        pick = self.random
        kind = pick.random()
        if self.bodies and kind < 0.2:
            return pick.choice(self.bodies)
        size = pick.choice(SIZES) if pick.random() < 0.5 else pick.randrange(20_000)
        data = pick.randbytes(size)
        if kind > 0.93:
            data = bytes(size)
        elif kind > 0.86:
            data = pick.randbytes(pick.randrange(9000)) + bytes(pick.randrange(400_000)) + pick.randbytes(size // 9)
        self.bodies.append(data)
        return data

    def leaf(self) -> Inode:
        pick = self.random
        kinds = [stat.S_IFREG] * 8 + [stat.S_IFLNK] * 2 + [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]
        inode = self.attributes(pick.choice(kinds))
        if stat.S_ISREG(inode.mode):
            inode.body = body_of(self.file_bytes(), self.chunks)
        elif stat.S_ISLNK(inode.mode):
            inode.mode = stat.S_IFLNK | 0o777
            size = pick.choice((1, 10, 100, 4000, 4032, 4063, 4064, 4065, 4095) if pick.random() < 0.2 else (7, 20))
            inode.body = bytes(pick.choice(b"abc/\xff") for _ in range(size))
        elif stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode):
            can_be_whiteout = self.whiteouts or stat.S_ISBLK(inode.mode)
            inode.rdev = os.makedev(*pick.choice(DEVICES[0 if can_be_whiteout else 1 :]))
        return inode

    def name(self) -> bytes:
        pick = self.random
        if pick.random() < 0.1:
            return pick.choice(ODD_NAMES)
        size = pick.choice((1, 2, 5, 8, 12, 30, 100))
        return bytes(pick.choice(b"abcdefgh-._0123\xf0\xa0") for _ in range(size))


def random_tree(seed: int, *, size: int = 120, whiteouts: bool = False) -> RandomTree:
    """A tree of about `size` names: all file types, hard links of all of them, odd names, times, ids and xattrs.

    Args:
        whiteouts: char 0:0 may occur.
    """
    make = _Generator(seed, whiteouts)
    root = make.attributes(stat.S_IFDIR)
    root.body = {}
    directories, leaves = [root], []
    for _ in range(size):
        parent = make.random.choice(directories[-6:] if make.random.random() < 0.8 else directories)
        name = make.name()
        if name in (b".", b"..") or name in parent.entries:
            continue
        kind = make.random.random()
        if kind < 0.2:
            inode = make.attributes(stat.S_IFDIR)
            inode.body = {}
            directories.append(inode)
        elif kind < 0.35 and leaves:
            inode = make.random.choice(leaves)
        else:
            inode = make.leaf()
            leaves.append(inode)
        parent.entries[name] = inode
    return RandomTree(root, make.chunks)
