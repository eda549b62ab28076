"""Which things in a tree the sources of a COPY mean."""

from __future__ import annotations

import pytest

from layerkit.build.selection import select_sources
from layerkit.errors import InputError, MissingError
from layerkit.layer.tree import Inode, new_directory
from tests.layer.layer_trees import directory, file, symlink


def tree() -> Inode:
    return directory(
        {
            b"a.txt": file(b"a"), b"b.txt": file(b"b"), b"[odd].txt": file(b"o"), b"caf\xe9": file(b"c"),
            b"src": directory({b"x.py": file(), b"y.py": file(), b"z.c": file(), b"sub": directory({b"x.py": file()})}),
            b"link": symlink(b"a.txt"), b"dirlink": symlink(b"/src"), b"up": symlink(b"../../src"),
            b"dangling": symlink(b"nowhere"), b"loop": symlink(b"loop"),
        }
    )  # fmt: skip


def names(pattern: str) -> list[bytes]:
    return [source.name for source in select_sources(tree(), pattern, "the build context")]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a.txt", [b"a.txt"]), ("/a.txt", [b"a.txt"]), ("./src/../a.txt", [b"a.txt"]),
        ("*.txt", [b"[odd].txt", b"a.txt", b"b.txt"]),
        ("src/*.py", [b"x.py", b"y.py"]), ("src/*/x.py", [b"x.py"]), ("*/*.c", [b"z.c", b"z.c", b"z.c"]),
        ("dirlink/?.c", [b"z.c"]), ("[ab].txt", [b"a.txt", b"b.txt"]), ("[[]odd].txt", [b"[odd].txt"]),
        ("caf\udce9", [b"caf\xe9"]), ("caf?", [b"caf\xe9"]), ("up/z.c", [b"z.c"]), ("../../a.txt", [b"a.txt"]),
        ("", [b""]), (".", [b""]), ("link", [b"link"]), ("src/sub/", [b"sub"]),
    ],
)  # fmt: skip
def test_sources(pattern: str, wanted: list[bytes]) -> None:
    assert names(pattern) == wanted


def test_b09_a_source_that_is_a_link_is_what_it_leads_to() -> None:
    root = tree()
    (source,) = select_sources(root, "link", "it")
    assert source.inode is root.entries[b"a.txt"]
    (source,) = select_sources(root, "dirlink/sub", "it")
    assert source.inode is root.entries[b"src"].entries[b"sub"]


@pytest.mark.parametrize(
    "pattern", ["c.txt", "src/x.c", "*.md", "dangling", "loop", "a.txt/x", "a.txt/*", "src/*.txt", "nowhere/*"]
)
def test_what_is_not_there_is_an_error(pattern: str) -> None:
    with pytest.raises(MissingError):
        names(pattern)


def test_a_malformed_pattern_is_an_error() -> None:
    with pytest.raises(InputError, match="malformed"):
        names("sr[c/x.py")


def test_near_names_are_suggested() -> None:
    with pytest.raises(MissingError) as caught:
        names("src/x.pyy")
    assert "x.py" in caught.value.hint
    with pytest.raises(MissingError, match="build context"):
        select_sources(new_directory(), "anything", "the build context")
