"""The system call filter of sandboxes: Docker's default profile as a table of our own, compiled to BPF in Python.

Imported by the runtime's backends; pure but for reading its table; safe from any thread.
"""

from layerkit.runtime.seccomp.bpf import compile_filter, default_filter
from layerkit.runtime.seccomp.profile import DEFAULT_CAPABILITIES, ArgumentRule, Profile, default_profile
from layerkit.runtime.seccomp.syscalls import normalise_arch, syscall_numbers

__all__ = [
    "DEFAULT_CAPABILITIES",
    "ArgumentRule",
    "Profile",
    "compile_filter",
    "default_filter",
    "default_profile",
    "normalise_arch",
    "syscall_numbers",
]
