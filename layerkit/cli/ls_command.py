"""`layerkit ls [PATTERN]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from layerkit.build.stored import StoredLayers
    from layerkit.errors import LayerkitError
    from layerkit.store.refs import RefEntry


@click.command("ls")
@click.argument("pattern", default="")
@click.option("--versions", is_flag=True, help="One line a name, with its versions (lowest first) and tags.")
@json_option
def command(pattern: str, versions: bool, as_json: bool) -> int:
    """List layers: those of this machine (local), of the store (published), and what tags mean.

    PATTERN is a part of a reference, or has wildcards and then stands for whole references.

    \b
    layerkit ls
    layerkit ls debian
    layerkit ls 'toolkit/*:22*'
    layerkit ls --versions base/debian
    """
    from layerkit.build.stored import StoredLayers
    from layerkit.cli.stores import open_default_store
    from layerkit.store.versions import VersionKey

    store = open_default_store()
    entries = _matching(store.list_refs(), pattern)
    entries.sort(key=lambda one: (one.ref.full_name, VersionKey(one.ref.version), str(one.platform), one.origin))
    if versions:
        _print_versions(entries, as_json=as_json)
        return 0
    return _print_layers(StoredLayers(store), entries, as_json=as_json)


def _matching(entries: list[RefEntry], pattern: str) -> list[RefEntry]:
    from fnmatch import fnmatchcase

    from layerkit._util.text import did_you_mean
    from layerkit.errors import MissingError

    if not pattern:
        return entries
    if any(char in pattern for char in "*?["):
        found = [one for one in entries if any(fnmatchcase(name, pattern) for name in _names(one))]
    else:
        found = [one for one in entries if pattern in str(one.ref)]
    if not found:
        names = {name for one in entries for name in (*_names(one), one.ref.name)}
        raise MissingError("no layer has such a name", where=pattern, hint=did_you_mean(pattern, names))
    return found


def _names(entry: RefEntry) -> tuple[str, str]:
    return str(entry.ref), entry.ref.full_name


def _print_layers(library: StoredLayers, entries: list[RefEntry], *, as_json: bool) -> int:
    """One line a layer; returns the exit code of the worst damage."""
    described: dict[str, dict[str, Any] | LayerkitError] = {}
    rows = []
    worst = 0
    for entry in entries:
        if entry.digest not in described:
            described[entry.digest] = _describe(library, entry.digest)
        found = described[entry.digest]
        if as_json:
            print_json({**_identity(entry), **(found if isinstance(found, dict) else _problem(found))})
        else:
            rows.append(_row(entry, found))
        if not isinstance(found, dict):
            worst = max(worst, found.exit_code)
    print_table(("LAYER", "PLATFORM", "ORIGIN", "DIGEST", "FILES", "META", "INDEX", "STORED"), rows, right=(4, 5, 6, 7))
    return worst


def _describe(library: StoredLayers, digest: str) -> dict[str, Any] | LayerkitError:
    from dataclasses import asdict

    from layerkit.build.sizes import layer_sizes
    from layerkit.errors import LayerkitError

    try:
        return asdict(layer_sizes(library.get(digest)))
    except LayerkitError as error:
        return error


def _identity(entry: RefEntry) -> dict[str, Any]:
    return {
        "ref": str(entry.ref), "kind": entry.ref.kind, "name": entry.ref.name, "version": entry.ref.version,
        "platform": str(entry.platform), "digest": entry.digest, "origin": entry.origin,
    }  # fmt: skip


def _problem(error: LayerkitError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}}


def _row(entry: RefEntry, found: dict[str, Any] | LayerkitError) -> tuple[str, ...]:
    from layerkit._util.text import format_bytes

    identity = (str(entry.ref), str(entry.platform), entry.origin, entry.digest[:19])
    if not isinstance(found, dict):
        return (*identity, found.code, "-", "-", "-")
    sizes = (found[name] for name in ("plain_bytes", "meta_bytes", "chunk_index_bytes", "stored_bytes"))
    return (*identity, *(format_bytes(size) for size in sizes))


def _print_versions(entries: list[RefEntry], *, as_json: bool) -> None:
    names: dict[str, list[RefEntry]] = {}
    for entry in entries:
        names.setdefault(entry.ref.full_name, []).append(entry)
    rows = []
    for name, group in names.items():
        published = _distinct(group, "published")
        local, tags = _distinct(group, "local"), _distinct(group, "tag")
        if as_json:
            print_json({"name": name, "versions": published, "local": local, "tags": tags})
        rows.append((name, " ".join(published) or "-", " ".join(local) or "-", " ".join(tags) or "-"))
    if not as_json:
        print_table(("NAME", "VERSIONS", "LOCAL", "TAGS"), rows)


def _distinct(entries: list[RefEntry], origin: str) -> list[str]:
    return list(dict.fromkeys(entry.ref.version for entry in entries if entry.origin == origin))
