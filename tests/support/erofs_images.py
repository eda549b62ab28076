"""Trees to images for tests of core, by a layout of their own: `layer.layout` is tested elsewhere.

A tree becomes a script (nodes and links as plain values), which both the C writer and the slow reference writer take.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from layerkit.core.erofs_writer import HOLE, NodeTable, seal_erofs, write_erofs
from layerkit.layer.tree import Chunk, Content, Inode
from tests.support.contents import BLOCK, Chunks, hole_unit, hole_units, read


@dataclass
class Script:
    """What is added to a NodeTable: keyword arguments of `add` (node 0 is the root), and links."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    links: list[tuple[int, bytes, int]] = field(default_factory=list)
    data_blocks: int = 0
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    """Bytes of the data file by block."""

    def write_data(self, path: Path, *, start: int = 0) -> None:
        """Write the data, sparse where nothing is, from a byte offset of a file on."""
        with path.open("r+b" if path.exists() else "w+b") as file:
            for block, data in self.pieces:
                file.seek(start + block * BLOCK)
                file.write(data)
            file.truncate(start + self.data_blocks * BLOCK)


def script_of(root: Inode, chunks: Chunks) -> Script:
    """The script of a tree; identical contents (the same chunks) share their blocks."""
    script = Script()
    numbers: dict[int, int] = {}
    placed: Placed = {}
    pending = [root]
    numbers[id(root)] = 0
    script.nodes.append(_node(script, placed, root, chunks))
    while pending:
        inode = pending.pop()
        for name, child in inode.entries.items():
            if id(child) not in numbers:
                numbers[id(child)] = len(script.nodes)
                script.nodes.append(_node(script, placed, child, chunks))
                if child.is_dir:
                    pending.append(child)
            script.links.append((numbers[id(inode)], name, numbers[id(child)]))
    return script


Arguments = dict[str, Any]
Placed = dict[tuple[Chunk, ...], Arguments]


def _node(script: Script, placed: Placed, inode: Inode, chunks: Chunks) -> Arguments:
    node: Arguments = {
        "mode": inode.mode, "uid": inode.uid, "gid": inode.gid, "mtime_ns": inode.mtime_ns, "rdev": inode.rdev,
        "xattrs": list(inode.xattrs.items()),
    }  # fmt: skip
    if isinstance(inode.body, bytes):
        node["inline"] = inode.body
    elif isinstance(inode.body, Content):
        key = inode.body.chunks
        if key not in placed:
            placed[key] = _place(script, inode.body, chunks)
        node.update(placed[key])
    return node


def _place(script: Script, content: Content, chunks: Chunks) -> Arguments:
    unit, holes = hole_unit(content.size), hole_units(content)
    if not any(holes):
        block = script.data_blocks
        script.pieces.append((block, read(content, chunks, 0, content.size)))
        script.data_blocks += -(-content.size // BLOCK)
        return {"size": content.size, "block": block}
    blocks = array("I")
    for index, is_hole in enumerate(holes):
        if is_hole:
            blocks.append(HOLE)
            continue
        data = read(content, chunks, index * unit, unit)
        blocks.append(script.data_blocks)
        script.pieces.append((script.data_blocks, data))
        script.data_blocks += -(-len(data) // BLOCK)
    return {"size": content.size, "chunk_bits": unit.bit_length() - 1, "chunk_blocks": blocks}


def table_of(script: Script, shuffle: random.Random | None = None) -> NodeTable:
    """A NodeTable of a script; nodes, links and xattrs in another order where a generator is given."""
    table = NodeTable()
    order = list(range(1, len(script.nodes)))
    links = list(script.links)
    if shuffle is not None:
        shuffle.shuffle(order)
        shuffle.shuffle(links)
    numbers = {}
    for node in [0, *order]:
        arguments = dict(script.nodes[node])
        if shuffle is not None:
            arguments["xattrs"] = shuffle.sample(arguments["xattrs"], len(arguments["xattrs"]))
        numbers[node] = table.add(**arguments)
    for parent, name, child in links:
        table.link(numbers[parent], name, numbers[child])
    return table


def image_of(script: Script) -> bytes:
    """The sealed image of a script; its UUID comes from its bytes."""
    image = write_erofs(table_of(script), data_blocks=script.data_blocks)
    seal_erofs(image, sha256(image).digest()[:16])
    return bytes(image)
