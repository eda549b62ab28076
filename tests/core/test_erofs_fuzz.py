"""L32: mutated images meet typed errors only, in bounded time, and the C reader agrees with the reference on them.

LAYERKIT_FUZZ_SECONDS sets how long it runs (20 s); LAYERKIT_FUZZ_SEED where it begins. A failure prints its seed.
"""

from __future__ import annotations

import os
import random
import shutil
import time

import pytest

from layerkit.core.erofs_reader import ErofsImage
from tests.core.erofs_agreement import walk_both
from tests.core.erofs_samples import MKFS_OPTIONS, by_hand, make_small_tree, mkfs
from tests.core.fuzz.erofs_targets import exercise
from tests.core.fuzz.mutations import mutate, used_ranges

SECONDS = float(os.environ.get("LAYERKIT_FUZZ_SECONDS", "20"))
SEED = int(os.environ.get("LAYERKIT_FUZZ_SEED", "1"))
SLOWEST_S = 1.0


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, list[int], list[int]]]:
    """Images with their used places and the nids of their inodes."""
    images = [by_hand().bytes()] * 3
    if shutil.which("mkfs.erofs"):
        folder = tmp_path_factory.mktemp("fuzz")
        (folder / "root").mkdir()
        make_small_tree(folder / "root")
        images += [mkfs(folder / name, folder / "root", *options) for name, options in MKFS_OPTIONS.items()]
    return [(image, used_ranges(image), list(ErofsImage(image).walk().nid)) for image in images]


def test_l32_mutated_images(samples: list[tuple[bytes, list[int], list[int]]]) -> None:
    deadline = time.monotonic() + SECONDS
    seed, accepted = SEED * 1_000_000, 0
    while time.monotonic() < deadline:
        seed += 1
        source = random.Random(seed)
        image, slots, nids = source.choice(samples)
        mutated = mutate(source, image, slots)
        chosen = [source.choice(nids), source.choice(nids), source.randrange(1 << source.randrange(1, 65))]
        start = time.process_time()
        try:
            accepted += exercise(mutated, chosen)
            took = time.process_time() - start
            if seed % 4 == 0:
                walk_both(mutated)
        except BaseException:
            print(f"LAYERKIT_FUZZ_SEED: mutation {seed}")
            raise
        assert took < SLOWEST_S, f"mutation {seed} took {took:.2f} s"
    tried = seed - SEED * 1_000_000
    print(f"{tried} images, {accepted} accepted")
    assert tried > SECONDS
    # Mutations that stay acceptable show that they reach what lies behind the first checks.
    assert 0.02 < accepted / tried < 0.9
