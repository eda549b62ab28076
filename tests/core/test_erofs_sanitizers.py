"""L32: the C reader and cutter under AddressSanitizer and UndefinedBehaviorSanitizer, over mutated images."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import layerkit.core
from tests.core.erofs_samples import by_hand, make_small_tree, mkfs

SOURCE = Path(layerkit.core.__file__).parent / "src"
HARNESS = Path(__file__).parent / "fuzz/erofs_fuzz.c"
READER = ["crc32c.c", "cut_file.c", "fastcdc.c", "erofs_walk.c", *(f.name for f in SOURCE.glob("erofs_read_*.c"))]
SECONDS = str(int(float(os.environ.get("LAYERKIT_FUZZ_SECONDS", "20")) / 4) or 1)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC", "cc")
    target = tmp_path_factory.mktemp("harness") / "erofs_fuzz"
    command = [compiler, "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-fsanitize=address,undefined",
               "-fno-sanitize-recover=all", "-include", "stddef.h", "-include", "stdint.h", f"-I{SOURCE}", "-o",
               str(target), str(HARNESS), *(str(SOURCE / name) for name in READER)]  # fmt: skip
    probe = subprocess.run([compiler, "-fsanitize=address,undefined", "-xc", "-", "-o", str(target)],
                           input=b"int main(void){return 0;}", capture_output=True, check=False)  # fmt: skip
    if probe.returncode:
        pytest.skip("the compiler has no sanitizers")
    subprocess.run(command, check=True)
    return target


def test_l32_sanitized_reader(harness: Path, tmp_path: Path) -> None:
    (tmp_path / "by-hand").write_bytes(by_hand().bytes())
    images = [tmp_path / "by-hand"]
    if shutil.which("mkfs.erofs"):
        (tmp_path / "root").mkdir()
        make_small_tree(tmp_path / "root")
        for name, option in (("plain", "-x1"), ("chunks", "--chunksize=4096")):
            mkfs(tmp_path / name, tmp_path / "root", option)
            images.append(tmp_path / name)
    seed = os.environ.get("LAYERKIT_FUZZ_SEED", "1")
    done = subprocess.run([harness, SECONDS, seed, *images], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
