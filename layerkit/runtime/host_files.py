"""Files of the host's that a sandbox sees in an edited form: resolv.conf, hosts, CA bundle, profile.

Pure functions and reads. Used by the container backend; any thread.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerkit.errors import UnsupportedError

RESOLV_CONF = Path("/etc/resolv.conf")
SYSTEMD_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
PROFILE_PATH = "/etc/profile.d/layerkit.sh"
# Debian and Alpine; Fedora; SUSE; OpenSSL's default on Alpine. The first that the host has is the source.
CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
CA_INSIDE = "/dev/.layerkit-ca.pem"
CA_VARIABLES = (
    "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolver:
    """Name servers as a sandbox uses them.

    Args:
        resolv_conf: what stands in the sandbox's /etc/resolv.conf.
        servers: addresses it may reach on port 53.
        redirect: the host's own resolver on loopback that an address of the sandbox's stands for; '' when none does.
    """

    resolv_conf: str
    servers: tuple[str, ...] = ()
    redirect: str = ""


def read_resolv_conf() -> str:
    """The host's resolver settings; systemd-resolved's own upstream list where the host only names its stub."""
    try:
        text = RESOLV_CONF.read_text()
    except OSError:
        return ""
    servers = nameservers(text)
    if servers and all(_is_loopback(server) for server in servers) and SYSTEMD_RESOLV_CONF.exists():
        return SYSTEMD_RESOLV_CONF.read_text()
    return text


def nameservers(resolv_conf: str) -> list[str]:
    """The addresses of its `nameserver` lines, scope ids cut off; lines that are no addresses are left out."""
    found = []
    for line in resolv_conf.splitlines():
        fields = line.split("#")[0].split(";")[0].split()
        if len(fields) >= 2 and fields[0] == "nameserver":
            address = fields[1].partition("%")[0]
            if _is_address(address):
                found.append(address)
    return found


def rewrite_resolv_conf(resolv_conf: str, servers: Sequence[str]) -> str:
    """The same settings with other name servers."""
    kept = [line for line in resolv_conf.splitlines() if line.split()[:1] not in (["nameserver"], [])]
    return "\n".join([*(f"nameserver {server}" for server in servers), *kept]) + "\n"


def _is_address(text: str) -> bool:
    import ipaddress  # 3 ms that a sandbox without network does not need

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(text: str) -> bool:
    return text.startswith("127.") or text == "::1"


def hosts_file(hostname: str) -> str:
    """/etc/hosts of a sandbox."""
    return (
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
        f"127.0.1.1\t{hostname}\n"
    )  # fmt: skip


def profile_script(additions: Sequence[str]) -> bytes:
    """A profile file that puts folders at the front of PATH, the first one foremost, each once."""
    lines = ["# Made by layerkit: what the stack's toolkits add to PATH."]
    for folder in reversed(additions):
        quoted = shlex.quote(folder)
        lines.append(f'case ":$PATH:" in *:{quoted}:*) ;; *) PATH={quoted}:"$PATH" ;; esac')
    return "\n".join([*lines, "export PATH", ""]).encode()


def host_ca_bundle() -> Path:
    """The host's bundle of trusted certificates.

    Raises:
        UnsupportedError: there is none in the usual places.
    """
    for name in CA_BUNDLES:
        path = Path(name)
        if path.is_file():
            return path.resolve()
    raise UnsupportedError("this host has no CA bundle", hint="install the package ca-certificates")


def ca_environment() -> dict[str, str]:
    """The variables by which common programs find a CA bundle."""
    return dict.fromkeys(CA_VARIABLES, CA_INSIDE)
