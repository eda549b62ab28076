"""The file side of a stage between two steps: a stack of layers, seen as one tree when somebody asks. One thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from layerkit.build.chunk_reader import ChunkReader
from layerkit.build.pieces import Piece
from layerkit.build.stored import StoredLayers
from layerkit.errors import InputError
from layerkit.layer.facts import Facts
from layerkit.layer.merge import merge
from layerkit.layer.tree import Content, Inode, new_directory, walk
from layerkit.store.frames import ChunkPlace

MAX_SMALL_FILE = 16 << 20


class StageFiles:
    """Immutable but for what it has loaded; also a source of contents (`places.Source`).

    Attributes:
        layers: digests, bottom first.
    """

    def __init__(self, library: StoredLayers, layers: tuple[str, ...], before: StageFiles | None = None) -> None:
        """`before`: the same without the topmost layer; what it has loaded is used."""
        self._library = library
        self._before = before
        self.layers = layers

    def with_layer(self, digest: str) -> StageFiles:
        """The stage after a step that made this layer; the same when the step changed nothing ('')."""
        return StageFiles(self._library, (*self.layers, digest), self) if digest else self

    @cached_property
    def tree(self) -> Inode:
        """What a process would see; not to be changed (`build.edit`)."""
        if not self.layers:
            return new_directory()
        if self._before is not None and "tree" in self._before.__dict__:
            return merge([self._before.tree, self._library.get(self.layers[-1]).tree])
        return merge([self._library.get(digest).tree for digest in self.layers])

    @property
    def root(self) -> Inode:
        """The root directory for its attributes alone: those of the topmost layer's."""
        return self._library.get(self.layers[-1]).tree if self.layers else new_directory()

    def find_place(self, chunk_id: bytes, *, above: int = 0) -> ChunkPlace | None:
        """Where a chunk lies according to the layers from number `above` on; later ones first."""
        for digest in reversed(self.layers[above:]):
            place = self._library.get(digest).find_place(chunk_id)
            if place is not None:
                return place
        return None

    @cached_property
    def facts(self) -> Facts:
        """What is known of the files of `tree`."""
        layers = [self._library.get(digest) for digest in self.layers]
        return Facts.merged([(layer.facts, layer.tree) for layer in layers], self.tree)

    def read(self, content: Content | bytes) -> bytes:
        """The bytes of a small file.

        Raises:
            InputError: it is not small.
        """
        if isinstance(content, bytes):
            return content
        if content.size > MAX_SMALL_FILE:
            raise InputError(f"a file of {content.size} bytes where a small one is expected")
        pieces = self._chunks.pieces(content)
        return b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in pieces)

    def contents(self, wanted: Callable[[Content], bool]) -> Iterator[tuple[bytes, Content, Iterator[Piece]]]:
        """Path, content and bytes of each file whose content is wanted, from the packs."""
        seen: set[int] = set()
        for path, inode in walk(self.tree):
            body = inode.body
            if isinstance(body, Content) and id(body) not in seen and wanted(body):
                seen.add(id(body))
                yield path, body, self._chunks.pieces(body)

    @cached_property
    def _chunks(self) -> ChunkReader:
        return ChunkReader(self._library.store, self.find_place, self._library.forget_locators)
