"""Whether KVM runs a virtual CPU: a halt instruction in a guest of one page; standard library only; x86-64 only.

The device's presence says little: on some machines it opens and answers, and no guest runs. Source: linux/kvm.h,
Documentation/virt/kvm/api.rst.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from contextlib import ExitStack
from pathlib import Path

_GET_API_VERSION, _CREATE_VM, _GET_VCPU_MMAP_SIZE = 0xAE00, 0xAE01, 0xAE04
_CREATE_VCPU, _RUN = 0xAE41, 0xAE80
_SET_USER_MEMORY_REGION = 0x4020AE46
_SET_REGS, _GET_SREGS, _SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
_API_VERSION = 12
_REGS_SIZE, _SREGS_SIZE = 144, 312
_RIP_AT, _RFLAGS_AT = 128, 136
_EXIT_REASON_AT, _EXIT_HLT = 8, 5
_HLT = b"\xf4"
_PAGE = 4096


def kvm_problem(device: Path = Path("/dev/kvm")) -> str:
    """Why no guest can run under KVM; '' when one halted as it was told."""
    if platform.machine() != "x86_64":
        return "" if os.access(device, os.R_OK | os.W_OK) else f"{device} cannot be opened"
    with ExitStack() as stack:
        try:
            return _run_halt(device, stack)
        except OSError as error:
            return f"{device}: {error.strerror}"


def _run_halt(device: Path, stack: ExitStack) -> str:
    kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, kvm)
    if fcntl.ioctl(kvm, _GET_API_VERSION) != _API_VERSION:
        return f"{device} speaks another version"
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    stack.callback(os.close, machine)
    memory = stack.enter_context(mmap.mmap(-1, _PAGE))
    memory[:1] = _HLT
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    del view
    fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, struct.pack("=IIQQQ", 0, 0, 0, _PAGE, address))
    cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    stack.callback(os.close, cpu)
    shared = stack.enter_context(mmap.mmap(cpu, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE)))
    special = bytearray(_SREGS_SIZE)
    fcntl.ioctl(cpu, _GET_SREGS, special)
    # The code segment is the first of struct kvm_sregs: base u64 at 0, selector u16 at 12.
    struct.pack_into("=Q", special, 0, 0)
    struct.pack_into("=H", special, 12, 0)
    fcntl.ioctl(cpu, _SET_SREGS, bytes(special))
    registers = bytearray(_REGS_SIZE)
    struct.pack_into("=QQ", registers, _RIP_AT, 0, 2)
    fcntl.ioctl(cpu, _SET_REGS, bytes(registers))
    fcntl.ioctl(cpu, _RUN, 0)
    (reason,) = struct.unpack_from("=I", shared, _EXIT_REASON_AT)
    return "" if reason == _EXIT_HLT else f"a guest's first instruction ended with exit reason {reason}"
