"""NAT links: what is reached, what is not, and that nothing stays."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layerkit.runtime import network
from layerkit.runtime.host_files import nameservers, read_resolv_conf, rewrite_resolv_conf
from layerkit.runtime.netlink import Netlink
from tests.container.conftest import Start

POOL = ipaddress.IPv4Network("10.213.0.0/16")
CONNECT = "exec 3<>/dev/tcp/{0}/{1} && echo open"


def reach(sandbox: object, address: str, port: int) -> bool:
    done = sandbox.exec(["bash", "-c", CONNECT.format(address, port)], timeout_s=5)  # type: ignore[attr-defined]
    return bool(done.stdout == b"open\n")


class Listener:
    """A TCP server on every address of the host."""

    def __enter__(self) -> int:
        self._socket = socket.create_server(("0.0.0.0", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.privileged
def test_nat_reaches_out_but_not_the_host(start: Start) -> None:
    sandbox, other = start(network="nat"), start(network="nat")
    with Netlink() as host:
        addresses = [str(ipaddress.IPv4Address(d)) for d, prefix, _ in host.routes() if prefix == 32 and d[3] != 255]
        gateways = [name for name in host.links() if name.startswith(network.LINK_PREFIX)]
    assert len(gateways) >= 2
    with Listener() as port:
        assert socket.create_connection(("127.0.0.1", port), 2)
        for address in {*addresses, "127.0.0.1"} - {"0.0.0.0"}:
            assert not reach(sandbox, address, port), address
    assert not reach(sandbox, "169.254.169.254", 80)
    inside = other.exec(["bash", "-c", "cat /proc/net/fib_trie"]).stdout.decode()
    neighbour = next(line.split()[-1] for line in inside.splitlines() if "|-- 10." in line)
    assert not reach(sandbox, neighbour, 80)
    for server in nameservers(sandbox.exec(["cat", "/etc/resolv.conf"]).stdout.decode()):
        assert reach(sandbox, server, 53)
    # Raw sockets and changes to the link are out of reach.
    assert sandbox.exec(["bash", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).exit_code != 0


@pytest.mark.privileged
def test_nat_links_in_parallel_and_after_the_last(start: Start) -> None:
    forwarding = {path: path.read_text() for path in Path("/proc/sys/net/ipv4/conf").glob("*/forwarding")}
    with ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(lambda _: start(network="nat"), range(6)))
    routes = [box.exec(["cat", "/proc/net/route"]).stdout for box in boxes]
    assert len(set(routes)) == len(boxes)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda box: box.stop(), boxes))
    if not any(name.startswith(network.LINK_PREFIX) for name in os.listdir("/sys/class/net")):
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        assert network.TABLE not in tables
        assert {path: path.read_text() for path in forwarding} == forwarding


def test_pool_avoids_routes() -> None:
    def route(text: str) -> tuple[bytes, int, int]:
        net = ipaddress.IPv4Network(text)
        return net.network_address.packed, net.prefixlen, 1

    assert network.choose_pool([route("0.0.0.0/0")]) == POOL
    assert str(network.choose_pool([route("10.0.0.0/8")])) == "172.29.0.0/16"
    assert str(network.choose_pool([route("10.213.7.0/24"), route("10.87.0.1/32")])) == "172.29.0.0/16"
    with pytest.raises(Exception, match="overlaps"):
        network.choose_pool(
            [route("10.0.0.0/8"), route("172.16.0.0/12"), route("100.64.0.0/10"), route("192.168.0.0/16")]
        )


def test_slots_do_not_collide() -> None:
    taken: set[str] = set()
    names = set()
    for number in range(500):
        link = network.choose_link(POOL, taken, f"id{number}")
        assert len(link.name) <= 15
        assert link.address not in names
        names |= {link.address, link.gateway}
        taken.add(link.name)
    full = [f"{network.LINK_PREFIX}{slot:04x}-0000000" for slot in range(network.SLOTS)]
    with pytest.raises(Exception, match="no free slot"):
        network.choose_link(POOL, full, "x")


@pytest.mark.parametrize(
    ("text", "servers", "redirect"),
    [
        ("nameserver 192.0.2.53\nsearch a b\noptions ndots:1\n", ("192.0.2.53",), ""),
        ("nameserver 127.0.0.53\n", ("10.213.255.254",), "127.0.0.53"),
        ("nameserver 127.0.0.53\nnameserver 9.9.9.9\n", ("9.9.9.9",), ""),
        ("nameserver fe80::1%eth0\nnameserver 2001:db8::1\n", (), ""),
        ("# nameserver 1.1.1.1\nnameserver not-an-address\nnameserver\n", (), ""),
        ("", (), ""),
    ],
)
def test_resolvers(text: str, servers: tuple[str, ...], redirect: str) -> None:
    plan = network.plan_resolver(text, POOL)
    assert (plan.servers, plan.redirect) == (servers, redirect)
    assert tuple(nameservers(plan.resolv_conf)) == servers
    assert ("ndots" in plan.resolv_conf) == ("ndots" in text)


def test_resolv_conf_keeps_the_rest() -> None:
    assert rewrite_resolv_conf("nameserver 1.1.1.1\n\nsearch x\n", ["8.8.8.8"]) == "nameserver 8.8.8.8\nsearch x\n"
    assert isinstance(read_resolv_conf(), str)


@pytest.mark.privileged
@pytest.mark.parametrize("text", ["nameserver 127.0.0.53\n", "nameserver 192.0.2.53\n", ""])
def test_rules_are_valid(text: str) -> None:
    rules = network.ruleset(POOL, network.plan_resolver(text, POOL))
    done = subprocess.run(["nft", "--check", "-f", "-"], input=rules.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
