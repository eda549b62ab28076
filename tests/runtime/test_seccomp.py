"""The system call filter: every number decided as the profile says, and the kernel agreeing on this machine."""

from __future__ import annotations

import errno
import json
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from agent_harness import ENV, running_agent

from layerkit.errors import UnsupportedError
from layerkit.runtime.seccomp import (
    DEFAULT_CAPABILITIES,
    ArgumentRule,
    Profile,
    bpf,
    compile_filter,
    default_filter,
    default_profile,
    syscall_numbers,
)
from layerkit.runtime.seccomp.profile import ALLOWED, BY_CAPABILITY

ARCHES = ("x86_64", "aarch64")
ALLOW, ENOSYS, EPERM = bpf.ALLOW, bpf.ERRNO | errno.ENOSYS, bpf.ERRNO | errno.EPERM
HOST = platform.machine()


def run_filter(program: bytes, number: int, arch: str, arguments: tuple[int, ...] = ()) -> tuple[int, int]:
    """What the filter answers, and in how many steps; jumps lead forward, so it always ends."""
    code = list(struct.iter_unpack("<HBBI", program))
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, bpf.AUDIT_ARCH[arch], 0, *padded)
    at = accumulator = steps = 0
    while True:
        operation, if_true, if_false, k = code[at]
        steps += 1
        at += 1
        if operation == bpf.LOAD_WORD:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif operation == bpf.RETURN:
            return k, steps
        elif operation == bpf.JUMP_ALWAYS:
            at += k
        else:
            hit = {
                bpf.JUMP_EQUAL: accumulator == k,
                bpf.JUMP_GREATER_EQUAL: accumulator >= k,
                bpf.JUMP_ANY_BIT: bool(accumulator & k),
            }[operation]
            at += if_true if hit else if_false


def call(arch: str, name: str, *arguments: int, capabilities: frozenset[str] = DEFAULT_CAPABILITIES) -> int:
    return run_filter(default_filter(arch, capabilities), syscall_numbers(arch)[name], arch, arguments)[0]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("extra", [frozenset(), frozenset({"CAP_SYS_ADMIN"}), frozenset(BY_CAPABILITY)], ids=len)
def test_every_number_is_decided_as_the_profile_says(arch: str, extra: frozenset[str]) -> None:
    capabilities = DEFAULT_CAPABILITIES | extra
    profile = default_profile(capabilities)
    program = compile_filter(profile, arch)
    names = {number: name for name, number in syscall_numbers(arch).items()}
    longest = 0
    for number in [*range(max(names) + 50), 0x3FFFFFFF, 0x40000000, 0x40000000 + 39, 0x80000000, 0xFFFFFFFF]:
        answer, steps = run_filter(program, number, arch)
        longest = max(longest, steps)
        if number not in names:
            assert answer == ENOSYS, number
        elif names[number] not in profile.arguments:
            assert answer == bpf.decide(profile, names[number]), names[number]
    assert longest < 25
    assert len(program) // 8 < 400


@pytest.mark.parametrize("arch", ARCHES)
def test_other_architectures_get_enosys(arch: str) -> None:
    other = next(name for name in ARCHES if name != arch)
    for number in range(500):
        assert run_filter(default_filter(arch), number, other)[0] == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_arguments_are_looked_at(arch: str) -> None:
    new_user, sigchld, vsock = 0x10000000, 17, 40
    assert call(arch, "clone", sigchld) == ALLOW
    assert call(arch, "clone", 0x3D0F00) == ALLOW  # what pthread_create asks for
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, new_user, 0x20000000, 0x40000000):
        assert call(arch, "clone", flag | sigchld) == EPERM
    assert call(arch, "clone", new_user, capabilities=frozenset({"CAP_SYS_ADMIN"})) == ALLOW
    assert call(arch, "clone3") == ENOSYS
    assert call(arch, "clone3", capabilities=frozenset({"CAP_SYS_ADMIN"})) == ALLOW
    for family in (1, 2, 10, 16, 17):
        assert call(arch, "socket", family) == ALLOW
    for family in (vsock, 1 << 32 | vsock):  # the kernel takes an int: the upper half does not count
        assert call(arch, "socket", family) == EPERM
    for persona in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert call(arch, "personality", persona) == ALLOW
    for persona in (1, 0x40000, 0x8000000):
        assert call(arch, "personality", persona) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_capabilities_open_their_calls_only(arch: str) -> None:
    for capability, names in BY_CAPABILITY.items():
        for name in names & syscall_numbers(arch).keys():
            assert call(arch, name, capabilities=frozenset({capability})) == ALLOW
            if name not in ALLOWED and name not in ("clone", "clone3", "chroot"):
                assert call(arch, name) == EPERM, name
    assert call(arch, "chroot") == ALLOW
    assert call(arch, "chroot", capabilities=frozenset()) == EPERM


@pytest.mark.parametrize("name", [
    "io_uring_setup", "keyctl", "add_key", "request_key", "bpf", "userfaultfd", "mount", "unshare", "setns",
    "pivot_root", "kexec_load", "init_module", "reboot", "swapon", "open_by_handle_at", "perf_event_open",
    "pidfd_getfd", "syslog", "move_mount", "open_tree", "open_tree_attr", "fsopen", "quotactl",
])  # fmt: skip
def test_dangerous_calls_are_refused(name: str) -> None:
    for arch in ARCHES:
        assert call(arch, name) == EPERM


def test_profile_names_exist_and_do_not_contradict() -> None:
    known = syscall_numbers("x86_64").keys() | syscall_numbers("aarch64").keys()
    for names in (ALLOWED, *BY_CAPABILITY.values()):
        assert names <= known
    assert default_profile().arguments.keys().isdisjoint(ALLOWED)


def test_numbers_are_the_kernels() -> None:
    headers = [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")]
    header = next((path for path in headers if path.exists()), None)
    if header is None:
        pytest.skip("no kernel headers for x86-64")
    ours = syscall_numbers("x86_64")
    theirs = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    assert {name: number for name, number in theirs.items() if number < 460} == {
        name: ours.get(name) for name, number in theirs.items() if number < 460
    }
    assert syscall_numbers("aarch64")["openat"] == 56
    assert "open" not in syscall_numbers("aarch64")


def test_far_jumps_and_limits() -> None:
    """Alternating decisions make a tree whose halves are further apart than a conditional jump reaches."""
    numbers = syscall_numbers("x86_64")
    alternating = Profile(
        allowed=frozenset(name for name, number in numbers.items() if number % 2), arguments={
            name: ArgumentRule(0, "one-of", tuple(range(5))) for name, number in numbers.items() if number % 10 == 0
        }, errnos={},
    )  # fmt: skip
    program = compile_filter(alternating, "x86_64")
    assert any(code == bpf.JUMP_ALWAYS for code, *_ in struct.iter_unpack("<HBBI", program))
    for name, number in numbers.items():
        expected = bpf.decide(alternating, name)
        answer = run_filter(program, number, "x86_64", (3,))[0]
        assert answer == (ALLOW if isinstance(expected, ArgumentRule) else expected), name


def test_spellings_of_architectures() -> None:
    assert default_filter("amd64") == default_filter("x86_64")
    assert default_filter("arm64") == default_filter("aarch64")
    assert default_filter("amd64") != default_filter("arm64")
    with pytest.raises(UnsupportedError):
        default_filter("riscv64")


# Loads the filter `program`; then makes the calls of argv[1], [[number, arguments…], …], and keeps their errnos.
LOAD = r"""
import ctypes, json, os, struct, sys, threading, subprocess
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(program, len(program))
fprog = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, fprog, 0, 0) == 0, ctypes.get_errno()
"""
CHILD = r"""
answers = []
for number, *arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(argument) for argument in arguments])
    answers.append(ctypes.get_errno())
thread = threading.Thread(target=answers.append, args=("thread",)); thread.start(); thread.join()
answers.append(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout.strip())
"""
# int 0x80 from 64-bit code is a call of i386: getpid (20) must not come through.
FOREIGN = r"""
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
answers.append(function())
"""


@pytest.mark.skipif(HOST not in ARCHES, reason=f"no table for {HOST}")
def test_kernel_takes_the_filter_and_agrees() -> None:
    numbers = syscall_numbers(HOST)
    calls = [
        (numbers["getpid"], [], 0),
        (numbers["socket"], [1, 1, 0], 0),
        (numbers["socket"], [40, 1, 0], errno.EPERM),
        (numbers["socket"], [1 << 32 | 40, 1, 0], errno.EPERM),
        (numbers["unshare"], [0x10000000], errno.EPERM),
        (numbers["clone"], [0x10000000 | 17, 0, 0, 0, 0], errno.EPERM),
        (numbers["clone3"], [0, 0], errno.ENOSYS),
        (numbers["mount"], [0, 0, 0, 0, 0], errno.EPERM),
        (numbers["personality"], [0xFFFFFFFF], 0),
        (numbers["personality"], [0x0040000], errno.EPERM),
        (numbers["io_uring_setup"], [1, 0], errno.EPERM),
        (numbers["keyctl"], [0, 0, 0, 0, 0], errno.EPERM),
        (numbers["bpf"], [0, 0, 0], errno.EPERM),
        (numbers["pidfd_getfd"], [0, 0, 0], errno.EPERM),
        (999, [], errno.ENOSYS),
        (0x40000000 | 39, [], errno.ENOSYS),
    ]
    foreign = FOREIGN if HOST == "x86_64" else "answers.append(-38)"
    read, report = "import sys; program = sys.stdin.buffer.read()", "print(json.dumps(answers))"
    script = "\n".join([read, LOAD, CHILD, foreign, report])
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([[number, *arguments] for number, arguments, _ in calls])],
        input=default_filter(HOST), capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    answers = json.loads(done.stdout)
    assert answers == [*[expected for _, _, expected in calls], "thread", "child", -errno.ENOSYS]


@pytest.mark.skipif(HOST not in ARCHES, reason=f"no table for {HOST}")
def test_agent_works_under_the_filter(tmp_path: Path) -> None:
    (tmp_path / "filter").write_bytes(default_filter(HOST))
    script = f"program = open({str(tmp_path / 'filter')!r}, 'rb').read()\n{LOAD}\nos.execv(sys.argv[1], sys.argv[1:])"
    with running_agent((sys.executable, "-c", script)) as agent:
        result = agent.exec(["sh", "-c", "grep ^Seccomp: /proc/self/status; cat"], env=ENV, stdin=b"in", timeout_s=20)
        assert result.stdout == b"Seccomp:\t2\nin"
        assert agent.exec(["sh", "-c", "setsid sleep 60 & sleep 60"], env=ENV, timeout_s=0.3).timed_out
        refused = agent.exec(["unshare", "--mount", "true"], env=ENV)
        assert (refused.exit_code, b"Operation not permitted" in refused.stderr) == (1, True)
