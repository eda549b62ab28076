"""`layerkit doctor`."""

from __future__ import annotations

import click

from layerkit.cli.output import json_option, print_json


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Find out by trying what this host can do, and say what to install or change for the rest."""
    from layerkit.fuse.doctor import frontend_choice, run_doctor

    probes = run_doctor()
    frontends = frontend_choice()
    if as_json:
        for probe in probes:
            print_json(probe.to_json())
        print_json({"result": {"frontends": frontends, "missing": [probe.name for probe in probes if not probe.ok]}})
        return
    width = max(len(probe.name) for probe in probes)
    for probe in probes:
        mark = click.style("ok", fg="green") if probe.ok else click.style("no", fg="yellow")
        click.echo(f"{mark}  {probe.name.ljust(width)}  {probe.detail}")
        if not probe.ok:
            indent = " " * (width + 6)
            click.echo(f"{indent}for {probe.needed_for}" + (f": {probe.fix}" if probe.fix else ""))
    for name, problem in frontends.items():
        click.echo(f"frontend {name}: {problem or 'used'}")
