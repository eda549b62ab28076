"""`layerkit verify [REF…]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layerkit.cli.output import json_option, platform_option, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layerkit.build.stored import StoredLayers
    from layerkit.store.store import Store
    from layerkit.store.verify import Finding, Verification


@click.command("verify")
@click.argument("refs", nargs=-1, metavar="[REF]...")
@click.option("--all", "everything", is_flag=True, help="The whole store; so it is, too, when no REF is given.")
@click.option("--no-data", is_flag=True, help="Leave the packs' contents out: quick, finds what is missing.")
@platform_option
@json_option
def command(
    refs: tuple[str, ...], everything: bool, no_data: bool, platform_text: str | None, as_json: bool
) -> int:
    """Check every byte of layers, or of the whole store: manifests, parts, packs, names.

    Each damage is named with its object and the layers that suffer. A layer is checked with those it stands on.
    Nothing is changed: importing or building the same content again with --no-cache mends what it stores.
    The exit code is 4 when something is damaged or missing.

    \b
    layerkit verify
    layerkit verify base/debian:12 workspace/app:dev
    """
    from layerkit.build.stored import StoredLayers
    from layerkit.build.verify_parts import stored_chunks
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import find_target
    from layerkit.ids import split_stack
    from layerkit.store.verify import Verification

    if refs and everything:
        raise click.UsageError("give references or --all, not both")
    store = open_default_store()
    library = StoredLayers(store)
    run = Verification(store.objects, data=not no_data, stored_chunks=stored_chunks)
    if refs:
        targets = [find_target(library, part, platform_text) for ref in refs for part in split_stack(ref)]
        findings = _verify_layers(library, run, [target.layer.digest for target in targets])
    else:
        findings = _verify_store(library, run)
    return _report(store, findings, as_json=as_json)


def _verify_layers(library: StoredLayers, run: Verification, digests: list[str]) -> Iterator[Finding]:
    """The layers and, as far as their configs can be read, those they stand on."""
    from layerkit.build.verify_parts import verify_parts
    from layerkit.errors import LayerkitError

    pending, seen = list(digests), set[str]()
    while pending:
        digest = pending.pop(0)
        if digest in seen:
            continue
        seen.add(digest)
        try:
            pending += filter(None, [library.get(digest).config.parent])
        except LayerkitError:
            pass  # a finding below
        found = list(run.verify_layer(digest))
        yield from found
        # What the store's check has named would come again from each part that depends on it.
        if not any(finding.where.startswith("layers/") for finding in found):
            yield from verify_parts(library, digest)


def _verify_store(library: StoredLayers, run: Verification) -> Iterator[Finding]:
    from layerkit.build.verify_parts import verify_parts
    from layerkit.store.keys import LAYERS, layer_in_manifest_key

    hurt = set()
    for finding in run.verify_store():
        if finding.where.startswith(LAYERS):
            hurt.add(finding.layer)
        yield finding
    for found in library.store.objects.list(LAYERS):
        digest = layer_in_manifest_key(found.key)
        if digest is not None and digest not in hurt:
            # A library of its own each time: what is read of one layer is not kept while the others are read.
            yield from verify_parts(type(library)(library.store), digest)


def _report(store: Store, findings: Iterator[Finding], *, as_json: bool) -> int:
    from dataclasses import asdict

    names = _names(store)
    codes = []
    for finding in findings:
        codes.append(finding.code)
        layers = names.get(finding.layer, [])
        if as_json:
            print_json({**asdict(finding), "refs": layers})
            continue
        of = f" (of {', '.join(layers) or finding.layer})" if finding.layer else ""
        click.echo(f"{click.style(finding.code, fg='red')}  {finding.where}: {finding.message}{of}")
    if as_json:
        print_json({"result": {"findings": len(codes), "sound": not codes}})
    elif not codes:
        click.echo("everything is as it should be")
    else:
        click.echo(f"{len(codes)} findings; importing or building the same content again with --no-cache mends it")
    return _exit_code(codes)


def _exit_code(codes: list[str]) -> int:
    from layerkit.errors import CorruptError, DeniedError, UnavailableError

    if not codes:
        return 0
    # What could not be read is not known to be damaged.
    for kind in (UnavailableError, DeniedError):
        if set(codes) <= {kind.code}:
            return kind.exit_code
    return CorruptError.exit_code


def _names(store: Store) -> dict[str, list[str]]:
    from layerkit.errors import LayerkitError

    names: dict[str, list[str]] = {}
    try:
        for entry in store.list_refs():
            names.setdefault(entry.digest, []).append(str(entry.ref))
    except LayerkitError:
        return {}  # a damaged name is a finding of its own; digests must do then
    return names
