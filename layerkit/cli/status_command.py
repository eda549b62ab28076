"""`layerkit status`."""

from __future__ import annotations

from typing import Any

import click

from layerkit._util.text import format_bytes
from layerkit.cli.output import json_option, print_json, print_table
from layerkit.errors import HostError


@click.command("status")
@json_option
def command(as_json: bool) -> None:
    """What this host has mounted, through which frontend, how much of it is here, and what went wrong lately."""
    from layerkit.fuse.client import HostClient

    try:
        with HostClient.connect(start=False) as client:
            status = client.status()
    except HostError as error:
        if as_json:
            print_json({"hostd": {"pid": None}, "holder": {"pid": None}, "mounts": [], "errors": []})
        else:
            click.echo(f"{error.message}; mounts of an earlier one go on until the next takes them over")
        return
    if as_json:
        print_json(status)
        return
    server = status["fuse_server"]["pid"]
    click.echo(f"hostd {status['hostd']['pid']}, {f'FUSE server {server}' if server else 'no FUSE server'}, "
               f"health {status['health']}")  # fmt: skip
    rows = [
        [
            mount["digest"][7:19], mount["frontend"], str(len(mount["leases"])), _present(mount), mount["path"],
        ]
        for mount in status["mounts"]
    ]  # fmt: skip
    print_table(["LAYER", "FRONTEND", "LEASES", "PRESENT", "MOUNTED AT"], rows)
    for overlay in status["overlays"]:
        click.echo(f"{overlay['target']}: a stack of {len(overlay['lowers'])}")
    for text in [*status["problems"], *(_error(error) for error in status["errors"])]:
        click.echo(click.style(str(text), fg="red"))


def _present(mount: dict[str, Any]) -> str:
    share = mount["present_chunks"] / mount["chunks"] if mount["chunks"] else 1.0
    return f"{share:.0%} of {format_bytes(mount['data_bytes'])}"


def _error(error: dict[str, Any]) -> str:
    return f"{error.get('time', '')} {error.get('where', '')}: {error.get('message', '')}".strip()
