"""Golden layers: small trees in JSON with the bytes that every layerkit must make of them and must still read.

Each folder of fixtures/golden/layers holds `tree.json`, written by hand, and what `--write` makes of it: the four
parts of the layer, the manifest and `digests.json`. They change only with a format's version.

usage: python -m tests.layer.golden --write      (then review what changed)
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from layerkit.core.fastcdc import cut_file_bytes
from layerkit.core.hashing import chunk_id
from layerkit.ids import Platform, sha256_digest
from layerkit.layer.config import LayerConfig
from layerkit.layer.facts import HEAD_SIZE, FactsCollector
from layerkit.layer.image import build_image
from layerkit.layer.manifest import build_manifest
from layerkit.layer.tree import INLINE_MAX, ZERO_CHUNK_ID, Chunk, Content, Inode
from layerkit.layer.whiteouts import make_whiteout

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "layers"
PARTS = ("config.json", "meta.erofs", "chunk-index", "facts.json", "manifest.json")
_TYPES = {"char": stat.S_IFCHR, "block": stat.S_IFBLK, "fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK}
_MODES = {stat.S_IFDIR: "755", stat.S_IFLNK: "777"}


class _Tree:
    """Reads tree.json; names and texts are percent-encoded bytes."""

    def __init__(self) -> None:
        self.facts = FactsCollector()
        self._by_path: dict[bytes, Inode] = {}

    def inode(self, value: dict[str, Any], path: bytes) -> Inode:
        """One inode and all beneath it; hard links (`link`) come after what they link to."""
        if "link" in value:
            return self._by_path[unquote_to_bytes(value["link"])]
        if value.get("whiteout"):
            return make_whiteout()
        kind, body = self._body(value, path)
        inode = Inode(
            kind | int(value.get("mode", _MODES.get(kind, "644")), 8),
            value.get("uid", 0), value.get("gid", 0), value.get("mtime_ns", 0),
            os.makedev(*value["device"]) if "device" in value else 0,
            {unquote_to_bytes(name): unquote_to_bytes(text) for name, text in value.get("xattrs", {}).items()}, body,
        )  # fmt: skip
        self._by_path[path] = inode
        if isinstance(body, dict):
            for name, child in value["entries"].items():
                key = unquote_to_bytes(name)
                body[key] = self.inode(child, path + b"/" + key if path else key)
        return inode

    def _body(self, value: dict[str, Any], path: bytes) -> tuple[int, Any]:
        if "entries" in value:
            return stat.S_IFDIR, {}
        if "target" in value:
            return stat.S_IFLNK, unquote_to_bytes(value["target"])
        if "type" in value:
            return _TYPES[value["type"]], None
        data = b"".join(_piece(piece) for piece in value.get("pieces", [{"text": value.get("text", "")}]))
        mode = int(value.get("mode", "644"), 8)
        if found := self.facts.wants(path, data[:HEAD_SIZE], mode):
            self.facts.add(path, found, data)
        return stat.S_IFREG, _cut(data)


def _piece(value: dict[str, Any]) -> bytes:
    """{"text"}, {"zeros": length}, or {"seed", "size"}: bytes of SHAKE-128 over the seed."""
    if "zeros" in value:
        return bytes(value["zeros"])
    if "seed" in value:
        return hashlib.shake_128(value["seed"].encode()).digest(value["size"])
    return unquote_to_bytes(value["text"])


def _cut(data: bytes) -> Content | bytes:
    if len(data) <= INLINE_MAX:
        return data
    chunks, at = [], 0
    for length, is_zero in cut_file_bytes(data):
        chunks.append(Chunk(length, ZERO_CHUNK_ID if is_zero else chunk_id(data[at : at + length])))
        at += length
    return Content(len(data), tuple(chunks))


def cases() -> list[str]:
    """The names of the cases."""
    return sorted(path.parent.name for path in FOLDER.glob("*/tree.json"))


def read_tree(case: str) -> tuple[Inode, FactsCollector]:
    """The tree that a case describes, and the facts gathered from its files."""
    tree = _Tree()
    root = tree.inode(json.loads((FOLDER / case / "tree.json").read_text()), b"")
    return root, tree.facts


def make(case: str) -> dict[str, bytes]:
    """The files of a case as this layerkit makes them."""
    root, collector = read_tree(case)
    image = build_image(root)
    config = LayerConfig("base", f"golden-{case}", "1.0", Platform("linux", "amd64")).to_bytes()
    facts = collector.finish(root).to_bytes()
    manifest = build_manifest(config, image.meta, image.chunk_index, facts)
    files = dict(zip(PARTS, (config, image.meta, image.chunk_index, facts, manifest), strict=True))
    digests = {name: sha256_digest(data) for name, data in files.items()}
    digests["data blocks"] = str(image.data_blocks)
    files["digests.json"] = (json.dumps(digests, indent=2, sort_keys=True) + "\n").encode()
    return files


def main() -> None:
    """Write all cases."""
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    for case in cases():
        for name, data in make(case).items():
            path = FOLDER / case / name
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
                print(f"{case}/{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
