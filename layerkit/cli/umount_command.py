"""`layerkit umount DIR | --all`."""

from __future__ import annotations

from pathlib import Path

import click

from layerkit.cli.output import json_option, print_json
from layerkit.cli.stacks import remove_dead_sandboxes
from layerkit.errors import HostError, InputError


@click.command("umount")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Every mount of this instance.")
@json_option
def command(folders: tuple[Path, ...], everything: bool, as_json: bool) -> None:
    """Undo mounts that `layerkit mount` made."""
    from layerkit.fuse.client import HostClient

    if everything == bool(folders):
        raise InputError("name folders, or say --all")
    try:
        client = HostClient.connect(start=False)
    except HostError:
        if not everything:
            raise
        # Without a daemon there may still be mounts of one that was killed; a new one takes them over.
        client = HostClient.connect()
    with client:
        answers = [client.umount_all()] if everything else [client.umount(folder) for folder in folders]
    if everything:
        remove_dead_sandboxes()
    if as_json:
        print_json({"result": {"answers": answers}})
