"""What a tar member says of an inode: type, mode, owner, time, device, xattrs, ACLs. `build` only; one thread."""

from __future__ import annotations

import os
import stat
from base64 import b64decode
from binascii import Error as Base64Error
from urllib.parse import unquote_to_bytes

from layerkit.build import tar_format
from layerkit.build.posix_acl import FindId, acl_to_xattr
from layerkit.build.tar_format import TarMember
from layerkit.errors import ArchiveError
from layerkit.layer.scan import is_kept_xattr
from layerkit.layer.tree import Inode
from layerkit.layer.whiteouts import refuse_foreign

_TYPES = {
    tar_format.REGULAR: stat.S_IFREG, tar_format.DIRECTORY: stat.S_IFDIR, tar_format.SYMLINK: stat.S_IFLNK,
    tar_format.CHAR: stat.S_IFCHR, tar_format.BLOCK_DEVICE: stat.S_IFBLK, tar_format.FIFO: stat.S_IFIFO,
}  # fmt: skip
_ACLS = {b"SCHILY.acl.access": b"system.posix_acl_access", b"SCHILY.acl.default": b"system.posix_acl_default"}
_MAX_ID = 0xFFFFFFFF
_MAX_TIME_NS = (1 << 62) * 1_000_000_000
_MAX_MAJOR, _MAX_MINOR = 0xFFFFFFFF, 0xFFFFFFFF


def inode_of(member: TarMember) -> Inode:
    """The inode without its body.

    Raises:
        ArchiveError: values that no inode can have.
        InputError: what overlayfs would reinterpret (B24).
    """
    kind = _TYPES[member.type]
    for value, what in ((member.uid, "uid"), (member.gid, "gid")):
        if not 0 <= value <= _MAX_ID:
            raise ArchiveError(f"{member.shown()!r} has the {what} {value}")
    if abs(member.mtime_ns) > _MAX_TIME_NS:
        raise ArchiveError(f"{member.shown()!r} has an impossible time")
    xattrs = _xattrs(member)
    rdev = _device(member) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
    refuse_foreign(member.name.strip(b"/"), kind, rdev, xattrs)
    mode = 0o777 if kind == stat.S_IFLNK else member.mode & 0o7777
    return Inode(kind | mode, member.uid, member.gid, member.mtime_ns, rdev, xattrs)


def _device(member: TarMember) -> int:
    if not (0 <= member.major <= _MAX_MAJOR and 0 <= member.minor <= _MAX_MINOR):
        raise ArchiveError(f"{member.shown()!r} has the impossible device number {member.major},{member.minor}")
    return os.makedev(member.major, member.minor)


def _xattrs(member: TarMember) -> dict[bytes, bytes]:
    """Those that a scan of the unpacked directory would keep."""
    found: dict[bytes, bytes] = {}
    for key, text in member.records.items():
        if key.startswith(b"SCHILY.xattr."):
            name, value = key.removeprefix(b"SCHILY.xattr."), text
        elif key.startswith(b"LIBARCHIVE.xattr."):
            # libarchive archive_write_set_format_pax.c: name in URL spelling, value in base64 without padding.
            name, value = unquote_to_bytes(key.removeprefix(b"LIBARCHIVE.xattr.")), _from_base64(text, member)
        else:
            continue
        if is_kept_xattr(name):
            # Of one attribute in both spellings the first stays: they say the same.
            found.setdefault(name, value)
    return found


def has_acls(member: TarMember) -> bool:
    """Whether `set_acls` has something to do."""
    return any(key in member.records for key in _ACLS)


def set_acls(inode: Inode, member: TarMember, find_id: FindId) -> None:
    """Give an inode the ACLs that its member has as text.

    Raises:
        ArchiveError: see `acl_to_xattr`.
    """
    for key, name in _ACLS.items():
        if key in member.records and (value := acl_to_xattr(member.records[key], find_id)):
            inode.xattrs.setdefault(name, value)


def _from_base64(value: bytes, member: TarMember) -> bytes:
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except Base64Error as error:
        raise ArchiveError(f"an xattr of {member.shown()!r} is not in base64") from error
