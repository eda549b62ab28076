"""The network of a sandbox: none, the host's, or a link of its own behind NAT; used by the container backend.

A NAT link is a veth pair; its host end is called `lkv<slot>-<tag>`. The slot decides the two addresses (a /31), the tag
is made from the sandbox's id, so that links need no bookkeeping: the kernel's own list says what is taken and whose it
is, and a pair dies with the sandbox's network namespace. What all links share, one nftables table and the forwarding
switch of the uplinks, is set up before the first and taken away after the last. A lock of the whole host covers both.
Any thread, any process.

From inside nothing of the host answers, nor loopback, link-local, multicast or other sandboxes; name servers do, on
port 53.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from layerkit._util.files import locked
from layerkit._util.process import get_program, run_program
from layerkit.errors import HostError
from layerkit.runtime.host_files import Resolver, nameservers, rewrite_resolv_conf
from layerkit.runtime.netlink import Netlink

LINK_PREFIX = "lkv"
INSIDE_NAME = "eth0"
TABLE = "layerkit_nat"
SLOTS = 1 << 15
SHARED_STATE = Path("/run/layerkit-nat.json")
POOLS = ("10.213.0.0/16", "10.87.0.0/16", "172.29.0.0/16", "172.23.0.0/16", "100.99.0.0/16", "192.168.0.0/16")
FORBIDDEN = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
_ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class NatLink:
    """One sandbox's link: its host end's name and both addresses."""

    name: str
    gateway: str
    address: str


def choose_pool(routes: Iterable[tuple[bytes, int, int]]) -> ipaddress.IPv4Network:
    """The first pool that no route of the host overlaps, but for a default route.

    Raises:
        HostError: all are in use.
    """
    taken = [ipaddress.IPv4Network((destination, prefix), strict=False) for destination, prefix, _ in routes if prefix]
    for text in POOLS:
        pool = ipaddress.IPv4Network(text)
        if not any(pool.overlaps(network) for network in taken):
            return pool
    raise HostError("every address pool for NAT overlaps a route of this host", hint="use the network none or host")


def stub_address(pool: ipaddress.IPv4Network) -> str:
    """The address in the pool that stands for the host's own resolver; the last slot is never given away."""
    return str(pool[-2])


def slot_addresses(pool: ipaddress.IPv4Network, slot: int) -> tuple[str, str]:
    """(gateway, inside) of a slot."""
    return str(pool[2 * slot]), str(pool[2 * slot + 1])


def plan_resolver(resolv_conf: str, pool: ipaddress.IPv4Network) -> Resolver:
    """Keep the host's name servers; a loopback one is replaced by an address that is redirected to it."""
    servers = [server for server in nameservers(resolv_conf) if ":" not in server]
    loopback = [server for server in servers if ipaddress.ip_address(server).is_loopback]
    kept = [server for server in servers if server not in loopback]
    if kept or not loopback:
        return Resolver(rewrite_resolv_conf(resolv_conf, kept), tuple(kept))
    stub = stub_address(pool)
    return Resolver(rewrite_resolv_conf(resolv_conf, [stub]), (stub,), redirect=loopback[0])


def _refuse(condition: str) -> list[str]:
    """Rules that answer at once: an ICMP error that comes while connect(2) holds its socket is lost, a reset is not."""
    icmp = "reject with icmpx type admin-prohibited"
    return [f"{condition} meta l4proto tcp reject with tcp reset", f"{condition} {icmp}"]


def ruleset(pool: ipaddress.IPv4Network, resolver: Resolver) -> str:
    """The whole nftables table, replacing an older one in one transaction."""
    inward, outward = f'iifname "{LINK_PREFIX}*"', f'oifname "{LINK_PREFIX}*"'
    protocols = ("udp", "tcp")
    to_dns, redirect, from_stub = [], [], []
    if resolver.servers:
        servers = ", ".join(resolver.servers)
        to_dns = [f"{inward} ip daddr {{ {servers} }} {kind} dport 53 accept" for kind in protocols]
    if resolver.redirect:
        stub, own = stub_address(pool), resolver.redirect
        redirect = [f"{inward} ip daddr {stub} {kind} dport 53 dnat ip to {own}" for kind in protocols]
        from_stub = [f"{inward} ct status dnat ip daddr {own} accept"]
    chains = {
        "from_sandbox": ("filter hook prerouting priority raw", [f"{inward} fib saddr . iif oif missing drop"]),
        "to_resolver": ("nat hook prerouting priority dstnat", redirect),
        "into_host": ("filter hook input priority filter", [*to_dns, *from_stub, *_refuse(inward)]),
        "through_host": (
            "filter hook forward priority filter",
            [
                f"{outward} ct state established,related accept",
                *_refuse(outward),
                *_refuse(f"{inward} meta nfproto ipv6"),
                *to_dns,
                *_refuse(f"{inward} ip daddr {{ {', '.join(FORBIDDEN)} }}"),
            ],
        ),
        "out_of_host": (
            "nat hook postrouting priority srcnat",
            [f'ip saddr {pool} oifname != "{LINK_PREFIX}*" masquerade'],
        ),
    }
    lines = [f"table inet {TABLE}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for name, (hook, rules) in chains.items():
        lines += [f"  chain {name} {{", f"    type {hook}; policy accept;", *(f"    {rule}" for rule in rules), "  }"]
    return "\n".join([*lines, "}", ""])


class _Shared:
    """What all NAT links of the host share, in a file that is locked while this is used."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        text = os.pread(fd, 1 << 16, 0)
        self.forwarding: list[str] = json.loads(text)["forwarding"] if text else []

    def save(self) -> None:
        content = json.dumps({"forwarding": self.forwarding}).encode() if self.forwarding else b""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, content, 0)


@contextmanager
def _shared() -> Iterator[_Shared]:
    with locked(SHARED_STATE) as fd:
        yield _Shared(fd)


def _switches(link: str) -> Path:
    return Path("/proc/sys/net/ipv4/conf") / link


def _switch_on(routes: Sequence[tuple[bytes, int, int]], names: dict[int, str], state: _Shared) -> None:
    """Forward what comes back over the uplinks; remember first which of them did not before."""
    uplinks = {names[link] for _, prefix, link in routes if prefix == 0 and link in names}
    off = [name for name in uplinks if (_switches(name) / "forwarding").read_text().strip() == "0"]
    if off:
        state.forwarding = sorted({*state.forwarding, *off})
        state.save()
    for name in off:
        (_switches(name) / "forwarding").write_text("1")


def prepare(resolv_conf: str) -> Resolver:
    """The name servers that a NAT sandbox will use, and what stands in its resolv.conf.

    Raises:
        UnsupportedError: nft is not installed.
        HostError: no free pool of addresses.
    """
    get_program("nft", "nftables")
    with Netlink() as host:
        return plan_resolver(resolv_conf, _pool(host))


def _pool(host: Netlink) -> ipaddress.IPv4Network:
    ours = {number for name, (number, _) in host.links().items() if name.startswith(LINK_PREFIX)}
    return choose_pool(route for route in host.routes() if route[2] not in ours)


def connect(namespace: int, sandbox_id: str, resolver: Resolver) -> NatLink:
    """Give a network namespace a link behind NAT.

    Args:
        namespace: an fd of it; the link lives as long as the namespace.
        sandbox_id: for `disconnect`.
        resolver: from `prepare`.

    Raises:
        UnsupportedError: nft is not installed.
        HostError: no free slot or pool, or the kernel refuses.
    """
    nft = get_program("nft", "nftables")
    with _shared() as state, Netlink() as host:
        pool = _pool(host)
        links, routes = host.links(), host.routes()
        # The rules come first: a link must not exist for a moment without them.
        run_program([nft, "-f", "-"], stdin=ruleset(pool, resolver).encode())
        try:
            _switch_on(routes, {number: name for name, (number, _) in links.items()}, state)
            link = _make_link(host, namespace, choose_link(pool, links, sandbox_id), _uplink_mtu(links, routes))
            with Netlink(namespace) as inside:
                inside.add_address(INSIDE_NAME, socket.inet_aton(link.address), 31)
                inside.set_up("lo")
                inside.set_up(INSIDE_NAME)
                inside.add_default_route(socket.inet_aton(link.gateway))
        except OSError as error:
            raise HostError(f"NAT link refused: {error.strerror}", where=sandbox_id) from error
        return link


def _tag(sandbox_id: str) -> str:
    return hashlib.sha256(sandbox_id.encode()).hexdigest()[:7]


def choose_link(pool: ipaddress.IPv4Network, links: Iterable[str], sandbox_id: str) -> NatLink:
    """A link in a random free slot.

    Raises:
        HostError: every slot that was tried is taken.
    """
    taken = {name.partition("-")[0] for name in links if name.startswith(LINK_PREFIX)}
    for _ in range(_ATTEMPTS):
        slot = secrets.randbelow(SLOTS - 1)
        if f"{LINK_PREFIX}{slot:04x}" not in taken:
            return NatLink(f"{LINK_PREFIX}{slot:04x}-{_tag(sandbox_id)}", *slot_addresses(pool, slot))
    raise HostError("no free slot for a NAT link", hint="use the network none or host")


def _uplink_mtu(links: dict[str, tuple[int, int]], routes: Sequence[tuple[bytes, int, int]]) -> int:
    uplinks = {link for _, prefix, link in routes if prefix == 0}
    return min((mtu for number, mtu in links.values() if number in uplinks), default=1500)


def _make_link(host: Netlink, namespace: int, link: NatLink, mtu: int) -> NatLink:
    host.add_veth(link.name, INSIDE_NAME, namespace, mtu)
    with suppress(FileNotFoundError):
        Path(f"/proc/sys/net/ipv6/conf/{link.name}/disable_ipv6").write_text("1")
    host.add_address(link.name, socket.inet_aton(link.gateway), 31)
    host.set_up(link.name)
    (_switches(link.name) / "forwarding").write_text("1")
    # For redirects to a resolver on the host's loopback; the input chain lets nothing else in.
    (_switches(link.name) / "route_localnet").write_text("1")
    return link


def disconnect(sandbox_id: str) -> None:
    """Delete a sandbox's link, which may be gone already; with the host's last one goes what they shared."""
    ending = "-" + _tag(sandbox_id)
    with _shared() as state, Netlink() as host:
        for name in host.links():
            if name.startswith(LINK_PREFIX) and name.endswith(ending):
                with suppress(OSError):
                    host.delete_link(name)
        if any(name.startswith(LINK_PREFIX) for name in host.links()):
            return
        nft = get_program("nft", "nftables")
        run_program([nft, "-f", "-"], stdin=f"table inet {TABLE}\ndelete table inet {TABLE}\n".encode())
        for name in state.forwarding:
            with suppress(FileNotFoundError):
                (_switches(name) / "forwarding").write_text("0")
        state.forwarding = []
        state.save()
