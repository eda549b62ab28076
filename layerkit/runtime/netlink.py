"""Network links, addresses and routes by rtnetlink, also inside another network namespace; standard library only.

Used by `runtime.network`. A `Netlink` is one socket and belongs to one thread.

Sources: rtnetlink(7), include/uapi/linux/{rtnetlink,if_link,if_addr,veth}.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from types import TracebackType

from layerkit._util import syscalls

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_NEWROUTE, _RTM_GETROUTE = 20, 24, 26
_REQUEST, _ACK, _DUMP, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 4, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_IFF_UP = 1
_BUFFER = 1 << 16


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + b"\0" * (-size % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            break
        found[kind & 0x3FFF] = data[4:size]
        data = data[size + (-size % 4) :]
    return found


class Netlink:
    """A route netlink socket of one network namespace.

    Args:
        namespace: an fd of the network namespace; None for the calling thread's own.
    """

    def __init__(self, namespace: int | None = None) -> None:
        self._sequence = 0
        if namespace is None:
            self._socket = _route_socket()
            return
        # A socket stays in the namespace it was made in; only this thread goes there, for a moment.
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(namespace, syscalls.CLONE_NEWNET)
            try:
                self._socket = _route_socket()
            finally:
                syscalls.setns(own, syscalls.CLONE_NEWNET)
        finally:
            os.close(own)

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _call(self, kind: int, flags: int, body: bytes) -> None:
        for _ in self._exchange(kind, flags | _ACK, body):
            pass

    def _exchange(self, kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
        """Send one request; yield the (type, body) of what comes back until its end. Raises OSError."""
        self._sequence += 1
        header = struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, self._sequence, 0)
        self._socket.send(header + body)
        while True:
            data = self._socket.recv(_BUFFER)
            while len(data) >= 16:
                size, answer, _, sequence, _ = struct.unpack_from("=IHHII", data)
                content, data = data[16:size], data[size + (-size % 4) :]
                if sequence != self._sequence:
                    continue
                if answer == _NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", content)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return
                if answer == _NLMSG_DONE:
                    return
                yield answer, content

    def links(self) -> dict[str, tuple[int, int]]:
        """Name → (number, MTU) of every link."""
        found = {}
        for _, body in self._exchange(_RTM_GETLINK, _DUMP, _link()):
            (number,) = struct.unpack_from("=i", body, 4)
            values = _attributes(body[16:])
            mtu = struct.unpack("=I", values[_IFLA_MTU])[0] if _IFLA_MTU in values else 1500
            found[values[_IFLA_IFNAME].rstrip(b"\0").decode()] = (number, mtu)
        return found

    def routes(self) -> list[tuple[bytes, int, int]]:
        """(destination as 4 bytes, prefix length, link number) of every IPv4 route, local ones included."""
        found = []
        for _, body in self._exchange(_RTM_GETROUTE, _DUMP, struct.pack("=BBBBBBBBI", socket.AF_INET, *[0] * 8)):
            values = _attributes(body[12:])
            link = struct.unpack("=I", values[_RTA_OIF])[0] if _RTA_OIF in values else 0
            found.append((values.get(_RTA_DST, bytes(4)), body[1], link))
        return found

    def add_veth(self, name: str, peer: str, peer_namespace: int, mtu: int) -> None:
        """Make a pair of links in one step, the peer in another namespace. FileExistsError when the name is taken."""
        far = _link() + _attribute(_IFLA_IFNAME, peer.encode() + b"\0") + _attribute(_IFLA_MTU, struct.pack("=I", mtu))
        far += _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
        data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
        body = _link() + _attribute(_IFLA_IFNAME, name.encode() + b"\0") + _attribute(_IFLA_MTU, struct.pack("=I", mtu))
        body += _attribute(_IFLA_LINKINFO, _attribute(_IFLA_INFO_KIND, b"veth") + data)
        self._call(_RTM_NEWLINK, _CREATE | _EXCLUSIVE, body)

    def delete_link(self, name: str) -> None:
        """Delete a link with its peer. OSError ENODEV when there is none."""
        self._call(_RTM_DELLINK, 0, _link() + _attribute(_IFLA_IFNAME, name.encode() + b"\0"))

    def set_up(self, name: str) -> None:
        """Switch a link on."""
        body = struct.pack("=BxHiII", 0, 0, 0, _IFF_UP, _IFF_UP) + _attribute(_IFLA_IFNAME, name.encode() + b"\0")
        self._call(_RTM_NEWLINK, 0, body)

    def add_address(self, name: str, address: bytes, prefix: int) -> None:
        """Give a link an IPv4 address."""
        number = self.links()[name][0]
        body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, number)
        body += _attribute(_IFA_LOCAL, address) + _attribute(_IFA_ADDRESS, address)
        self._call(_RTM_NEWADDR, _CREATE | _EXCLUSIVE, body)

    def add_default_route(self, gateway: bytes) -> None:
        """Send everything else to the gateway."""
        # table main, protocol static, scope universe, type unicast
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 4, 0, 1, 0) + _attribute(_RTA_GATEWAY, gateway)
        self._call(_RTM_NEWROUTE, _CREATE | _EXCLUSIVE, body)


def _link() -> bytes:
    return struct.pack("=BxHiII", 0, 0, 0, 0, 0)


def _route_socket() -> socket.socket:
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    connection.settimeout(5.0)
    connection.bind((0, 0))
    return connection
