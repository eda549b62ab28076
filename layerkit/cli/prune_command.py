"""`layerkit prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, print_json

if TYPE_CHECKING:
    from layerkit.build.step_cache import PrunedSteps


@click.command("prune")
@click.option("--all", "everything", is_flag=True, help="Everything that can be made again, not only what is too much.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def command(everything: bool, dry_run: bool, as_json: bool) -> None:
    """Free what can be made or fetched again: step cache and host cache, down to their budgets.

    The step cache (LAYERKIT_STEP_CACHE): steps that were not used for longest go first, and with them their layers,
    unless a name, a lease, another step or a layer above needs these. Packs stay until garbage collection: their
    chunks may serve other layers.

    The host cache (LAYERKIT_HOST_CACHE): data files of layers that are not mounted, the least recently mounted first.

    Temporary files that killed writers left in the store are removed once they are a day old.

    \b
    layerkit prune --dry-run
    layerkit prune --all
    """
    from layerkit import settings
    from layerkit.build.step_cache import prune_steps
    from layerkit.cli.host_cache import prune_host_cache
    from layerkit.cli.stores import open_default_store, open_knowledge

    store = open_default_store()
    step_budget = 0 if everything else settings.step_cache_budget_bytes()
    host_budget = 0 if everything else settings.host_cache_budget_bytes()
    steps = prune_steps(store, open_knowledge(store), step_budget, dry_run=dry_run)
    stale = 0 if dry_run else store.sweep_stale()
    host = prune_host_cache(host_budget, dry_run=dry_run)
    if as_json:
        _print_json(steps, host, step_budget, stale, dry_run=dry_run)
    else:
        _print(steps, host, stale, dry_run=dry_run)


def _print_json(steps: PrunedSteps, host: dict[str, Any], budget: int, stale: int, *, dry_run: bool) -> None:
    from dataclasses import asdict

    print_json({"result": {
        "dry_run": dry_run, "step_cache": {**asdict(steps), "budget_bytes": budget}, "host_cache": host,
        "stale_files": stale,
    }})  # fmt: skip


def _print(steps: PrunedSteps, host: dict[str, Any], stale: int, *, dry_run: bool) -> None:
    from layerkit._util.text import format_bytes

    freed = "would free" if dry_run else "freed"
    click.echo(
        f"step cache: {steps.steps} steps {'would be ' if dry_run else ''}forgotten; {freed} "
        f"{format_bytes(steps.freed_bytes)} with {len(steps.layers)} layers, packs stay"
    )
    if steps.kept_layers:
        click.echo(f"step cache: {steps.kept_layers} layers of these steps stay, since something else needs them")
    click.echo(
        f"host cache: {freed} {format_bytes(host['freed_bytes'])} of {len(host['evicted'])} layers; "
        f"{format_bytes(host['used_bytes'])} are left"
    )
    if stale:
        click.echo(f"store: {stale} unfinished files removed")
