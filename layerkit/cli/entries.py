"""How inodes are shown by `files` and `diff`: one line or one JSON object. `cli` only; pure."""

from __future__ import annotations

import datetime
import os
import stat
from typing import Any

from layerkit.cli.output import shown
from layerkit.layer.facts import path_text
from layerkit.layer.tree import Inode
from layerkit.layer.whiteouts import is_opaque, is_whiteout

_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFCHR: "char",
          stat.S_IFBLK: "block", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}  # fmt: skip


def type_of(inode: Inode) -> str:
    """file, directory, symlink, char, block, fifo, socket or whiteout."""
    return "whiteout" if is_whiteout(inode) else _TYPES.get(stat.S_IFMT(inode.mode), "unknown")


def entry_json(path: bytes, inode: Inode, links: int = 1) -> dict[str, Any]:
    """An inode as JSON; names that are not UTF-8 are spelled as in docs/formats/facts.md."""
    value: dict[str, Any] = {
        "path": "/" + path_text(path), "type": type_of(inode), "mode": f"{stat.S_IMODE(inode.mode):04o}",
        "uid": inode.uid, "gid": inode.gid, "size": inode.size, "mtime_ns": inode.mtime_ns,
    }  # fmt: skip
    if inode.is_symlink and isinstance(inode.body, bytes):
        value["target"] = path_text(inode.body)
    if stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode):
        value["device"] = [os.major(inode.rdev), os.minor(inode.rdev)]
    if links > 1:
        value["links"] = links
    if inode.xattrs:
        value["xattrs"] = {path_text(name): inode.xattrs[name].hex() for name in sorted(inode.xattrs)}
    if is_opaque(inode):
        value["opaque"] = True
    return value


def entry_line(path: bytes, inode: Inode, links: int = 1) -> str:
    """An inode as `ls -l` shows one."""
    is_device = stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode)
    size = f"{os.major(inode.rdev)},{os.minor(inode.rdev)}" if is_device else str(inode.size)
    mode = "w---------" if is_whiteout(inode) else stat.filemode(inode.mode)
    mark = "+" if inode.xattrs else " "
    line = f"{mode}{mark} {links:2} {inode.uid:5} {inode.gid:5} {size:>11} {_time(inode.mtime_ns)} /{shown(path)}"
    return f"{line} -> {shown(inode.body)}" if inode.is_symlink and isinstance(inode.body, bytes) else line


def _time(mtime_ns: int) -> str:
    seconds = mtime_ns // 1_000_000_000
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}".ljust(16)  # beyond the year 9999
    return moment.strftime("%Y-%m-%d %H:%M")
