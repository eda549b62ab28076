"""`layerkit import SOURCE -t REF`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from layerkit._util.text import format_bytes, format_seconds
from layerkit.cli.output import json_option, print_json


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-t", "--tag", "ref_text", required=True, metavar="REF", help="base/NAME[:VERSION] for the new layer.")
@click.option("--platform", "platform_text", metavar="OS/ARCH", help="What it is for; this machine if left out.")
@click.option("--no-cache", is_flag=True, help="Read every file, and replace what is damaged in the store.")
@click.option("--publish", is_flag=True, help="Publish the version at once; it is immutable from then on.")
@json_option
def command(
    source: Path, ref_text: str, platform_text: str | None, no_cache: bool, publish: bool, as_json: bool
) -> None:
    """Make a base of a directory or of a tar archive (plain, gzip, bzip2, xz, zstd).

    The layer gets a local, mutable name, base/NAME:dev where no version is given.

    \b
    layerkit import rootfs.tar.zst -t base/debian:12
    layerkit import ./rootfs -t base/mine --platform linux/arm64
    """
    from layerkit.build.import_layer import import_layer
    from layerkit.build.step_cache import step_cache_in_use
    from layerkit.cli.stores import open_default_store, open_knowledge
    from layerkit.errors import RefError
    from layerkit.ids import DEV_TAG, Platform, Ref, is_version

    ref = Ref.parse(ref_text)
    ref = ref if ref.version else ref.with_version(DEV_TAG)
    if ref.digest:
        raise RefError("the new layer's digest comes out of its contents", where=str(ref), hint="leave out @ and so on")
    if publish and not is_version(ref.version):
        raise RefError("what is published needs a version", where=str(ref), hint="a version begins with a digit")
    platform = Platform.parse(platform_text) if platform_text else Platform.host()
    start = time.monotonic()
    store = open_default_store(create=True)
    with step_cache_in_use():
        made = import_layer(store, open_knowledge(store), source, ref, platform, use_cache=not no_cache)
        if publish:
            store.publish_ref(ref, platform, made.digest)
        else:
            store.local_refs.set(ref, platform, made.digest)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"result": {
            "ref": str(ref), "digest": made.digest, "existed": made.existed, "plain_bytes": made.plain_bytes,
            "meta_bytes": made.meta_bytes, "chunk_index_bytes": made.chunk_index_bytes,
            "stored_bytes": made.stored_bytes, "seconds": seconds,
        }})  # fmt: skip
        return
    click.echo(f"{ref}  {made.digest}")
    click.echo(
        f"{format_bytes(made.plain_bytes)} of files, {format_bytes(made.stored_bytes)} new in the store, "
        f"{format_bytes(made.meta_bytes + made.chunk_index_bytes)} of metadata, {format_seconds(seconds)}"
    )
