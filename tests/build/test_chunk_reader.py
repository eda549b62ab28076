"""Bytes of files out of packs: verified, and found again where garbage collection has moved them."""

from __future__ import annotations

import os

import pytest

from layerkit.build.stack_view import StackView
from layerkit.build.stored import StoredLayers
from layerkit.errors import CorruptError, MissingError
from layerkit.layer.tree import Content
from layerkit.store.keys import pack_key
from layerkit.store.locator import Locator
from layerkit.store.packer import Packer
from layerkit.store.params import StoreParams
from layerkit.store.store import Store
from tests.build.engine import Bench, at

DATA = {"one": os.urandom(30_000), "two": os.urandom(40_000), "gap": b"a" * 5000 + bytes(3 << 20) + b"b" * 5000}


@pytest.fixture
def digest(bench: Bench) -> str:
    bench.files(**DATA)
    return bench.one("FROM scratch\nCOPY . /\n", tag="base/b").digest


def rewrite(bench: Bench, digest: str) -> None:
    """Put the layer's chunks into other packs, as garbage collection does it; the old packs go."""
    layer = bench.layer(digest)
    old = layer.locator.packs
    chunks = {}
    tree = bench.stack(digest)
    for _, content, pieces in tree.contents(lambda content: True):
        data = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        for length, key in content.chunks:
            if key:
                chunks[key], data = data[:length], data[length:]
    store = bench.store
    moved = Store(store.url, store.objects, StoreParams(pack_size=64 << 10, frame_size=8192), store.local_refs)
    with Packer(moved) as packer:
        for key, data in chunks.items():
            packer.add(key, data)
        packer.flush()
        places = [packer.place(layer.chunk_index.stored_id(number)) for number in range(len(layer.locator))]
    store.objects.put(f"locators/{digest[7:9]}/{digest[7:]}", Locator.build(places).to_bytes())
    for pack in old:
        store.objects.delete(pack_key(pack))


def test_a_missing_pack_is_looked_for_in_a_new_locator(bench: Bench, digest: str) -> None:
    library = StoredLayers(bench.store)
    view, files = StackView(library, (digest,)), bench.stack(digest)
    assert b"".join(view.read(at(view.tree, "one"), "one")) == DATA["one"]
    body = at(files.tree, "two").body
    assert isinstance(body, Content)
    assert files.find_place(body.chunks[0].id) is not None
    rewrite(bench, digest)
    for name, data in DATA.items():
        assert b"".join(view.read(at(view.tree, name), name)) == data
    assert files.read(body) == DATA["two"]


def test_a_pack_that_is_gone_for_good_is_named(bench: Bench, digest: str) -> None:
    packs = bench.store.get_locator(digest).packs
    for pack in packs:
        bench.store.objects.delete(pack_key(pack))
    view = StackView(StoredLayers(bench.store), (digest,))
    with pytest.raises(MissingError, match=pack_key(packs[0])):
        list(view.read(at(view.tree, "one"), "one"))


def test_l11_other_bytes_are_never_given(bench: Bench, digest: str) -> None:
    [pack] = bench.store.get_locator(digest).packs
    path = bench.folder / "store" / pack_key(pack)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    view = StackView(StoredLayers(bench.store), (digest,))
    with pytest.raises(CorruptError, match=pack_key(pack)):
        [list(view.read(at(view.tree, name), name)) for name in DATA]
