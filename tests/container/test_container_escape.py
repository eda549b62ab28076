"""What a root process inside tries against the agent and the host; each must fail."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.container.conftest import Start, compile_static

pytestmark = pytest.mark.privileged

# Prints "name: errno" for each attempt, "name: TAKEN" when it worked.
ATTEMPTS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <unistd.h>
static void say(const char *name, long result) {
    if (result < 0) printf("%s: %d\n", name, errno); else printf("%s: TAKEN\n", name);
}
int main(void) {
    char byte = 0;
    int pidfd = syscall(434, 1, 0);
    say("pidfd_getfd", syscall(438, pidfd, 3, 0));
    say("mem-write", open("/proc/1/mem", O_RDWR));
    say("mem-read", open("/proc/1/mem", O_RDONLY));
    say("fd-dir", open("/proc/1/fd/3", O_RDWR));
    say("exe", open("/proc/1/exe", O_RDONLY));
    say("root", open("/proc/1/root/etc/passwd", O_RDONLY));
    struct iovec own = {&byte, 1}, far = {(void *)0x400000, 1};
    say("process_vm_readv", process_vm_readv(1, &own, 1, &far, 1, 0));
    say("ptrace", ptrace(PTRACE_ATTACH, 1, 0, 0));
    say("agent-binary", open("/dev/.layerkit-agent", O_WRONLY));
    say("mount", mount("tmpfs", "/tmp", "tmpfs", 0, ""));
    say("umount", umount2("/proc/sys", MNT_DETACH));
    say("remount-sys", mount(0, "/sys", 0, MS_REMOUNT | MS_BIND, 0));
    say("sysrq", open("/proc/sysrq-trigger", O_WRONLY));
    say("core-pattern", open("/proc/sys/kernel/core_pattern", O_WRONLY));
    say("host-disk", mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)) ? -1 : open("/tmp/disk", O_RDONLY));
    say("host-memory", mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1)) ? -1 : open("/tmp/mem", O_RDONLY));
    say("setns", setns(open("/proc/1/ns/mnt", O_RDONLY), 0));
    say("raw-socket", socket(AF_INET, SOCK_RAW, 1));
    say("packet-socket", socket(AF_PACKET, SOCK_RAW, 0));
    say("nfs-handle", syscall(304, AT_FDCWD, 0, 0));
    say("reboot", syscall(169, 0xfee1dead, 672274793, 0, 0));
    say("settimeofday", syscall(164, 0, 0) == 0 ? (errno = 0, -1) : -1);
    return 0;
}
"""


@pytest.mark.parametrize(("userns", "runtime"), [("require", "crun"), ("off", "crun"), ("require", "runc")])
def test_r39_root_inside_gets_nowhere(
    start: Start, small_root: Path, tmp_path: Path, userns: str, runtime: str
) -> None:
    if shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    layer = tmp_path / "tools"
    (layer / "bin").mkdir(parents=True)
    compile_static(ATTEMPTS, layer / "bin/attempts")
    sandbox = start(lowers=[layer, small_root], userns=userns, runtime=runtime)
    done = sandbox.exec(["attempts"])
    assert done.exit_code == 0, done
    results = dict(line.split(": ") for line in done.stdout.decode().splitlines())
    assert len(results) == 22
    assert [name for name, result in results.items() if result == "TAKEN"] == []
    assert sandbox.exec(["true"]).exit_code == 0
    assert b"Seccomp:\t2" in sandbox.exec(["cat", "/proc/self/status"]).stdout


def test_agent_owes_nothing_to_the_image(start: Start, small_root: Path, tmp_path: Path) -> None:
    """A hostile image: its loader, shell and preload file are traps."""
    layer = tmp_path / "trap"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/ld.so.preload").write_text("/trap.so\n")
    (layer / "bin").mkdir()
    compile_static('#include <unistd.h>\nint main(void){return write(1,"trap",4)!=4;}', layer / "bin/sh")
    (layer / "dev").mkdir()
    shutil.copy(layer / "bin/sh", layer / "dev/.layerkit-agent")
    sandbox = start(lowers=[layer, small_root])
    done = sandbox.exec(["cat", "/etc/passwd"])
    assert done.exit_code == 0
    assert done.stdout.startswith(b"root:")


def test_links_in_the_image_lead_nowhere_on_the_host(start: Start, tmp_path: Path, small_root: Path) -> None:
    host = tmp_path / "target"
    (host / "bin").mkdir(parents=True)
    layer = tmp_path / "layer"
    layer.mkdir()
    for name in ("proc", "sys", "dev", "etc"):
        (layer / name).symlink_to(host)
    before = sorted(os.listdir(host))
    with pytest.raises(Exception, match=r".+"):
        start(lowers=[layer])
    assert sorted(os.listdir(host)) == before


def test_logs_and_sockets_are_outside(start: Start) -> None:
    sandbox = start()
    held = {os.readlink(entry) for entry in Path(f"/proc/{sandbox.pid}/fd").iterdir()}
    assert not any(name.endswith(".json") or "overlay" in name for name in held), held
    listing = sandbox.exec(["sh", "-c", "ls /dev /run /tmp; cat /proc/net/unix"]).stdout.decode()
    assert "sock" not in listing.lower().replace("refcount protocol flags type st inode path", "")
    assert str(sandbox.upper) not in sandbox.exec(["cat", "/proc/self/mountinfo"]).stdout.decode()
