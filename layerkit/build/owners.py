"""`--chown` and the owner of a WORKDIR: names looked up in the tree's own /etc/passwd and /etc/group. Pure.

As BuildKit: a number without a group gives the group of that number, a name without one the user's own group.
"""

from __future__ import annotations

from collections.abc import Callable

from layerkit._util.text import did_you_mean
from layerkit.build.paths import resolve
from layerkit.errors import InputError
from layerkit.layer.tree import Content, Inode

ReadBytes = Callable[[Content | bytes], bytes]

MAX_ID = 0xFFFFFFFF
MAX_TABLE_BYTES = 16 << 20


def find_owner(root: Inode, text: str, read: ReadBytes) -> tuple[int, int]:
    """(uid, gid) of `user`, `user:group`, names or numbers.

    Args:
        root: the tree.
        text: as written.
        read: gives the bytes of a small file of the tree.

    Raises:
        InputError: a name that the tree's tables do not have, or a number beyond 32 bits.
    """
    user, colon, group = text.partition(":")
    if user.isascii() and user.isdigit():
        uid = _number(user)
        gid = uid
    else:
        row = _lookup(root, b"etc/passwd", user, read)
        uid, gid = _number(row[2]), _number(row[3])
    if colon and group:
        gid = _number(group) if group.isascii() and group.isdigit() else _number(
            _lookup(root, b"etc/group", group, read)[2]
        )
    return uid, gid


def _lookup(root: Inode, path: bytes, name: str, read: ReadBytes) -> list[str]:
    table = resolve(root, path).inode
    rows: dict[str, list[str]] = {}
    if table is not None and table.is_regular and table.size <= MAX_TABLE_BYTES:
        assert isinstance(table.body, Content | bytes)
        for line in read(table.body).decode("utf-8", "replace").split("\n"):
            fields = line.split(":")
            if len(fields) >= 4:
                rows.setdefault(fields[0], fields)
    if name not in rows:
        hint = did_you_mean(name, rows) or "create it in an earlier RUN, or give a number"
        raise InputError(f"/{path.decode()} of this stage has no {name!r}", hint=hint)
    return rows[name]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > MAX_ID:
        raise InputError(f"not the number of a user or group: {text[:40]!r}")
    return int(text)
