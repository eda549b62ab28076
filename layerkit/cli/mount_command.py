"""`layerkit mount STACK DIR`."""

from __future__ import annotations

from pathlib import Path

import click

from layerkit.cli.output import json_option, print_json
from layerkit.cli.stacks import existing_folder, mounted_stack, stack_words


@click.command("mount")
@click.argument("stack")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rw", is_flag=True, help="Writable; what is written goes with the mount.")
@click.option("--prefetch", type=click.Choice(["all", "none"]), default="all", help="Fetch in the background, or not.")
@click.option("--frontend", type=click.Choice(["auto", "local", "fuse"]), default="auto", help="How data is served.")
@click.option("--allow-rebase", is_flag=True, help="Stack a workspace on a base it was not built on.")
@json_option
def command(
    stack: str, folder: Path, rw: bool, prefetch: str, frontend: str, allow_rebase: bool, as_json: bool
) -> None:
    """Mount a stack lazily at an existing folder: metadata now, data as it is read.

    \b
    layerkit mount base/debian:12 /mnt
    layerkit mount workspace/app,toolkit/node /mnt --rw
    """
    from layerkit import settings
    from layerkit.fuse.client import HostClient
    from layerkit.runtime.skeleton import lowers_with_skeleton

    words = stack_words(stack)
    existing_folder(folder)
    with HostClient.connect() as client, mounted_stack(
        client, words, prefetch=prefetch, frontend=frontend, allow_rebase=allow_rebase
    ) as (lease, composition):
        client.overlay(lowers_with_skeleton(composition.layers, settings.home_dir()), folder, lease=lease, rw=rw)
    if as_json:
        layers = [{"ref": layer.ref, "digest": layer.digest} for layer in composition.layers]
        print_json({"result": {"target": str(folder.absolute()), "rw": rw, "layers": layers}})
        return
    click.echo(f"{', '.join(layer.full_name for layer in composition.layers)} at {folder}")
