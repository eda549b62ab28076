"""Golden layers: the same bytes as ever from the same trees, and old bytes read as the trees they were."""

from __future__ import annotations

import pytest

from layerkit.ids import sha256_digest
from layerkit.layer.compare import differences
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import Facts
from layerkit.layer.image import load_tree
from layerkit.layer.manifest import Manifest
from tests.layer.golden import FOLDER, PARTS, cases, make, read_tree

HINT = "a format changed: raise its version, or run `python -m tests.layer.golden --write` if nothing was released yet"


def test_there_are_cases() -> None:
    assert len(cases()) >= 5


@pytest.mark.parametrize("case", cases())
def test_l24_golden_layers_are_made_bit_for_bit(case: str) -> None:
    for name, data in make(case).items():
        assert (FOLDER / case / name).read_bytes() == data, f"{name}: {HINT}"


@pytest.mark.parametrize("case", cases())
def test_golden_layers_are_still_read(case: str) -> None:
    config, meta, chunk_index, facts, manifest = ((FOLDER / case / name).read_bytes() for name in PARTS)
    found = load_tree(meta, chunk_index)
    root, collector = read_tree(case)
    assert list(differences(root, found)) == []
    assert LayerConfig.from_bytes(config).name == f"golden-{case}"
    assert Facts.from_bytes(facts) == collector.finish(root)
    parsed = Manifest.parse(manifest)
    parts = ((parsed.config, config), (parsed.meta, meta), (parsed.chunk_index, chunk_index), (parsed.facts, facts))
    for descriptor, data in parts:
        assert descriptor.digest == sha256_digest(data)
