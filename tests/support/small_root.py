"""A root file system made of this machine's own programs: a base without a network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    "bash", "cat", "chmod", "chown", "cp", "dd", "echo", "env", "false", "getcap", "getent", "grep", "head", "hostname",
    "id", "kill", "ln", "ls", "mkdir", "mknod", "mount", "mv", "ps", "rm", "rmdir", "setcap", "setsid", "sh", "sleep",
    "stat", "sync", "tail", "touch", "true", "unshare", "wc",
)  # fmt: skip


def copy_program(root: Path, program: str) -> None:
    """A program and the libraries it needs."""
    path = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    assert path, program
    shutil.copy(path, root / "bin" / program)
    for word in subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout.split():
        if word.startswith("/"):
            target = root / word[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(word, target)


def make_small_root(root: Path) -> Path:
    """Fill a new folder with a shell, some tools and users."""
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    for name in ("bin", "etc/profile.d", "proc", "sys", "dev", "tmp", "run", "root", "usr/bin", "var/lib"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for program in PROGRAMS:
        copy_program(root, program)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\nextra:x:2000:user\n")
    (root / "etc/profile").write_text('PATH=/bin\nfor i in /etc/profile.d/*.sh; do . "$i"; done\n')
    return root
