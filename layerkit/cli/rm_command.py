"""`layerkit rm REF…`."""

from __future__ import annotations

import click

from layerkit.cli.output import json_option, platform_option, print_json


@click.command("rm")
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("--local", "only_local", is_flag=True, help="Only this machine's name; what is published stays.")
@platform_option
@json_option
def command(refs: tuple[str, ...], only_local: bool, platform_text: str | None, as_json: bool) -> None:
    """Remove names: local ones, published versions, tags.

    The version or tag must be given. Layers themselves stay until nothing needs them and garbage collection comes by;
    a layer that others stand on goes on to serve them without its name. All names are looked up before any goes.

    \b
    layerkit rm workspace/app:dev
    layerkit rm base/debian:12.1 base/debian:12.2
    """
    from layerkit.cli.stores import open_default_store
    from layerkit.errors import MissingError, RefError
    from layerkit.ids import Platform, Ref

    store = open_default_store()
    platform = Platform.parse(platform_text) if platform_text else None
    origin = "local" if only_local else ""
    wanted = list(dict.fromkeys(Ref.parse(text) for text in refs))
    entries = store.list_refs()
    for ref in wanted:
        if ref.digest:
            raise RefError(f"{ref} names a layer, not a name", hint="leave out @ and what follows")
        versions = sorted({one.ref.version for one in entries if one.ref.full_name == ref.full_name})
        if not ref.version and versions:
            raise RefError(f"which version of {ref}?", hint=f"there are {', '.join(versions)}")
        found = [one for one in entries if one.ref == ref and platform in (None, one.platform)]
        if not [one for one in found if origin in ("", one.origin)]:
            raise _nothing(ref, versions, [one.ref.full_name for one in entries])
    removed = [one for ref in wanted for one in store.remove_ref(ref, platform, origin=origin)]
    for one in removed:
        if as_json:
            print_json({"ref": str(one.ref), "platform": str(one.platform), "digest": one.digest, "origin": one.origin})
        else:
            click.echo(f"removed {one.ref} ({one.platform}, {one.origin})")
    if as_json:
        print_json({"result": {"removed": len(removed)}})
    if not removed:
        raise MissingError("somebody else removed them meanwhile")


def _nothing(ref: object, versions: list[str], names: list[str]) -> Exception:
    from layerkit._util.text import did_you_mean
    from layerkit.errors import MissingError

    hint = f"there are {', '.join(versions)}" if versions else did_you_mean(str(ref).partition(":")[0], set(names))
    return MissingError("nothing has this name", where=str(ref), hint=hint or "see `layerkit ls`")
