"""Images to read: made by mkfs.erofs from trees, and put together by hand."""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.core.erofs_by_hand import (
    CHUNKS,
    DIRECTORY,
    FILE,
    INLINE,
    LINK,
    PLAIN,
    HandImage,
    compact,
    extended,
    tree,
    xattr_body,
    xattr_entry,
)

MKFS_OPTIONS: dict[str, Sequence[str]] = {
    "plain": (),
    "chunks": ("--chunksize=4096",),
    "big-chunks": ("--chunksize=65536",),
    "shared-xattrs": ("-x1",),
    "extended": ("-Eforce-inode-extended",),
    "no-inline": ("-Enoinline_data",),
}


# Version 2; owner rw, user 1000 r, group r, mask r, others r (Linux include/uapi/linux/posix_acl_xattr.h).
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, bits, who)
    for tag, bits, who in (
        (1, 6, 0xFFFFFFFF),
        (2, 4, 1000),
        (4, 4, 0xFFFFFFFF),
        (16, 4, 0xFFFFFFFF),
        (32, 4, 0xFFFFFFFF),
    )
)


def make_tree(root: Path, *, files: int = 60, seed: int = 1) -> Path:
    """Every file type, odd names, hard links, xattrs, holes and sizes around block edges."""
    source = random.Random(seed)
    (root / "deep/er/est").mkdir(parents=True)
    (root / "many").mkdir()
    (root / "empty-dir").mkdir()
    for number in range(files):
        path = root / "many" / f"{number:04}-{'n' * source.choice([1, 40, 240])}"
        path.write_bytes(source.randbytes(source.choice([0, 1, 100, 3000])))
        os.setxattr(path, "user.common", b"the same for all")
        if number % 7 == 0:
            os.setxattr(path, f"user.own{number}", source.randbytes(number))
    for size in (4095, 4096, 4097, 8192, 70_000):
        (root / f"size-{size}").write_bytes(source.randbytes(size))
    os.truncate(root / "size-70000", 300_000)
    (root / "twin").write_bytes((root / "size-8192").read_bytes())
    # mkfs.erofs 1.5 cuts names of 255 bytes short; those are made by hand.
    for at, name in enumerate((b"!before-dot", b"-dash", b"\xff\xfe not utf-8", b"z" * 254, b"..three")):
        (root / os.fsdecode(name)).write_bytes(b"x" * at)
    os.link(root / "size-4097", root / "deep/er/hard-link")
    os.link(root / "size-4097", root / "deep/hard-link")
    os.symlink("size-4096", root / "link")
    os.symlink("t" * 4000, root / "deep/long-link")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(root / "socket"))
    os.chmod(root / "size-4095", 0o6755)
    os.chmod(root / "empty-dir", 0o1777)
    os.setxattr(root / "size-4095", "user.empty", b"")
    os.setxattr(root / "deep", "user.on-a-directory", b"\0binary\0")
    if os.geteuid() == 0:
        os.mknod(root / "char", stat.S_IFCHR | 0o600, os.makedev(259, 70_000))
        os.mknod(root / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
        os.chown(root / "size-4096", 70_000, 4_000_000_000)
        os.setxattr(root / "size-4096", "trusted.overlay.opaque", b"y")
    return root


def make_small_tree(root: Path) -> Path:
    """A small tree whose larger files are zeros, so that mutations of its image hit metadata."""
    make_tree(root, files=15, seed=2)
    for path in [*root.glob("size-*"), root / "twin"]:
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, min(size, 9000))
    return root


def mkfs(target: Path, root: Path, *options: str) -> bytes:
    """The image that mkfs.erofs makes of a tree; times and UUID fixed."""
    uuid = "00000000-0000-0000-0000-000000000001"
    command = ["mkfs.erofs", "-T1700000000", f"-U{uuid}", *options, str(target), str(root)]
    subprocess.run(command, check=True, capture_output=True)
    return target.read_bytes()


def by_hand() -> HandImage:
    """One of everything that a layer's image holds: data device, chunk maps, inline files, xattrs, hard links."""
    hand = HandImage(mapped=8, data_blocks=1000, epoch=(-5, 250_000_000), xattr_blkaddr=3)
    hand.extra[3] = xattr_entry(1, b"shared", b"value") + xattr_entry(6, b"capability", b"\1\0\0\2" + bytes(16))
    both = xattr_body([(1, b"own", b""), (2, b"", ACL)], shared=[0, 4])
    sparse = struct.pack("<4I", 100, 0xFFFFFFFF, 116, 8)
    indexes = struct.pack("<HHIHHIHHI", 0, 0, 20, 0, 0, 0xFFFFFFFF, 0, 0, 28)
    names = {
        b"flat": (70, FILE), b"twin": (71, FILE), b"inline": (72, FILE), b"sparse": (74, FILE), b"indexes": (78, FILE),
        b"link": (82, LINK), b"dir": (84, DIRECTORY), b"old": (110, FILE), b"null": (114, stat.S_IFCHR | 0o666),
        b"disk": (116, stat.S_IFBLK | 0o660), b"pipe": (118, stat.S_IFIFO | 0o600),
        b"sock": (119, stat.S_IFSOCK | 0o700), b"empty": (120, FILE), b"hole": (122, FILE), b"\xff": (112, FILE),
    }  # fmt: skip
    hand.slots = {
        40: tree(40, names),
        70: compact(PLAIN, FILE, size=10_000, word=8),
        71: compact(PLAIN, FILE, size=10_000, word=8),
        72: compact(INLINE, FILE, size=5, word=0xFFFFFFFF, xattrs=xattr_body(shared=[0]), tail=b"hello"),
        74: compact(CHUNKS, FILE, size=3 * 65536 + 1, word=4, tail=sparse),
        78: compact(CHUNKS, FILE, size=3 * 4096, word=0x20, tail=indexes),
        82: compact(INLINE, LINK, size=6, word=0xFFFFFFFF, tail=b"target"),
        84: tree(84, {b"again": (112, FILE), b"sub": (90, DIRECTORY)}, parent=40),
        90: tree(90, {}, parent=84),
        110: extended(PLAIN, FILE, size=3 << 20, word=108, uid=4_294_967_294, gid=70_000, mtime=-(1 << 33), nsec=7),
        112: compact(INLINE, FILE, size=2, word=0, nlink=2, tail=b"xy"),
        114: compact(PLAIN, stat.S_IFCHR | 0o666, word=(1 << 8) | 3),
        116: extended(PLAIN, stat.S_IFBLK | 0o660, word=(259 << 8) | (70_000 & 0xFF) | (70_000 & ~0xFF) << 12),
        118: compact(PLAIN, stat.S_IFIFO | 0o600),
        119: compact(PLAIN, stat.S_IFSOCK | 0o700),
        120: compact(PLAIN, FILE),
        122: extended(CHUNKS, FILE, size=1 << 40, word=27, xattrs=both, mtime=1 << 34, tail=b"\xff" * 8),
    }  # fmt: skip
    return hand
