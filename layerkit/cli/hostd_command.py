"""`layerkit hostd`."""

from __future__ import annotations

import click

from layerkit.cli.output import json_option, print_json


@click.command("hostd")
@click.option("--stop", is_flag=True, help="Undo every mount and end the daemon that runs.")
@json_option
def command(stop: bool, as_json: bool) -> None:
    """Run the host daemon in the foreground, as a service manager wants it. Other commands start it on demand."""
    if stop:
        from layerkit.fuse.client import HostClient

        with HostClient.connect(start=False) as client:
            client.shutdown()
        if as_json:
            print_json({"result": {"stopped": True}})
        return
    from layerkit.fuse.hostd import run_hostd

    run_hostd()
