"""`layerkit inspect REF`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, platform_option, print_json

if TYPE_CHECKING:
    from layerkit.cli.targets import Target

_BYTES = {"plain_bytes": "files", "meta_bytes": "meta", "chunk_index_bytes": "chunk index", "facts_bytes": "facts",
          "stored_bytes": "in packs"}  # fmt: skip


@click.command("inspect")
@click.argument("ref")
@click.option("--facts", "all_facts", is_flag=True, help="Also what is known of each file and the packages found.")
@platform_option
@json_option
def command(ref: str, all_facts: bool, platform_text: str | None, as_json: bool) -> None:
    """Show a layer: its config, its sizes, what it stands on, and what is known of its files.

    REF is a reference, a digest (8 digits are enough), or a range in quotes.

    \b
    layerkit inspect base/debian:12
    layerkit inspect 'toolkit/node>=22,<24'
    layerkit inspect sha256:7418ebd8
    """
    from layerkit.build.stored import StoredLayers
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import find_target

    library = StoredLayers(open_default_store())
    target = find_target(library, ref, platform_text)
    value = _describe(library, target)
    if all_facts:
        value["facts"] = json.loads(target.layer.facts.to_bytes())["files"]
    if as_json:
        print_json(value)
    else:
        _print(value)


def _describe(library: Any, target: Target) -> dict[str, Any]:
    from dataclasses import asdict

    from layerkit.build.facts_summary import summarize
    from layerkit.build.sizes import layer_sizes, stored_usage

    layer = target.layer
    usage = stored_usage(layer)
    names = sorted({str(entry.ref) for entry in library.store.list_refs() if entry.digest == layer.digest})
    return {
        "ref": target.name, "digest": layer.digest, "platform": str(target.platform), "origin": target.origin,
        "names": names, **asdict(layer_sizes(layer)), "chunks": layer.chunk_index.stored_count,
        "frames": usage.frames, "packs": usage.packs, "amplification": round(usage.amplification, 3),
        "stack": list(library.stack_of(layer.digest)), "config": json.loads(layer.config.to_bytes()),
        "summary": asdict(summarize(layer.facts)), "manifest": json.loads(layer.manifest.to_bytes()),
    }  # fmt: skip


def _print(value: dict[str, Any]) -> None:
    from layerkit._util.text import format_bytes

    _line("layer", value["ref"])
    _line("digest", value["digest"])
    _line("platform", f"{value['platform']}, {value['origin']}")
    _line("names", ", ".join(value["names"]))
    _line("sizes", ", ".join(f"{format_bytes(value[key])} {what}" for key, what in _BYTES.items()))
    _line("stored in", f"{value['chunks']} chunks, {value['frames']} frames, {value['packs']} packs; "
                       f"{value['amplification']} bytes read a byte of it")  # fmt: skip
    below = value["stack"][:-1]
    _line("stands on", "\n".join(reversed(below)))
    click.echo(click.style("config", bold=True))
    for key, part in value["config"].items():
        _line(f"  {key}", part if isinstance(part, str) else json.dumps(part, ensure_ascii=False))
    click.echo(click.style("files", bold=True))
    for key, part in value["summary"].items():
        text = ", ".join(f"{name} {count}" for name, count in part.items()) if isinstance(part, dict) else str(part)
        _line(f"  {key}", text)
    for path, fact in value.get("facts", {}).items():
        click.echo(f"  /{path}  {json.dumps(fact, ensure_ascii=False)}")


def _line(name: str, text: str) -> None:
    if text:
        first, *more = text.split("\n")
        click.echo(f"{click.style(name.ljust(14), bold=not name.startswith(' '))}  {first}")
        for line in more:
            click.echo(f"{'':14}  {line}")
