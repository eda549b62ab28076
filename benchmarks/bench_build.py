"""From a directory to a published layer, next to `tar | zstd` and mkfs.erofs over the same tree in the same run.

The tree is the running Python installation and the system's library folder: real files, many duplicates. The second
tree is the same without its duplicates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import LAYERKIT, Bench, Timing, timed, version_of

TAR_ZSTD = "tar -C {tree} -cf - . | zstd -q -f -3 -T2 -o {out}"


def run(bench: Bench) -> None:
    """Measure and collect the figures."""
    tree, unique = bench.folder / "tree", bench.folder / "unique"
    plain_bytes, files = make_tree(tree)
    unique_bytes = make_unique(tree, unique)
    print(f"{files} files, {plain_bytes / 1e6:.0f} MB; without duplicates {unique_bytes / 1e6:.0f} MB", flush=True)
    bench.peers = {
        "tar": version_of(["tar", "--version"]),
        "zstd": version_of(["zstd", "--version"]),
        "mkfs.erofs": version_of(["mkfs.erofs", "-V"]),
    }
    cold, unchanged, tar, ratios, peaks, result = [], [], [], [], [], {}
    out = bench.folder / "tar.zst"
    for sample in range(bench.samples):
        instance = bench.folder / f"instance{sample}"
        tar.append(timed([TAR_ZSTD.format(tree=tree, out=out)], shell=True).wall_s)
        first, second = import_twice(instance, tree)
        cold.append(first.wall_s)
        unchanged.append(second.wall_s)
        peaks.append(max(first.peak_rss_mib, second.peak_rss_mib))
        result = json.loads(first.output.splitlines()[-1])["result"]
        ratios.append(used_bytes(instance / "store" / "packs") / out.stat().st_size)
        print(f"{sample}: tar|zstd {tar[-1]:.2f} s, layerkit {cold[-1]:.2f} s, again {unchanged[-1]:.2f} s", flush=True)
        shutil.rmtree(instance)
    erofs = timed(["mkfs.erofs", "--quiet", "-T0", "-zlz4", bench.folder / "erofs.img", tree]).wall_s
    bench.figure("tar_zstd_s", tar, "s")
    bench.figure("mkfs_erofs_lz4_s", [erofs], "s")
    bench.figure("cold_s", cold, "s")
    bench.figure("unchanged_s", unchanged, "s")
    bench.figure("cold_vs_tar_zstd", [a / b for a, b in zip(cold, tar, strict=True)], at_most=1.5)
    bench.figure("unchanged_vs_cold", [a / b for a, b in zip(unchanged, cold, strict=True)], at_most=0.25)
    bench.figure("stored_vs_tar_zstd", ratios, at_most=1.0)
    bench.figure("stored_vs_tar_zstd_unique", [stored_ratio(bench, unique)], at_most=1.1)
    metadata = result["meta_bytes"] + result["chunk_index_bytes"]
    bench.figure("meta_and_index_share", [metadata / plain_bytes], at_most=0.008)
    bench.figure("peak_rss_mib", peaks, "MiB", at_most=400)


def make_tree(target: Path) -> tuple[int, int]:
    """Copy the tree; returns (plain bytes of regular files, number of files)."""
    target.mkdir()
    for number, source in enumerate((Path(sys.base_prefix), Path("/usr/lib/x86_64-linux-gnu"))):
        subprocess.run(["cp", "-a", str(source), str(target / f"{number}-{source.name}")], check=True)
    statuses = [os.lstat(os.path.join(folder, name)) for folder, _, names in os.walk(target) for name in names]
    return sum(status.st_size for status in statuses if stat.S_ISREG(status.st_mode)), len(statuses)


def make_unique(tree: Path, target: Path) -> int:
    """Hard links to one file of each content; returns their plain bytes."""
    seen: set[bytes] = set()
    total = 0
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_symlink() or not path.is_file():
                continue
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            if digest not in seen:
                seen.add(digest)
                copy = target / path.relative_to(tree)
                copy.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, copy)
                total += path.stat().st_size
    return total


def import_twice(instance: Path, tree: Path) -> tuple[Timing, Timing]:
    """Import the tree into a fresh store and publish it, then once more."""
    names = {"STORE": "store", "HOME": "home", "RUN": "run"}
    env = {f"LAYERKIT_{key}": str(instance / folder) for key, folder in names.items()}
    command: list[str | Path] = [LAYERKIT, "import", tree, "-t", "base/bench:1", "--publish", "--json"]
    return timed(command, env=env), timed(command, env=env)


def stored_ratio(bench: Bench, tree: Path) -> float:
    """Stored bytes of a tree against `tar | zstd` of it."""
    out, instance = bench.folder / "unique.zst", bench.folder / "unique-instance"
    timed([TAR_ZSTD.format(tree=tree, out=out)], shell=True)
    import_twice(instance, tree)
    return used_bytes(instance / "store" / "packs") / out.stat().st_size


def used_bytes(folder: Path) -> int:
    """Sizes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
