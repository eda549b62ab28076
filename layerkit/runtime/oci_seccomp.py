"""The system call filter in the OCI config's own words, for runtimes that take no BPF program; pure, safe everywhere.

Used by `runtime.assembly` for runc. libseccomp compiles it in every start, which costs 11 ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerkit.errors import UnsupportedError
from layerkit.runtime.seccomp import ArgumentRule, Profile, default_profile, normalise_arch

_ARCHES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"


def oci_seccomp(arch: str, capabilities: Iterable[str]) -> dict[str, Any]:
    """`linux.seccomp` for the default profile; UnsupportedError for an architecture without a table."""
    return _render(default_profile(capabilities), _ARCHES[normalise_arch(arch)])


def _render(profile: Profile, arch: str) -> dict[str, Any]:
    free = sorted(profile.allowed - set(profile.arguments) - set(profile.errnos))
    rules: list[dict[str, Any]] = [{"names": free, "action": _ALLOW}]
    for name, errno in profile.errnos.items():
        if name not in profile.arguments and name not in profile.allowed:
            rules.append({"names": [name], "action": _ERRNO, "errnoRet": errno})
    for name, rule in profile.arguments.items():
        rules += [{"names": [name], "action": _ALLOW, "args": [args]} for args in _arguments(rule)]
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": profile.default_errno,
        "architectures": [arch],
        "syscalls": rules,
    }


def _arguments(rule: ArgumentRule) -> list[dict[str, Any]]:
    """Conditions of which one must hold."""
    if rule.kind == "one-of":
        return [{"index": rule.argument, "value": value, "op": "SCMP_CMP_EQ"} for value in rule.values]
    if len(rule.values) != 1:
        raise UnsupportedError("this OCI runtime takes one condition per argument", hint="use crun")
    (value,) = rule.values
    if rule.kind == "none-of":
        return [{"index": rule.argument, "value": value, "op": "SCMP_CMP_NE"}]
    return [{"index": rule.argument, "value": value, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
