"""Profile → classic BPF as seccomp(2) takes it; imported by the seccomp package and its tests; pure.

Each filter is a balanced tree of comparisons over ranges of numbers that share one decision: about seven comparisons a
call where a list would need hundreds, and since Linux 5.11 the kernel caches what is always allowed. Decisions that
look at arguments compare the low 32 bits, which is what the kernel's own functions take (`socket(int, …)`): comparing
64 would let a call through whose upper half is not zero.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import NamedTuple

from layerkit.errors import LimitError
from layerkit.runtime.seccomp.profile import DEFAULT_CAPABILITIES, ArgumentRule, Profile, default_profile
from layerkit.runtime.seccomp.syscalls import normalise_arch, syscall_numbers

# linux/bpf_common.h, linux/seccomp.h, linux/audit.h
LOAD_WORD = 0x20
JUMP_ALWAYS = 0x05
JUMP_EQUAL = 0x15
JUMP_GREATER_EQUAL = 0x35
JUMP_ANY_BIT = 0x45
RETURN = 0x06
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBER_OFFSET, ARCH_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
MAX_INSTRUCTIONS = 4096
MAX_JUMP = 255


class Instruction(NamedTuple):
    """struct sock_filter."""

    code: int
    if_true: int
    if_false: int
    k: int


Decision = int | ArgumentRule  # ALLOW, ERRNO | n, or by argument
Range = tuple[int, Decision]  # from this number on


def compile_filter(profile: Profile, arch: str) -> bytes:
    """The filter as an array of struct sock_filter, little endian, for one architecture.

    Calls of another architecture (also i386 and x32 on x86-64) and numbers that the table does not know get ENOSYS, so
    that a libc which probes for something newer falls back.

    Raises:
        UnsupportedError: an architecture without a table.
        LimitError: more than 4096 instructions.
    """
    name = normalise_arch(arch)
    unknown = ERRNO | errno.ENOSYS
    program = [
        _load(ARCH_OFFSET),
        Instruction(JUMP_EQUAL, 1, 0, AUDIT_ARCH[name]),
        _return(unknown),
        _load(NUMBER_OFFSET),
        *_tree(_ranges(profile, syscall_numbers(name), unknown)),
    ]
    if len(program) > MAX_INSTRUCTIONS:
        raise LimitError(f"a filter of {len(program)} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def default_filter(arch: str, capabilities: Iterable[str] = DEFAULT_CAPABILITIES) -> bytes:
    """The default profile as BPF (an array of struct sock_filter), ready for crun's `run.oci.seccomp_bpf_data`.

    Args:
        arch: `x86_64` or `aarch64`, also as `amd64` and `arm64`.
        capabilities: what the sandbox's root may have at most.

    Raises:
        UnsupportedError: another architecture.
    """
    return compile_filter(default_profile(capabilities), arch)


def decide(profile: Profile, name: str) -> Decision:
    """What becomes of a call by name."""
    if name in profile.arguments:
        return profile.arguments[name]
    if name in profile.allowed:
        return ALLOW
    return ERRNO | profile.errnos.get(name, profile.default_errno)


def _ranges(profile: Profile, numbers: dict[str, int], unknown: int) -> list[Range]:
    by_number = {number: decide(profile, name) for name, number in numbers.items()}
    ranges: list[Range] = []
    for number in range(max(by_number) + 2):
        decision = by_number.get(number, unknown)
        if not ranges or ranges[-1][1] != decision:
            ranges.append((number, decision))
    return ranges


def _tree(ranges: list[Range]) -> list[Instruction]:
    if len(ranges) == 1:
        return _leaf(ranges[0][1])
    middle = len(ranges) // 2
    low, high = _tree(ranges[:middle]), _tree(ranges[middle:])
    first = ranges[middle][0]
    if len(low) <= MAX_JUMP:
        return [Instruction(JUMP_GREATER_EQUAL, len(low), 0, first), *low, *high]
    far = [Instruction(JUMP_GREATER_EQUAL, 0, 1, first), Instruction(JUMP_ALWAYS, 0, 0, len(low))]
    return [*far, *low, *high]


def _leaf(decision: Decision) -> list[Instruction]:
    if isinstance(decision, int):
        return [_return(decision)]
    refused = _return(ERRNO | decision.errno)
    found, otherwise = (_return(ALLOW), refused) if decision.kind == "one-of" else (refused, _return(ALLOW))
    jump = JUMP_ANY_BIT if decision.kind == "no-bit-of" else JUMP_EQUAL
    program = [_load(ARGUMENTS_OFFSET + 8 * decision.argument)]
    for value in decision.values:
        program += [Instruction(jump, 0, 1, value), found]
    return [*program, otherwise]


def _load(offset: int) -> Instruction:
    return Instruction(LOAD_WORD, 0, 0, offset)


def _return(value: int) -> Instruction:
    return Instruction(RETURN, 0, 0, value)
