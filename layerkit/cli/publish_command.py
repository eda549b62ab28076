"""`layerkit publish REF`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layerkit.cli.output import json_option, platform_option, print_json

if TYPE_CHECKING:
    from layerkit.store.store import Store


@click.command("publish")
@click.argument("ref")
@click.option("--as", "version", metavar="VERSION", help="The version to publish it as; REF's own if left out.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Also let this tag name the version from now on.")
@platform_option
@json_option
def command(
    ref: str, version: str | None, tags: tuple[str, ...], platform_text: str | None, as_json: bool
) -> None:
    """Give a layer its immutable version in the store.

    A published version never moves: other content under it is refused, the same content is fine. A version begins
    with a digit. What has only a tag, like :dev, needs --as.

    \b
    layerkit publish base/debian:12
    layerkit publish workspace/app:dev --as 1.4.0 --tag latest
    """
    from layerkit.build.step_cache import step_cache_in_use
    from layerkit.build.stored import StoredLayers
    from layerkit.cli.stores import open_default_store
    from layerkit.cli.targets import find_target
    from layerkit.errors import RefError
    from layerkit.ids import Ref, is_version

    store = open_default_store()
    with step_cache_in_use():
        target = find_target(StoredLayers(store), ref, platform_text)
        if target.origin == "digest" and "@" not in ref:
            raise RefError(f"{ref} has no name to publish under", hint=f"write KIND/NAME:VERSION@{target.layer.digest}")
        meant = Ref.parse(target.name)
        new = version or meant.version
        if not is_version(new):
            raise RefError(
                f"{new!r} is a tag, a version is needed" if new else "which version?",
                where=str(meant), hint=f"layerkit publish {ref} --as VERSION, which begins with a digit",
            )  # fmt: skip
        for tag in tags:
            if is_version(tag):
                raise RefError(f"{tag!r} is a version, a tag begins with a letter", where=str(meant))
        published = meant.with_version(new)
        tagged = [published.with_version(tag) for tag in tags]
        platform = target.layer.config.platform
        _check_whole(store, StoredLayers(store).stack_of(target.layer.digest))
        created = store.publish_ref(published, platform, target.layer.digest)
    for name in tagged:
        store.set_tag(name, new)
    if as_json:
        print_json({"result": {
            "ref": str(published), "digest": target.layer.digest, "platform": str(platform), "created": created,
            "tags": list(tags),
        }})  # fmt: skip
        return
    click.echo(f"{published}  {target.layer.digest}{'' if created else '  (is published already)'}")


def _check_whole(store: Store, digests: tuple[str, ...]) -> None:
    """Refuse to give a lasting name to what is not all there; contents of packs are not read."""
    from layerkit.errors import CorruptError
    from layerkit.store.verify import Verification

    run = Verification(store.objects, data=False)
    for digest in digests:
        for finding in run.verify_layer(digest):
            raise CorruptError(f"the layer is not whole: {finding.message}", where=finding.where)
