"""What a sandbox may ask of the kernel: Docker's default profile, as data; imported by the seccomp package; pure.

Differences from Docker's, all of them stricter: programs of another architecture (i386 and x32 on x86-64) are refused;
arguments are compared as the kernel reads them (see bpf.py). As there: what is not listed gets EPERM, clone3 without
CAP_SYS_ADMIN gets ENOSYS so that libc falls back to clone, whose flags can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from typing import Literal


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEFAULT_CAPABILITIES = _names(
    """
    CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE CAP_NET_RAW
    CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT
    """
)

ALLOWED = _names(
    """
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown clock_adjtime clock_getres
    clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
    epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve
    execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2
    fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
    ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu
    getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid
    getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday
    getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
    io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule
    landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr listxattrat
    llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore
    mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
    mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at
    nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
    pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv
    process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom
    recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list
    set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid
    setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 socketpair splice stat statfs statmount statx symlink symlinkat sync
    sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
    timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat
    uretprobe utime utimensat utimes vfork vmsplice wait4 waitid write writev
    arch_prctl modify_ldt
    """
)

BY_CAPABILITY: Mapping[str, frozenset[str]] = {
    capability: _names(names)
    for capability, names in {
        "CAP_BPF": "bpf",
        "CAP_DAC_READ_SEARCH": "open_by_handle_at",
        "CAP_PERFMON": "perf_event_open",
        "CAP_SYSLOG": "syslog",
        "CAP_SYS_ADMIN": (
            "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie lsm_get_self_attr"
            " lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl"
            " quotactl_fd setdomainname sethostname setns syslog umount2 unshare"
        ),
        "CAP_SYS_BOOT": "reboot",
        "CAP_SYS_CHROOT": "chroot",
        "CAP_SYS_MODULE": "delete_module finit_module init_module",
        "CAP_SYS_NICE": "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
        "CAP_SYS_PACCT": "acct",
        "CAP_SYS_PTRACE": "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace",
        "CAP_SYS_RAWIO": "ioperm iopl",
        "CAP_SYS_TIME": "clock_settime settimeofday",
        "CAP_SYS_TTY_CONFIG": "vhangup",
    }.items()
}

# CLONE_NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET (linux/sched.h)
NAMESPACE_FLAGS = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
AF_VSOCK = 40
# PER_LINUX, UNAME26, PER_LINUX32, both, and the query (linux/personality.h); not ADDR_NO_RANDOMIZE
PERSONALITIES = (0x0, 0x20000, 0x8, 0x20008, 0xFFFFFFFF)


@dataclass(frozen=True)
class ArgumentRule:
    """Allowed when the argument is `one-of` the values, is `none-of` them, or has `no-bit-of` them; else `errno`."""

    argument: int
    kind: Literal["one-of", "none-of", "no-bit-of"]
    values: tuple[int, ...]
    errno: int = EPERM


@dataclass(frozen=True)
class Profile:
    """Decisions by name: `arguments` first, then `allowed`, else `errnos` or `default_errno`."""

    allowed: frozenset[str]
    arguments: Mapping[str, ArgumentRule]
    errnos: Mapping[str, int]
    default_errno: int = EPERM


def default_profile(capabilities: Iterable[str] = DEFAULT_CAPABILITIES) -> Profile:
    """Docker's default profile for a sandbox whose root has these capabilities (`CAP_…`)."""
    held = frozenset(capabilities)
    allowed = ALLOWED.union(*(names for capability, names in BY_CAPABILITY.items() if capability in held))
    arguments = {
        "personality": ArgumentRule(0, "one-of", PERSONALITIES),
        "socket": ArgumentRule(0, "none-of", (AF_VSOCK,)),
    }
    if "CAP_SYS_ADMIN" not in held:
        arguments["clone"] = ArgumentRule(0, "no-bit-of", (NAMESPACE_FLAGS,))
    return Profile(allowed, arguments, {"clone3": ENOSYS})
