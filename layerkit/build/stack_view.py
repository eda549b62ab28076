"""A stack of stored layers to look into: one tree, and the bytes of its files. Imported by the command line.

Nothing is mounted and nothing needs privileges. Everything is read when it is first asked for; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from layerkit._util.text import did_you_mean
from layerkit.build.chunk_reader import ChunkReader
from layerkit.build.paths import join, resolve, split
from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.errors import InputError, MissingError
from layerkit.layer.merge import merge
from layerkit.layer.tree import Content, Inode
from layerkit.store.frames import ChunkPlace

_ZEROS_SIZE = 1 << 20


class StackView:
    """Layers as one tree.

    Args:
        library: where they come from.
        digests: bottom first; at least one.
        own: there is one layer, and it is shown as it is, whiteouts too.
    """

    def __init__(self, library: StoredLayers, digests: tuple[str, ...], *, own: bool = False) -> None:
        self._library = library
        self._own = own
        self.digests = digests

    @property
    def layers(self) -> list[StoredLayer]:
        """The layers, bottom first."""
        return [self._library.get(digest) for digest in self.digests]

    @cached_property
    def tree(self) -> Inode:
        """What a process would see."""
        trees = [layer.tree for layer in self.layers]
        return trees[0] if self._own else merge(trees)

    def chunks(self) -> dict[bytes, int]:
        """Id and length of every chunk that the layers hold, also of files that a layer above hides."""
        found: dict[bytes, int] = {}
        for index in (layer.chunk_index for layer in self.layers):
            for number in range(index.stored_count):
                found[index.stored_id(number)] = index.lengths[index.entry_of_stored(number)]
        return found

    def find(self, path: bytes, *, follow_last: bool = True) -> tuple[bytes, Inode]:
        """The real path (absolute) and the inode that a path means, symlinks followed inside the tree.

        Raises:
            MissingError: nothing is there; the hint names what looks alike.
            InputError: a loop of symlinks.
        """
        found = resolve(self.tree, path, follow_last=follow_last)
        if found.inode is None:
            raise self._missing(path, found.parts[: len(found.parts) - found.missing])
        return join(found.parts), found.inode

    def _missing(self, path: bytes, there: tuple[bytes, ...]) -> MissingError:
        folder = resolve(self.tree, join(there)).inode
        names = list(folder.entries) if folder is not None and folder.is_dir else []
        wanted = split(path)[-1:] or [b""]
        near = did_you_mean(_shown(wanted[0]), map(_shown, names))
        return MissingError(f"no such file; /{_shown(b'/'.join(there))} is there", where=_shown(path), hint=near)

    def read(self, inode: Inode, where: str) -> Iterator[bytes]:
        """The bytes of a regular file in pieces of at most a MiB, each verified.

        Raises:
            InputError: it is not a regular file.
            MissingError, CorruptError: a pack is gone or damaged.
        """
        body = inode.body
        if not inode.is_regular or not isinstance(body, Content | bytes):
            raise InputError("is not a regular file", where=where)
        return iter((body,)) if isinstance(body, bytes) else self._read_content(body)

    def _read_content(self, content: Content) -> Iterator[bytes]:
        places = self._places(content)

        def renew() -> None:
            self._library.forget_locators()
            places.update(self._places(content))

        for piece in ChunkReader(self._library.store, places.get, renew).pieces(content):
            if isinstance(piece, bytes):
                yield piece
                continue
            zeros = bytes(min(piece, _ZEROS_SIZE))
            for start in range(0, piece, _ZEROS_SIZE):
                yield zeros[: piece - start]

    def _places(self, content: Content) -> dict[bytes, ChunkPlace]:
        wanted = {chunk.id for chunk in content.chunks if chunk.id}
        places: dict[bytes, ChunkPlace] = {}
        for layer in reversed(self.layers):
            if wanted - places.keys():
                places.update(layer.places_of(wanted - places.keys()))
        return places


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
