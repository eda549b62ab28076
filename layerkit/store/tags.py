"""Tags: names that move from version to version by compare-and-swap; imported by `store.py`.

tags/KIND/NAME/TAG/GENERATION: each move creates the next generation with `put_if_absent`, which one writer wins
(link(2) in a directory, If-None-Match on S3). The highest generation is the tag. A removed tag is a generation that
names no version, so that a writer who read it before cannot bring it back. Functions without state, any thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import ConflictError, CorruptError, MissingError, RefError
from layerkit.ids import Ref, is_version
from layerkit.store.keys import TAGS, read_tag_key, tag_key, tag_prefix
from layerkit.store.objectstore import ObjectStore

KEPT_GENERATIONS = 16
_MAX_BYTES = 4096


class TagState(NamedTuple):
    """What a tag is: `version` ('' when it was never set or is removed) in `generation` (0: never set)."""

    version: str
    generation: int


def read_tag(objects: ObjectStore, ref: Ref) -> TagState:
    """The tag `ref.version` of a name."""
    # A generation may be cleared away between listing and reading; then a newer one is there.
    for _ in range(KEPT_GENERATIONS):
        newest = _generations(objects, ref)[-1:]
        if not newest:
            return TagState("", 0)
        try:
            return TagState(_record(objects, ref, newest[0])[0], newest[0])
        except MissingError:
            continue
    raise ConflictError("moves faster than it can be read", where=str(ref))


def get_tag(objects: ObjectStore, ref: Ref) -> str:
    """The version that a tag names; MissingError when there is no such tag."""
    version = read_tag(objects, ref).version
    if not version:
        raise MissingError("there is no such tag", where=str(ref))
    return version


def set_tag(objects: ObjectStore, ref: Ref, version: str, *, expected: TagState | None = None) -> TagState:
    """Move a tag to a version, '' to remove it.

    Args:
        expected: what the caller read before; None: whatever it is.

    Raises:
        ConflictError: somebody else moved it since.
    """
    if version and not is_version(version):
        raise RefError(f"a tag names a version, not {version!r}", where=str(ref))
    if expected is not None:
        return _swap(objects, ref, version, expected)
    for _ in range(100):
        try:
            return _swap(objects, ref, version, read_tag(objects, ref))
        except ConflictError:
            continue
    raise ConflictError("others move this tag all the time", where=str(ref))


def list_tags(objects: ObjectStore, prefix: str = TAGS) -> Iterator[tuple[Ref, str]]:
    """Every tag with the version that it names."""
    newest: dict[Ref, int] = {}
    for found in objects.list(prefix):
        if (key := read_tag_key(found.key)) is not None:
            newest[key.ref] = key.generation
    for ref in newest:
        if version := read_tag(objects, ref).version:
            yield ref, version


def _swap(objects: ObjectStore, ref: Ref, version: str, expected: TagState) -> TagState:
    mine = expected.generation + 1
    nonce = secrets.token_hex(8)
    record = canonical_json({"version": version, "nonce": nonce})
    if not objects.put_if_absent(tag_key(ref, mine), record) and not _is_ours(objects, ref, mine, nonce):
        raise ConflictError("somebody moved this tag meanwhile", where=str(ref))
    generations = _generations(objects, ref)
    if generations[-1] >= mine + KEPT_GENERATIONS:
        # Others went on so far that this generation had been cleared away, and we made it anew behind them.
        objects.delete(tag_key(ref, mine))
        raise ConflictError("somebody moved this tag meanwhile", where=str(ref))
    for generation in generations:
        if generation <= mine - KEPT_GENERATIONS:
            objects.delete(tag_key(ref, generation))
    return TagState(version, mine)


def _is_ours(objects: ObjectStore, ref: Ref, generation: int, nonce: str) -> bool:
    """After a lost answer and a second attempt a generation is there and yet our own: the nonce tells."""
    try:
        return _record(objects, ref, generation)[1] == nonce
    except MissingError:
        return False


def _generations(objects: ObjectStore, ref: Ref) -> list[int]:
    keys = (read_tag_key(found.key) for found in objects.list(tag_prefix(ref)))
    return [key.generation for key in keys if key is not None]


def _record(objects: ObjectStore, ref: Ref, generation: int) -> tuple[str, str]:
    key = tag_key(ref, generation)
    value = read_json_object(objects.get(key, max_bytes=_MAX_BYTES), f"{key}", max_bytes=_MAX_BYTES)
    version, nonce = value.get("version"), value.get("nonce")
    if not isinstance(version, str) or not isinstance(nonce, str) or (version and not is_version(version)):
        raise CorruptError("the tag names no version", where=key)
    return version, nonce
