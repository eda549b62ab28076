"""Whiteouts and opaque directories in their three spellings; nothing else in layerkit knows them. Pure; any thread.

Imported by everything from rank 2 up. Inside layerkit a whiteout is a char 0:0 inode and an opaque directory carries
`trusted.overlay.opaque`. The other spellings are translated at the border: `.wh.` names of OCI tars, and the
`user.overlay.` xattrs of an overlay mounted with `userxattr` (Linux Documentation/filesystems/overlayfs.rst). layerkit
writes explicit whiteouts only, because they mean the same to root and inside a user namespace, where
`trusted.overlay.opaque` is ignored.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from layerkit.errors import ArchiveError, InputError
from layerkit.layer.tree import Inode

OPAQUE_XATTR = b"trusted.overlay.opaque"
OPAQUE_VALUE = b"y"

_SPACES = (b"trusted.overlay.", b"user.overlay.")
# What overlayfs notes for itself in an upper directory (fs/overlayfs/overlayfs.h): says nothing about the tree.
_BOOKKEEPING = frozenset({b"origin", b"impure", b"nlink", b"upper", b"uuid", b"protattr"})

_OCI_PREFIX = b".wh."
_OCI_OPAQUE = b".wh..wh..opq"
_OCI_META_PREFIX = b".wh..wh."


def is_whiteout(inode: Inode) -> bool:
    """Whether the inode hides the name it stands under: a character device 0:0."""
    return inode.rdev == 0 and stat.S_ISCHR(inode.mode)


def is_opaque(inode: Inode) -> bool:
    """Whether the directory hides all that lower layers hold under its name."""
    return bool(inode.xattrs) and inode.xattrs.get(OPAQUE_XATTR) == OPAQUE_VALUE and inode.is_dir


def make_whiteout() -> Inode:
    """A new whiteout; it has no attributes of its own, so that equal differences have equal bytes."""
    return Inode(stat.S_IFCHR)


def set_opaque(directory: Inode) -> None:
    """Mark a directory as opaque."""
    directory.xattrs[OPAQUE_XATTR] = OPAQUE_VALUE


def without_opaque(xattrs: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """A copy of the xattrs without the opaque mark."""
    return {name: value for name, value in xattrs.items() if name != OPAQUE_XATTR} if xattrs else {}


class OciMark(NamedTuple):
    """What a `.wh.` name in an OCI layer says about the folder it stands in.

    Attributes:
        hides: the name that is deleted, b'' when the mark is about the whole folder or about nothing.
        opaque: the folder is opaque.
    """

    hides: bytes = b""
    opaque: bool = False


def read_oci_name(name: bytes) -> OciMark | None:
    """The meaning of the last part of a path in an OCI layer; None when it is an ordinary name.

    `.wh..wh..opq` is the opaque mark and never the whiteout of `.wh..opq`; other names that begin with `.wh..wh.` are
    AUFS's own and mean nothing (OCI image-spec layer.md, moby pkg/archive).

    Raises:
        ArchiveError: a whiteout of nothing, or of `.` or `..`.
    """
    if not name.startswith(_OCI_PREFIX):
        return None
    if name == _OCI_OPAQUE:
        return OciMark(opaque=True)
    if name.startswith(_OCI_META_PREFIX):
        return OciMark()
    hidden = name[len(_OCI_PREFIX) :]
    if hidden in (b"", b".", b".."):
        raise ArchiveError("a whiteout that names nothing", where=os.fsdecode(name))
    return OciMark(hides=hidden)


def oci_whiteout_name(name: bytes, where: bytes = b"") -> bytes:
    """The OCI spelling of the whiteout of `name`.

    Raises:
        InputError: `name` itself begins with `.wh.`, for which OCI layers have no spelling.
    """
    check_oci_name(name, where)
    return _OCI_PREFIX + name


def check_oci_name(name: bytes, where: bytes = b"") -> None:
    """Refuse a name that would be read as a mark when it is written to an OCI layer; raises InputError."""
    if name.startswith(_OCI_PREFIX):
        raise InputError(
            "names that begin with .wh. cannot be written to an OCI layer", where=os.fsdecode(where or name)
        )


def _overlay_key(name: bytes) -> bytes | None:
    for space in _SPACES:
        if name.startswith(space):
            return name[len(space) :]
    return None


def refuse_foreign(path: bytes, mode: int, rdev: int, xattrs: dict[bytes, bytes]) -> None:
    """Refuse what overlayfs would reinterpret in a tree that is not an overlay's upper directory.

    Raises:
        InputError: a char 0:0 device, or an xattr of overlayfs in either spelling.
    """
    if rdev == 0 and stat.S_ISCHR(mode):
        raise InputError(
            "a character device 0:0 cannot be kept: overlayfs takes it for a deleted file",
            where=os.fsdecode(path), hint="remove it, or read the folder as the upper directory of an overlay",
        )  # fmt: skip
    for name in xattrs:
        if _overlay_key(name) is not None:
            raise InputError(
                f"the xattr {os.fsdecode(name)} cannot be kept: it belongs to overlayfs",
                where=os.fsdecode(path), hint="remove it, or read the folder as the upper directory of an overlay",
            )  # fmt: skip


def translate_upper(path: bytes, xattrs: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The xattrs of an inode in an overlay's upper directory as a layer holds them.

    Both spellings of the opaque mark become layerkit's, bookkeeping goes.

    Raises:
        InputError: the inode holds only half of itself (redirect, metacopy, whiteouts as xattrs, nested overlays).
    """
    result: dict[bytes, bytes] = {}
    for name, value in xattrs.items():
        key = _overlay_key(name)
        if key is None:
            result[name] = value
        elif key == b"opaque" and value == OPAQUE_VALUE:
            result[OPAQUE_XATTR] = OPAQUE_VALUE
        elif key not in _BOOKKEEPING:
            raise InputError(
                f"the upper directory holds {os.fsdecode(name)}={os.fsdecode(value[:40])}, which is not understood",
                where=os.fsdecode(path),
                hint="mount the overlay with redirect_dir=off,metacopy=off and no overlay inside its upper directory",
            )
    return result
