"""POSIX ACLs from the text that tars keep to the xattr that file systems keep. Pure; `build` only.

Text as of acl_to_text(3), also with star's fourth field, the number; bytes as of Linux
include/uapi/linux/posix_acl_xattr.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from layerkit.errors import ArchiveError

VERSION = 2
NO_ID = 0xFFFFFFFF
# Tag of an entry without and with a name.
_TAGS = {"user": (0x01, 0x02), "group": (0x04, 0x08), "mask": (0x10, 0), "other": (0x20, 0)}
_SHORT = {"u": "user", "g": "group", "m": "mask", "o": "other"}
_BITS = {"r": 4, "w": 2, "x": 1, "-": 0}
_MAX_ENTRIES = 8191


FindId = Callable[[str, str], int | None]
"""(`user` or `group`, its name) -> its number."""


def acl_to_xattr(text: bytes, find_id: FindId) -> bytes:
    """The value of `system.posix_acl_access` or `_default`; b'' for an ACL that says no more than a mode does.

    Args:
        text: entries parted by commas or lines.
        find_id: looks up names that come without a number: GNU tar writes those of the machine it runs on.

    Raises:
        ArchiveError: a line that is no entry, or a user or group without a number.
    """
    entries = set()
    for line in text.decode("utf-8", "replace").replace(",", "\n").split("\n"):
        if line := line.partition("#")[0].strip():
            entries.add(_entry(line, find_id))
    if len(entries) > _MAX_ENTRIES:
        raise ArchiveError(f"an ACL of {len(entries)} entries")
    if all(tag in (0x01, 0x04, 0x20) for tag, _, _ in entries):
        return b""
    # The kernel wants them by tag, then by number.
    rows = sorted(entries)
    return struct.pack("<I", VERSION) + b"".join(struct.pack("<HHI", tag, bits, id_) for tag, id_, bits in rows)


def _entry(line: str, find_id: FindId) -> tuple[int, int, int]:
    fields = [field.strip() for field in line.split(":")]
    word = _SHORT.get(fields[0], fields[0])
    if word in ("mask", "other") and len(fields) == 2:
        fields.insert(1, "")
    if word not in _TAGS or len(fields) not in (3, 4) or not set(fields[2]) <= _BITS.keys():
        raise ArchiveError(f"not an entry of an ACL: {line[:100]!r}")
    name, number = fields[1], fields[3] if len(fields) == 4 else fields[1]
    plain_tag, named_tag = _TAGS[word]
    bits = sum({_BITS[letter] for letter in fields[2]})
    if not name:
        return plain_tag, NO_ID, bits
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    found = int(number) if is_number else find_id(word, name)
    if not named_tag or found is None or found >= NO_ID:
        raise ArchiveError(
            f"an ACL names the {word} {name[:100]!r}, which has no number",
            hint="the archive's own etc/passwd and etc/group are asked; leave ACLs out with tar --no-acls",
        )
    return named_tag, found, bits
