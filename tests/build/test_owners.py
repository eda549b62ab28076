"""Names of users and groups, looked up in the stage's own tables."""

from __future__ import annotations

import pytest

from layerkit.build.owners import find_owner
from layerkit.errors import InputError
from layerkit.layer.tree import Inode, new_directory
from tests.layer.layer_trees import file, symlink

PASSWD = b"""# comment
root:x:0:0:root:/root:/bin/bash
joe:x:1000:1001:Joe,,,:/home/joe:/bin/sh
joe:x:7:7:second:/:/bin/sh
caf\xe9:x:5:6::/:
broken:x
words:x:one:two::/:
huge:x:4294967296:0::/:
formfeed:x:9:9:a\x0cjoe2:x:8:8::/:
"""
GROUP = b"root:x:0:\nstaff:x:50:joe,root\nlast:x:60:"


def stage(passwd: bytes = PASSWD, group: bytes = GROUP) -> Inode:
    root, etc = new_directory(), new_directory()
    root.entries[b"etc"] = etc
    etc.entries[b"passwd"], etc.entries[b"group"] = file(passwd), file(group)
    return root


def read_from(root: Inode, passwd: bytes = PASSWD, group: bytes = GROUP) -> object:
    tables = {id(root.entries[b"etc"].entries[b"passwd"].body): passwd,
              id(root.entries[b"etc"].entries[b"group"].body): group}  # fmt: skip
    return lambda body: tables[id(body)]


@pytest.mark.parametrize(
    ("text", "owner"),
    [("0", (0, 0)), ("1000", (1000, 1000)), ("12:34", (12, 34)), ("joe", (1000, 1001)), ("joe:staff", (1000, 50)),
     ("joe:77", (1000, 77)), ("5:staff", (5, 50)), ("joe:last", (1000, 60)), ("joe:", (1000, 1001)),
     ("4294967295:4294967295", (4294967295, 4294967295)), ("formfeed", (9, 9))],
)  # fmt: skip
def test_owners(text: str, owner: tuple[int, int]) -> None:
    root = stage()
    assert find_owner(root, text, read_from(root)) == owner  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["jo", "joe:stuff", "", ":staff", "4294967296", "9" * 5000, "1:" + "9" * 5000, "words", "huge", "joe2",
             "broken", "²", "-1", "joe:-1"],
)  # fmt: skip
def test_owners_that_nobody_has(text: str) -> None:
    root = stage()
    with pytest.raises(InputError):
        find_owner(root, text, read_from(root))  # type: ignore[arg-type]


def test_near_names_are_suggested() -> None:
    root = stage()
    with pytest.raises(InputError) as caught:
        find_owner(root, "jow", read_from(root))  # type: ignore[arg-type]
    assert "joe" in caught.value.hint


def test_tables_behind_links_and_missing_ones() -> None:
    root = stage()
    etc = root.entries[b"etc"]
    root.entries[b"etc2"], root.entries[b"etc"] = etc, symlink(b"etc2")
    tables = {id(etc.entries[b"passwd"].body): PASSWD}
    assert find_owner(root, "joe", lambda body: tables[id(body)]) == (1000, 1001)
    with pytest.raises(InputError):
        find_owner(new_directory(), "joe", lambda body: b"")
    assert find_owner(new_directory(), "5", lambda body: b"") == (5, 5)
