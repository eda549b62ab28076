"""`layerkit cat STACK PATH…`."""

from __future__ import annotations

import os
import sys

import click

from layerkit.cli.output import json_option, own_option, platform_option, print_json


@click.command("cat")
@click.argument("stack")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@own_option
@platform_option
@json_option
def command(stack: str, paths: tuple[str, ...], own: bool, platform_text: str | None, as_json: bool) -> None:
    """Print files of a layer or stack; every byte is verified.

    Symlinks are followed inside the stack. All paths are looked up before the first byte is printed. With --json each
    piece of a file is an object with path, offset and base64.

    \b
    layerkit cat base/debian:12 /etc/os-release
    layerkit cat base/debian:12,toolkit/node /opt/node/LICENSE
    """
    from base64 import b64encode

    from layerkit.build.stored import StoredLayers
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import open_stack

    view = open_stack(StoredLayers(open_default_store()), stack, platform_text, own=own)
    found = [(path, view.find(os.fsencode(path))[1]) for path in paths]
    contents = [(path, view.read(inode, path)) for path, inode in found]
    total = 0
    for path, pieces in contents:
        offset = 0
        for piece in pieces:
            if as_json:
                print_json({"path": path, "offset": offset, "base64": b64encode(piece).decode()})
            else:
                sys.stdout.buffer.write(piece)
            offset += len(piece)
        total += offset
    if as_json:
        print_json({"result": {"files": len(contents), "bytes": total}})
    sys.stdout.flush()
