"""The packets between serving processes and hostd (docs/formats/ensure-protocol.md); sans IO; pure functions.

One packet is one message of a SOCK_SEQPACKET Unix socket, so nothing needs framing.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from layerkit.errors import CorruptError
from layerkit.fuse.data_file import IDENTITY_SIZE, DataIdentity
from layerkit.ids import digest_hex

VERSION = 1
_HELLO = struct.Struct("<4sHHI")  # magic, version, reserved, pid
_REQUEST = struct.Struct("<4sIQ32sQQ")  # magic, reserved, id, layer, offset, length
_REPLY = struct.Struct(f"<4siQ{IDENTITY_SIZE}s")  # magic, errno, id, data file
PACKET_MAX = 128


class EnsureRequest(NamedTuple):
    """A serving process needs a range of a layer's data."""

    id: int
    layer: str
    offset: int
    length: int

    def pack(self) -> bytes:
        """The packet."""
        return _REQUEST.pack(b"LKEQ", 0, self.id, bytes.fromhex(digest_hex(self.layer)), self.offset, self.length)

    @classmethod
    def unpack(cls, packet: bytes) -> EnsureRequest:
        """Read a packet; raises CorruptError."""
        if len(packet) != _REQUEST.size or packet[:4] != b"LKEQ":
            raise CorruptError(f"not an ensure request: {packet[:8]!r}")
        _, _, number, layer, offset, length = _REQUEST.unpack(packet)
        return cls(number, "sha256:" + layer.hex(), offset, length)


class EnsureReply(NamedTuple):
    """`errno` is 0 when the range is present in the data file that `identity` names, else what the reader gets."""

    id: int
    errno: int
    identity: DataIdentity

    def pack(self) -> bytes:
        """The packet."""
        return _REPLY.pack(b"LKER", self.errno, self.id, self.identity.pack())

    @classmethod
    def unpack(cls, packet: bytes) -> EnsureReply:
        """Read a packet; raises CorruptError."""
        if len(packet) != _REPLY.size or packet[:4] != b"LKER":
            raise CorruptError(f"not an ensure reply: {packet[:8]!r}")
        _, errno, number, identity = _REPLY.unpack(packet)
        return cls(number, errno, DataIdentity.unpack(identity))


def pack_hello(pid: int) -> bytes:
    """The first packet of a serving process."""
    return _HELLO.pack(b"LKEH", VERSION, 0, pid)


def unpack_hello(packet: bytes) -> int:
    """The pid in a hello; raises CorruptError, also for another version."""
    if len(packet) != _HELLO.size or packet[:4] != b"LKEH":
        raise CorruptError(f"not a hello: {packet[:8]!r}")
    _, version, _, pid = _HELLO.unpack(packet)
    if version != VERSION:
        raise CorruptError(f"serving process speaks version {version}, hostd {VERSION}")
    return int(pid)
