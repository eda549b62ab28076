"""Digests, names, platforms and references; standard library only; values, safe everywhere.

The grammar is in docs/refs.md. Ordering of versions and ranges is in `store.versions`.
"""

from __future__ import annotations

import hashlib
import platform as _platform
import re
from dataclasses import dataclass, replace

from layerkit.errors import RefError

KINDS = ("base", "workspace", "toolkit")
DEV_TAG = "dev"

_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_VERSION = re.compile(r"[0-9][A-Za-z0-9._+-]{0,127}")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PLATFORM = re.compile(r"([a-z0-9]+)/([a-z0-9_]+)(?:/([a-z0-9]+))?")
_RANGE = re.compile(r"[<>=!~]")
# The commas of a range are followed by an operator, those of a stack by a name.
_BETWEEN_REFS = re.compile(r",(?!\s*[<>=!~])")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def sha256_digest(data: bytes | bytearray | memoryview) -> str:
    """`sha256:<hex>` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def check_digest(text: str) -> str:
    """Return `text` when it is a full sha256 digest.

    Raises:
        RefError: anything else; digests become parts of paths, so nothing else may pass.
    """
    if not _DIGEST.fullmatch(text):
        raise RefError(f"not a digest: {text[:100]!r}", hint="a digest is sha256: and 64 hexadecimal digits")
    return text


def digest_hex(digest: str) -> str:
    """The 64 hexadecimal digits of a digest, checked."""
    return check_digest(digest)[len("sha256:") :]


def is_version(text: str) -> bool:
    """Whether the text is a version (begins with a digit), not a tag (begins with a letter)."""
    return bool(_VERSION.fullmatch(text))


def check_version_or_tag(text: str) -> str:
    """Return `text` when it is a version or a tag; raises RefError."""
    if not (_VERSION.fullmatch(text) or _TAG.fullmatch(text)):
        raise RefError(
            f"not a version or tag: {text[:100]!r}",
            hint="a version begins with a digit, a tag with a letter; both hold letters, digits and . _ - (versions +)",
        )
    return text


def check_kind(text: str) -> str:
    """Return `text` when it is base, workspace or toolkit; raises RefError."""
    if text not in KINDS:
        raise RefError(f"not a kind of layer: {text[:100]!r}", hint="a layer is a base, a workspace or a toolkit")
    return text


def check_name(text: str) -> str:
    """Return `text` when it is a layer's name; raises RefError."""
    if len(text) > 200 or not _NAME.fullmatch(text):
        raise RefError(
            f"not a layer's name: {text[:100]!r}",
            hint="names hold lower-case letters and digits, joined by . _ - and parted by /",
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class Platform:
    """An OCI platform: os, architecture, variant ('' when there is none)."""

    os: str
    arch: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Read `os/arch[/variant]`; raises RefError."""
        match = _PLATFORM.fullmatch(text)
        if not match:
            raise RefError(f"not a platform: {text[:100]!r}", hint="platforms look like linux/amd64 or linux/arm/v7")
        return cls(match[1], match[2], match[3] or "")

    @classmethod
    def host(cls) -> Platform:
        """The platform of this machine."""
        machine = _platform.machine()
        return cls("linux", _MACHINES.get(machine, machine))

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.arch, self.variant) if part)

    @property
    def folder(self) -> str:
        """The spelling used in a store's keys: os-arch[-variant]."""
        return str(self).replace("/", "-")


@dataclass(frozen=True, slots=True)
class Ref:
    """`KIND/NAME[:VERSION|:TAG][@DIGEST]`. `version` holds the version or tag, '' when none was given."""

    kind: str
    name: str
    version: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read a reference; raises RefError with a hint that fits the mistake."""
        if _RANGE.search(text):
            raise RefError(
                f"{text!r} is a range, one reference is needed here",
                hint="name one version, or none for the newest; ranges stand in a Layerfile's REQUIRES",
            )
        rest, _, digest = text.partition("@")
        if digest or text.endswith("@"):
            check_digest(digest)
        rest, colon, version = rest.partition(":")
        kind, slash, name = rest.partition("/")
        if not slash or kind not in KINDS:
            raise RefError(
                f"not a reference to a layer: {text[:200]!r}",
                hint="write KIND/NAME[:VERSION], KIND being base, workspace or toolkit",
            )
        check_name(name)
        if colon:
            check_version_or_tag(version)
        return cls(kind, name, version, digest)

    def with_version(self, version: str) -> Ref:
        """The same name under another version or tag."""
        return replace(self, version=check_version_or_tag(version), digest="")

    @property
    def full_name(self) -> str:
        """KIND/NAME without version or digest."""
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        text = self.full_name
        if self.version:
            text += f":{self.version}"
        return f"{text}@{self.digest}" if self.digest else text


def is_range(text: str) -> bool:
    """Whether the text names versions by a range, like base/debian>=12,<14."""
    return bool(_RANGE.search(text))


def split_stack(text: str) -> list[str]:
    """`REF[,REF…]`, each a reference, a range or a digest, into its parts; raises RefError."""
    parts = [part.strip() for part in _BETWEEN_REFS.split(text)]
    if not all(parts):
        raise RefError(f"empty reference in the stack {text[:200]!r}")
    return parts
