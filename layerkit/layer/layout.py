"""Where file contents lie in a layer's data space, and back; imported by rank 2 up. Pure; any thread.

The rules are part of the format (docs/formats/layer.md): the same tree is laid out the same way everywhere.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerkit.errors import CorruptError
from layerkit.layer.chunk_index import BLOCK_SIZE, LAST, ZERO, ChunkIndex, round_up_to_block
from layerkit.layer.contents import canonical_chunks, check_content, runs, zero_chunks
from layerkit.layer.tree import Chunk, Content, Inode

HOLE = 0xFFFFFFFF
UNIT_MIN = 64 << 10
UNITS_MAX = 8192
_ZERO_ENTRY_MAX = 1 << 29


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a content lies: the first block relative to `data`, or a map of units of 2**chunk_bits bytes with HOLEs."""

    block: int
    chunk_bits: int = 0
    chunk_blocks: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The data space of a tree: each content's place (every Content of the tree is a key) and the chunk index."""

    placements: dict[Content, Placement]
    chunk_index: ChunkIndex


def data_order(name: bytes) -> tuple[bytes, bytes]:
    """Sort key of files within a directory: by extension, then name, since alike files compress better together.

    Version numbers at the end are no extension: `libz.so.1.3` is a `so`.
    """
    head, dot, tail = name.rpartition(b".")
    while dot and tail.isdigit():
        head, dot, tail = head.rpartition(b".")
    return (tail if head else b""), name


def files_in_data_order(root: Inode) -> Iterator[tuple[Inode, bytes, Inode]]:
    """(directory, name, inode) of everything but directories: directory by directory, depth first, in `data_order`."""
    pending = [root]
    while pending:
        directory = pending.pop()
        entries = directory.entries
        folders = []
        for name in sorted(entries, key=data_order):
            inode = entries[name]
            if type(inode.body) is dict:
                folders.append(name)
            else:
                yield directory, name, inode
        folders.sort(reverse=True)
        pending.extend(entries[name] for name in folders)


def lay_out(root: Inode) -> Layout:
    """Place every content of a tree; identical contents get one place.

    Raises:
        InputError: a Content that contradicts itself.
    """
    placements: dict[Content, Placement] = {}
    placed: dict[tuple[Chunk, ...], Placement] = {}
    space = _DataSpace()
    for _, name, inode in files_in_data_order(root):
        content = inode.body
        if not isinstance(content, Content) or content in placements:
            continue
        check_content(content, name.decode("utf-8", "backslashreplace"))
        key = canonical_chunks(content.chunks)
        placement = placed.get(key)
        if placement is None:
            placed[key] = placement = space.add(content.size, key)
        placements[content] = placement
    return Layout(placements, ChunkIndex(space.words, b"".join(space.ids)))


class _DataSpace:
    """The data space while it grows; one thread."""

    def __init__(self) -> None:
        self.words = array("I")
        self.ids: list[bytes] = []
        self.blocks = 0

    def add(self, size: int, chunks: tuple[Chunk, ...]) -> Placement:
        """Append one content."""
        block = self.blocks
        if len(chunks) == 1 and chunks[0].id:
            self.words.append(size | LAST)
            self.ids.append(chunks[0].id)
            self.blocks += round_up_to_block(size) // BLOCK_SIZE
            return Placement(block)
        unit = unit_size(size)
        holes = list(_hole_ranges(size, chunks, unit))
        for length, chunk_id in _mapped_pieces(size, chunks, unit):
            if chunk_id:
                self.words.append(length)
                self.ids.append(chunk_id)
            else:
                self._add_zeros(length)
        if not holes:
            self.words[-1] |= LAST
            self.blocks += round_up_to_block(size) // BLOCK_SIZE
            return Placement(block)
        chunk_blocks, self.blocks = _unit_map(size, unit, holes, block)
        if self.blocks > block:
            self.words[-1] |= LAST
        return Placement(block, unit.bit_length() - 1, chunk_blocks)

    def _add_zeros(self, length: int) -> None:
        while length > _ZERO_ENTRY_MAX:
            self.words.append(_ZERO_ENTRY_MAX | ZERO)
            length -= _ZERO_ENTRY_MAX
        self.words.append(length | ZERO)


def unit_size(size: int) -> int:
    """The unit in which a file of that size keeps holes: 64 KiB or more, so that its map has 8192 entries at most."""
    return max(UNIT_MIN, 1 << (-(-size // UNITS_MAX) - 1).bit_length())


def _hole_in(start: int, end: int, size: int, unit: int) -> tuple[int, int]:
    """First and end unit that the zeros start:end cover wholly (the file's last unit may be a part); else n, n."""
    first = -(-start // unit)
    stop = -(-end // unit) if end == size else end // unit
    return (first, stop) if stop > first else (first, first)


def _hole_ranges(size: int, chunks: Sequence[Chunk], unit: int) -> Iterator[tuple[int, int]]:
    offset = 0
    for length, chunk_id in runs(chunks):
        if not chunk_id:
            first, stop = _hole_in(offset, offset + length, size, unit)
            if stop > first:
                yield first, stop
        offset += length


def _mapped_pieces(size: int, chunks: Sequence[Chunk], unit: int) -> Iterator[tuple[int, bytes]]:
    """(length, id) of what lies in units that are no holes, in order; zeros of neighbouring pieces stay apart."""
    offset = 0
    for length, chunk_id in runs(chunks):
        end = offset + length
        if chunk_id:
            yield length, chunk_id
        else:
            first, stop = _hole_in(offset, end, size, unit)
            pieces = (first * unit - offset, end - stop * unit) if stop > first else (length,)
            for piece in pieces:
                if piece > 0:
                    yield piece, b""
        offset = end


def _unit_map(size: int, unit: int, holes: Sequence[tuple[int, int]], block: int) -> tuple[array[int], int]:
    """The block of every unit, HOLE for holes, and the first block behind them."""
    units = -(-size // unit)
    chunk_blocks = array("I")
    at, per_unit = block, unit // BLOCK_SIZE
    for first, stop in [*holes, (units, units)]:
        while len(chunk_blocks) < first:
            chunk_blocks.append(at)
            at += per_unit
        chunk_blocks.extend([HOLE] * (stop - first))
    if chunk_blocks[-1] != HOLE:
        at -= per_unit - round_up_to_block(size - (units - 1) * unit) // BLOCK_SIZE
    return chunk_blocks, at


class ContentReader:
    """Reads contents back from placements in an untrusted image and its chunk index; one thread.

    Each entry belongs to one content (files with equal bytes share it), so the work for a whole image is bounded by
    its index, whatever its inodes claim.
    """

    def __init__(self, index: ChunkIndex) -> None:
        self._index = index
        self._flat: dict[tuple[int, int], Content] = {}
        self._mapped: dict[tuple[int, int, bytes], Content] = {}
        self._claimed = bytearray(index.entry_count)

    def flat(self, block: int, size: int) -> Content:
        """The content of a flat inode; raises CorruptError when the index holds no such file."""
        content = self._flat.get((block, size))
        if content is None:
            chunks = self._piece(block * BLOCK_SIZE, size, ends=True)
            self._flat[block, size] = content = Content(size, canonical_chunks(tuple(chunks)))
        return content

    def mapped(self, size: int, chunk_bits: int, chunk_blocks: array[int]) -> Content:
        """The content of a chunk-based inode; raises CorruptError when the index holds no such file."""
        key = (size, chunk_bits, chunk_blocks.tobytes())
        content = self._mapped.get(key)
        if content is None:
            chunks: list[Chunk] = []
            for length, offset, ends in _extents(size, 1 << chunk_bits, chunk_blocks):
                chunks += zero_chunks(length) if offset is None else self._piece(offset, length, ends=ends)
            self._mapped[key] = content = Content(size, canonical_chunks(tuple(chunks)))
        return content

    def _piece(self, offset: int, length: int, *, ends: bool) -> list[Chunk]:
        """The chunks that fill offset:offset+length exactly; `ends` when the file's last entry must be the last one."""
        index = self._index
        lengths, last = index.lengths, index.last
        entry = bisect_left(index.offsets, offset)
        chunks: list[Chunk] = []
        if entry >= len(lengths) or index.offsets[entry] != offset:
            raise CorruptError(f"a file at byte {offset} of the data, where no chunk begins")
        while length > 0:
            if entry >= len(lengths) or lengths[entry] > length or self._claimed[entry]:
                raise CorruptError(f"a file at byte {offset} of the data does not agree with the chunk index")
            self._claimed[entry] = 1
            length -= lengths[entry]
            chunks.append(Chunk(lengths[entry], index.id(entry)))
            if last[entry] != (ends and not length):
                raise CorruptError(f"a file at byte {offset} of the data ends elsewhere in the chunk index")
            entry += 1
        return chunks


def _extents(size: int, unit: int, chunk_blocks: array[int]) -> Iterator[tuple[int, int | None, bool]]:
    """(length, data offset or None for a hole, whether the file's data ends there), neighbouring units joined."""
    if len(chunk_blocks) != -(-size // unit):
        raise CorruptError(f"a file of {size} bytes has a map of {len(chunk_blocks)} units of {unit}")
    mapped = [number for number, block in enumerate(chunk_blocks) if block != HOLE]
    final = mapped[-1] if mapped else -1
    number = 0
    while number < len(chunk_blocks):
        block, start = chunk_blocks[number], number
        number += 1
        step = 0 if block == HOLE else unit // BLOCK_SIZE
        while number < len(chunk_blocks) and chunk_blocks[number] == (
            HOLE if block == HOLE else block + step * (number - start)
        ):
            number += 1
        length = min(number * unit, size) - start * unit
        yield length, None if block == HOLE else block * BLOCK_SIZE, number - 1 == final
