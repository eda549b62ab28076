"""`layerkit df`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from layerkit.store.store import Store


@click.command("df")
@json_option
def command(as_json: bool) -> None:
    """Show what takes how much space: the store by kind of object, what sharing saves, and this machine's caches.

    \b
    layerkit df
    layerkit df --json
    """
    from layerkit.cli.stores import open_default_store

    store = open_default_store()
    rows = [*_store_rows(store), *_local_rows(store)]
    shared = _sharing(store)
    if as_json:
        for row in rows:
            print_json(row)
        print_json({"result": {"store": store.url, **shared}})
        return
    _print(store, rows, shared)


def _store_rows(store: Store) -> list[dict[str, Any]]:
    from layerkit.store.usage import store_usage

    shares = store_usage(store.objects)
    return [
        {"part": "store", "kind": kind, "objects": share.objects, "bytes": share.bytes}
        for kind, share in shares.items() if share.objects
    ]  # fmt: skip


def _sharing(store: Store) -> dict[str, Any]:
    from layerkit.store.usage import dedupe_usage

    found = dedupe_usage(store.objects)
    return {
        "layers": found.layers, "referenced_bytes": found.referenced_bytes, "distinct_bytes": found.distinct_bytes,
        "pack_bytes": found.pack_bytes, "unreferenced_bytes": max(0, found.pack_bytes - found.distinct_bytes),
        "dedupe_ratio": round(found.ratio, 3),
    }  # fmt: skip


def _local_rows(store: Store) -> list[dict[str, Any]]:
    from layerkit import settings
    from layerkit.cli.host_cache import describe_host_cache
    from layerkit.cli.stores import open_knowledge
    from layerkit.store.knowledge import FOLDER

    knowledge = open_knowledge(store)
    steps = knowledge.step_layers()
    host = describe_host_cache()
    return [
        {"part": "local", "kind": "step cache", "objects": len(steps), "bytes": knowledge.step_bytes(),
         "budget_bytes": settings.step_cache_budget_bytes()},
        {"part": "local", "kind": "host cache", "objects": host["layers"], "bytes": host["used_bytes"],
         "budget_bytes": host["budget_bytes"]},
        {"part": "local", "kind": "knowledge", "objects": 1, "bytes": _allocated(settings.home_dir() / FOLDER)},
    ]  # fmt: skip


def _allocated(folder: Path) -> int:
    """What files take on disk; sparse ones count by what they hold."""
    if not folder.is_dir():
        return 0
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file())


def _print(store: Store, rows: list[dict[str, Any]], shared: dict[str, Any]) -> None:
    from layerkit._util.text import format_bytes

    table = []
    for row in rows:
        budget = f"of {format_bytes(row['budget_bytes'])}" if "budget_bytes" in row else ""
        table.append((row["part"], row["kind"], str(row["objects"]), format_bytes(row["bytes"]), budget))
    print_table(("WHERE", "KIND", "OBJECTS", "BYTES", ""), table, right=(2, 3))
    click.echo(
        f"{store.url}: {shared['layers']} layers use {format_bytes(shared['distinct_bytes'])} of the packs, "
        f"{shared['dedupe_ratio']} times over; {format_bytes(shared['unreferenced_bytes'])} are footers and garbage"
    )
