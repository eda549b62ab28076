"""Checks of layers and of whole stores that report every damage instead of stopping at the first; used by `verify`.

Imports what reads each format and parses nothing itself. Generators without state; any thread. What a crashed or a
running publisher leaves (parts without a manifest, packs that nothing refers to, temporary files) is no finding.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from layerkit.core.hashing import chunk_id as id_of
from layerkit.errors import CorruptError, LayerkitError, MissingError
from layerkit.ids import sha256_digest
from layerkit.store import keys, layers, leases, refs, tags
from layerkit.store.frames import Frame, read_frame
from layerkit.store.locator import Locator
from layerkit.store.objectstore import ObjectStore
from layerkit.store.pack import MAX_PACK_BYTES, PackFooter, StoredChunk, read_footer
from layerkit.store.params import read_params

StoredChunks = Callable[[bytes], Sequence[tuple[bytes, int]]]
"""Reads a chunk index: id and length of its stored chunks, in order. `layer.chunk_index` has it; `store` may not
import `layer`, so the caller brings it."""

_ChunkMap = dict[tuple[int, int], tuple[bytes, int]]
# Layers read their packs nearly in order, and a map takes about a megabyte.
_CHUNK_MAPS = 16


@dataclass(frozen=True)
class Finding:
    """One damage.

    Attributes:
        code: as of the error that a reader would get: missing, corrupt, unavailable, denied.
        where: key of the object concerned, or the name.
        message: what is wrong, in one sentence.
        layer: the digest of the layer that suffers; '' when none is known.
    """

    code: str
    where: str
    message: str
    layer: str = ""


class Verification:
    """One run, which remembers what it has seen of packs, so that one that many layers use is read once.

    Args:
        data: read all packs; else only their footers, and only of those that layers use.
        stored_chunks: with it chunk ids are compared too.
    """

    def __init__(
        self, objects: ObjectStore, *, data: bool = True, stored_chunks: StoredChunks | None = None
    ) -> None:
        self._objects = objects
        self._data = data
        self._stored_chunks = stored_chunks
        self._packs: dict[bytes, _PackReport] = {}
        self._chunks: OrderedDict[bytes, _ChunkMap] = OrderedDict()

    def verify_store(self) -> Iterator[Finding]:
        """Every damage of a store: its layers, packs, names and leases."""
        try:
            read_params(self._objects, "store")
        except LayerkitError as error:
            yield _finding(error, keys.PARAMS_KEY)
        there = set()
        for found in self._objects.list(keys.LAYERS):
            digest = keys.layer_in_manifest_key(found.key)
            if digest is not None:
                there.add(digest)
                yield from self.verify_layer(digest)
        if self._data:
            for found in self._objects.list(keys.PACKS):
                pack = keys.pack_in_key(found.key)
                if pack is not None and pack not in self._packs:
                    yield from self.verify_pack(pack)
        yield from self._verify_names(there)
        yield from self._verify_leases()

    def verify_layer(self, digest: str) -> Iterator[Finding]:
        """Every damage of one layer: manifest, parts, locator, packs."""
        try:
            described = layers.described_digests(layers.get_manifest(self._objects, digest), digest)
        except LayerkitError as error:
            yield _finding(error, keys.manifest_key(digest), digest)
            return
        plain: dict[str, bytes] = {}
        for part in keys.PART_FILES:
            try:
                plain[part] = self._part(keys.part_key(digest, part), described)
            except LayerkitError as error:
                yield _finding(error, keys.part_key(digest, part), digest)
        try:
            locator = layers.get_locator(self._objects, digest)
        except LayerkitError as error:
            yield _finding(error, keys.locator_key(digest), digest)
            return
        yield from self._verify_frames(digest, locator)
        if self._stored_chunks is not None and "chunk_index" in plain:
            yield from self._verify_chunks(digest, locator, self._stored_chunks, plain["chunk_index"])

    def verify_pack(self, pack: bytes) -> Iterator[Finding]:
        """Every damage of one pack."""
        yield from self._pack(pack).findings

    def _part(self, key: str, described: dict[str, int]) -> bytes:
        stored = self._objects.get(key, max_bytes=layers.MAX_PART_BYTES)
        most = min(max(described.values()), layers.MAX_PART_BYTES)
        plain = layers.decode_part(key, stored, most)
        if described.get(sha256_digest(plain)) != len(plain):
            raise CorruptError("is not what the manifest describes", where=key)
        return plain

    def _verify_frames(self, digest: str, locator: Locator) -> Iterator[Finding]:
        for pack in locator.packs:
            for finding in self._pack(pack).findings:
                yield replace(finding, layer=digest)
        for number, frame in locator.frames:
            pack = locator.packs[number]
            frames = self._pack(pack).frames
            if frames is not None and frame not in frames:
                yield Finding("missing", keys.pack_key(pack), f"the frame at {frame.offset} is not in the pack", digest)

    def _verify_chunks(
        self, digest: str, locator: Locator, stored_chunks: StoredChunks, chunk_index: bytes
    ) -> Iterator[Finding]:
        try:
            chunks = stored_chunks(chunk_index)
        except LayerkitError as error:
            yield _finding(error, keys.part_key(digest, "chunk_index"), digest)
            return
        if len(chunks) != len(locator):
            message = f"the locator knows {len(locator)} chunks, the layer has {len(chunks)}"
            yield Finding("corrupt", keys.locator_key(digest), message, digest)
            return
        for number, chunk in enumerate(chunks):
            place = locator.place(number)
            if self._pack(place.pack).frames is None:
                continue
            if self._chunks_of(place.pack).get((place.frame_offset, place.offset)) != chunk:
                message = f"chunk {chunk[0].hex()} is not at {place.offset} of the frame at {place.frame_offset}"
                yield Finding("missing", keys.pack_key(place.pack), message, digest)

    def _verify_names(self, there: set[str]) -> Iterator[Finding]:
        published = set()
        for found in self._objects.list(keys.REFS):
            key = keys.read_ref_key(found.key)
            if key is None:
                continue
            published.add(key.ref)
            try:
                digest = refs.read_ref(self._objects, key.ref, key.platform)
            except LayerkitError as error:
                yield _finding(error, found.key)
                continue
            # Published while this run was under way: then the layer is there by now.
            if digest not in there and not layers.has_layer(self._objects, digest):
                yield Finding("missing", found.key, "names a layer that is not in the store", digest)
        tagged = {key.ref for key in map(keys.read_tag_key, _keys(self._objects, keys.TAGS)) if key is not None}
        for tag in sorted(tagged, key=str):
            try:
                version = tags.read_tag(self._objects, tag).version
            except LayerkitError as error:
                yield _finding(error, keys.tag_prefix(tag))
                continue
            if version and tag.with_version(version) not in published:
                yield Finding("missing", keys.tag_prefix(tag), f"names version {version}, which is not published")

    def _verify_leases(self) -> Iterator[Finding]:
        for key in _keys(self._objects, keys.LEASES):
            try:
                leases.read_lease(self._objects, key)
            except MissingError:
                continue
            except LayerkitError as error:
                yield _finding(error, key)

    def _pack(self, pack: bytes) -> _PackReport:
        if pack not in self._packs:
            self._packs[pack] = _report_pack(self._objects, pack, data=self._data)
        return self._packs[pack]

    def _chunks_of(self, pack: bytes) -> _ChunkMap:
        if pack not in self._chunks:
            rows = read_footer(self._objects, pack).chunks(pack)
            self._chunks[pack] = {(row.place.frame_offset, row.place.offset): (row.id, row.length) for row in rows}
            if len(self._chunks) > _CHUNK_MAPS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(pack)
        return self._chunks[pack]


class _PackReport(NamedTuple):
    findings: list[Finding]
    frames: frozenset[Frame] | None
    """None when the footer cannot be read."""


def verify_layer(
    objects: ObjectStore, digest: str, *, data: bool = True, stored_chunks: StoredChunks | None = None
) -> Iterator[Finding]:
    """Every damage of one layer. See `Verification`."""
    return Verification(objects, data=data, stored_chunks=stored_chunks).verify_layer(digest)


def verify_store(
    objects: ObjectStore, *, data: bool = True, stored_chunks: StoredChunks | None = None
) -> Iterator[Finding]:
    """Every damage of a store. See `Verification`."""
    return Verification(objects, data=data, stored_chunks=stored_chunks).verify_store()


def _finding(error: LayerkitError, where: str, layer: str = "") -> Finding:
    return Finding(error.code, error.where or where, error.message, layer)


def _keys(objects: ObjectStore, prefix: str) -> list[str]:
    return [found.key for found in objects.list(prefix)]


def _report_pack(objects: ObjectStore, pack: bytes, *, data: bool) -> _PackReport:
    key = keys.pack_key(pack)
    try:
        footer = read_footer(objects, pack)
    except LayerkitError as error:
        return _PackReport([_finding(error, key)], None)
    findings = []
    if data:
        try:
            if hashlib.sha256(objects.get(key, max_bytes=MAX_PACK_BYTES)).digest() != pack:
                raise CorruptError("does not have the digest that its name says", where=key)
        except LayerkitError as error:
            findings = [_finding(error, key), *_damaged_frames(objects, pack, footer)]
    return _PackReport(findings, frozenset(footer.frames))


def _damaged_frames(objects: ObjectStore, pack: bytes, footer: PackFooter) -> Iterator[Finding]:
    """Which frames of a damaged pack are hurt: the rest can still be read."""
    chunks: dict[Frame, list[StoredChunk]] = {frame: [] for frame in footer.frames}
    for row in footer.chunks(pack):
        chunks[row.place.frame].append(row)
    for frame, rows in chunks.items():
        try:
            plain = read_frame(objects, pack, frame)
        except LayerkitError as error:
            yield Finding(error.code, keys.pack_key(pack), f"{error.message} ({len(rows)} chunks)")
            continue
        bad = [row for row in rows if id_of(plain[row.place.offset : row.place.offset + row.length]) != row.id]
        if bad:
            message = f"frame at {frame.offset}: {len(bad)} of {len(rows)} chunks have other bytes"
            yield Finding("corrupt", keys.pack_key(pack), message)
