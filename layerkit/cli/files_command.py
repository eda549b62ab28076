"""`layerkit files STACK [PATH]`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from layerkit.cli.output import json_option, own_option, platform_option, print_json, print_line, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layerkit.layer.tree import Inode


@click.command("files")
@click.argument("stack")
@click.argument("path", default="/")
@click.option("-l", "--long", "is_long", is_flag=True, help="Mode, links, owner, size, time (UTC) and target as well.")
@own_option
@platform_option
@json_option
def command(stack: str, path: str, is_long: bool, own: bool, platform_text: str | None, as_json: bool) -> None:
    """List the files of a layer or stack, below PATH where it is given.

    STACK is a reference or several, joined by commas; a workspace brings the layers that it stands on. Of a symlink
    PATH is followed inside the stack. A + behind the mode marks xattrs, a w in its place a whiteout.

    \b
    layerkit files base/debian:12 /etc
    layerkit files -l base/debian:12,toolkit/node /opt
    layerkit files --own -l workspace/app:dev
    """
    from layerkit.build.stored import StoredLayers
    from layerkit.cli.entries import entry_json, entry_line
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import open_stack

    view = open_stack(StoredLayers(open_default_store()), stack, platform_text, own=own)
    top, inode = view.find(os.fsencode(path))
    links = _link_counts(view.tree) if is_long or as_json else {}
    for where, found in _below(top.strip(b"/"), inode):
        count = links.get(id(found), 1)
        if as_json:
            print_json(entry_json(where, found, count), flush=False)
        else:
            print_line(entry_line(where, found, count) if is_long else f"/{shown(where)}")


def _below(top: bytes, inode: Inode) -> Iterator[tuple[bytes, Inode]]:
    from layerkit.layer.tree import walk

    for path, found in walk(inode):
        yield b"/".join(part for part in (top, path) if part), found


def _link_counts(tree: Inode) -> dict[int, int]:
    """How many names each inode has that is no directory and has several."""
    from collections import Counter

    from layerkit.layer.tree import walk

    counts = Counter(id(inode) for _, inode in walk(tree) if not inode.is_dir)
    return {key: count for key, count in counts.items() if count > 1}
