"""Drives erofs-utils' programs: independent judges of what we write, and the compressor behind an export.

Any thread. Versions from 1.5 (Debian 12) to 1.9 are in the field. What 1.5 understands of our images:

- `fsck.erofs IMAGE` refuses an image with a device table unless `--device=` names as many files; with it, names,
  inodes and chunk maps are checked, but the data of flat inodes is looked for in the metadata file, so that extracting
  fails. It does not know that a flat view needs no device either.
- The old view followed by the data is an ordinary image for every version: check and extract that one.
"""

from __future__ import annotations

import re
from pathlib import Path

from layerkit._util.process import get_program, run_program
from layerkit.errors import CorruptError, HostError

PACKAGE = "erofs-utils"


def erofs_utils_version() -> tuple[int, ...]:
    """The version of the installed erofs-utils, like (1, 5) or (1, 8, 6).

    Raises:
        UnsupportedError: not installed.
        HostError: it prints no version.
    """
    done = run_program([get_program("fsck.erofs", PACKAGE), "-V"], check=False, timeout_s=30)
    match = re.search(rb"(\d+(?:\.\d+)+)", done.stdout + done.stderr)
    if match is None:
        raise HostError("fsck.erofs -V prints no version")
    return tuple(int(part) for part in match[1].split(b"."))


def fsck_erofs(image: Path, *, device: Path | None = None, extract: Path | None = None) -> None:
    """Check an image with fsck.erofs, and extract all of it where a folder is given.

    Raises:
        CorruptError: fsck.erofs finds fault with it, on its exit code or in what it prints.
        UnsupportedError: not installed.
    """
    argv: list[str | Path] = [get_program("fsck.erofs", PACKAGE), "-d3"]
    if device is not None:
        argv.append(f"--device={device}")
    if extract is not None:
        argv.append(f"--extract={extract}")
    done = run_program([*argv, image], check=False)
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode or "<E>" in output:
        raise CorruptError(f"fsck.erofs: {output.strip()[-2000:]}", where=str(image))


def dump_superblock(image: Path, *, device: Path | None = None) -> dict[str, str]:
    """What dump.erofs -s prints: label to value, both as printed.

    Raises:
        HostError: dump.erofs cannot read the image.
        UnsupportedError: not installed.
    """
    argv: list[str | Path] = [get_program("dump.erofs", PACKAGE), "-s"]
    if device is not None:
        argv.append(f"--device={device}")
    lines = run_program([*argv, image]).stdout.decode("utf-8", "replace").splitlines()
    return {label.strip(): value.strip() for label, colon, value in (line.partition(":") for line in lines) if colon}


def dump_path(image: Path, path: str, *, device: Path | None = None, is_directory: bool = False) -> str:
    """What dump.erofs prints of one inode by its path, with the entries of a directory where asked."""
    argv: list[str | Path] = [get_program("dump.erofs", PACKAGE), f"--path={path}"]
    if is_directory:
        argv.append("--ls")
    if device is not None:
        argv.append(f"--device={device}")
    return run_program([*argv, image]).stdout.decode("utf-8", "replace")


def mkfs_erofs(
    image: Path, folder: Path, *, compression: str = "", uuid: str = "", timestamp_s: int | None = None
) -> None:
    """Pack a folder with mkfs.erofs.

    Args:
        compression: mkfs.erofs -z, like `lz4hc,12`; '' for none.
        uuid: of the image; '' lets mkfs.erofs make one up.
        timestamp_s: one time for all files; None keeps each file's own.

    Raises:
        HostError: mkfs.erofs failed; its stderr is in the message.
        UnsupportedError: not installed.
    """
    argv: list[str | Path] = [get_program("mkfs.erofs", PACKAGE), "--quiet"]
    if compression:
        argv.append(f"-z{compression}")
    if uuid:
        argv.append(f"-U{uuid}")
    argv.append(f"-T{timestamp_s}" if timestamp_s is not None else "--preserve-mtime")
    run_program([*argv, image, folder])
