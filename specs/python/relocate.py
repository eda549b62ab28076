"""Copies the running Debian Python beneath PREFIX, with the libraries that it needs beside it, so that it can move.

usage: relocate.py PREFIX

The copy finds its standard library by its own place, and its libraries by run paths relative to themselves; of the
system below it needs only the C library. Runs in the builder stage of specs/python/Layerfile.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Parts of glibc, which every base has in a version of its own.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|crypt|anl|mvec))\.so\.\d+")


def main() -> None:
    """Copy, then let each binary look for its libraries beside itself."""
    prefix = Path(sys.argv[1])
    binary = prefix / "bin" / VERSION
    binary.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), binary)
    for name, target in (("python3", VERSION), ("python", "python3")):
        (prefix / "bin" / name).symlink_to(target)
    library = prefix / "lib"
    stdlib = library / VERSION
    # EXTERNALLY-MANAGED speaks of apt, which does not manage this copy; sitecustomize.py links into /etc.
    ignored = shutil.ignore_patterns("EXTERNALLY-MANAGED", "sitecustomize.py", "__pycache__", "config-*", "lib2to3")
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, symlinks=True, ignore=ignored)
    modules = sorted((stdlib / "lib-dynload").glob("*.so"))
    needed: dict[str, Path] = {}
    for path in (binary, *modules):
        needed |= libraries_of(path)
    for name, source in sorted(needed.items()):
        shutil.copy(source, library / name)
        set_run_path(library / name, "$ORIGIN")
    set_run_path(binary, "$ORIGIN/../lib")
    for module in modules:
        set_run_path(module, "$ORIGIN/../..")


def libraries_of(path: Path) -> dict[str, Path]:
    """The shared libraries that a file loads, directly or through others, but those of glibc: name to file."""
    lines = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout.splitlines()
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", "\n".join(lines), re.MULTILINE))
    return {name: Path(file).resolve() for name, file in found.items() if not GLIBC.fullmatch(name)}


def set_run_path(path: Path, run_path: str) -> None:
    """Where the file's libraries are looked for first."""
    path.chmod(0o755)
    subprocess.run(["patchelf", "--set-rpath", run_path, path], check=True)


if __name__ == "__main__":
    main()
