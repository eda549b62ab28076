"""`layerkit diff OLD NEW`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, own_option, platform_option, print_json, print_line, shown

if TYPE_CHECKING:
    from layerkit.build.stack_view import StackView
    from layerkit.layer.compare import Difference

_LETTERS = {"added": "A", "removed": "D", "changed": "M"}


@click.command("diff")
@click.argument("old")
@click.argument("new")
@own_option
@platform_option
@json_option
def command(old: str, new: str, own: bool, platform_text: str | None, as_json: bool) -> int:
    """Compare two layers or stacks, file by file: A added, D removed, M changed and in what.

    The exit code is 0 when they hold the same, 1 when they differ, as of diff(1); other codes are errors.

    \b
    layerkit diff base/debian:12.1 base/debian:12.2
    layerkit diff base/debian:12 workspace/app:dev
    """
    from layerkit.build.stored import StoredLayers
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import open_stack
    from layerkit.layer.compare import differences

    library = StoredLayers(open_default_store())
    before = open_stack(library, old, platform_text, own=own)
    after = open_stack(library, new, platform_text, own=own)
    counts: Counter[str] = Counter()
    for difference in differences(before.tree, after.tree):
        counts[difference.kind] += 1
        _print(difference, as_json=as_json)
    _print_summary(before, after, counts, as_json=as_json)
    return 1 if counts else 0


def _print(difference: Difference, *, as_json: bool) -> None:
    from layerkit.cli.entries import entry_json

    if as_json:
        value: dict[str, Any] = {"path": entry_path(difference.path), "kind": difference.kind}
        if difference.fields:
            value["fields"] = list(difference.fields)
        for side, inode in (("before", difference.before), ("after", difference.after)):
            if inode is not None:
                value[side] = entry_json(difference.path, inode)
        print_json(value, flush=False)
        return
    print_line(f"{_LETTERS[difference.kind]} /{shown(difference.path)}{_details(difference)}")


def entry_path(path: bytes) -> str:
    """A path in JSON."""
    from layerkit.layer.facts import path_text

    return "/" + path_text(path)


def _details(difference: Difference) -> str:
    before, after = difference.before, difference.after
    if before is None or after is None:
        size = (before or after).size if (before or after) is not None else 0  # type: ignore[union-attr]
        return f"  {size} bytes" if size else ""
    sizes = f" {before.size} → {after.size} bytes" if before.size != after.size else ""
    return f"  ({', '.join(difference.fields)}{sizes})"


def _print_summary(before: StackView, after: StackView, counts: Counter[str], *, as_json: bool) -> None:
    from layerkit._util.text import format_bytes

    fresh, gone = _chunk_bytes(before, after)
    if as_json:
        kinds = {kind: counts[kind] for kind in _LETTERS}
        print_json({"result": {"different": bool(counts), **kinds, "new_chunk_bytes": fresh, "gone_chunk_bytes": gone}})
        return
    if counts:
        click.echo(
            f"{counts['added']} added, {counts['removed']} removed, {counts['changed']} changed; "
            f"{format_bytes(fresh)} of new chunks, {format_bytes(gone)} of chunks no longer needed"
        )


def _chunk_bytes(before: StackView, after: StackView) -> tuple[int, int]:
    """Plain bytes of the chunks that only the second, and only the first, holds: what an update costs and frees."""
    olds, news = before.chunks(), after.chunks()
    return (
        sum(length for id_, length in news.items() if id_ not in olds),
        sum(length for id_, length in olds.items() if id_ not in news),
    )
