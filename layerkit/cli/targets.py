"""What the references, digests, ranges and stacks on a command line mean. `cli` only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerkit.build.stack_view import StackView
from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.errors import MissingError, RefError
from layerkit.ids import Platform, split_stack
from layerkit.runtime.stack import StackLayer, order_layers
from layerkit.store.keys import LAYERS, layer_in_manifest_key
from layerkit.store.store import Store

_DIGEST_PREFIX = re.compile(r"sha256:([0-9a-f]{8,64})")


@dataclass(frozen=True, slots=True)
class Target:
    """A layer that was asked for.

    Attributes:
        name: its reference with the version that was chosen, or its digest where that is how it was named.
        origin: local, published or digest.
    """

    name: str
    layer: StoredLayer
    platform: Platform
    origin: str


def find_target(library: StoredLayers, text: str, platform_text: str | None = None) -> Target:
    """The layer that a reference, a range of versions or a digest (8 digits at least) means.

    Raises:
        RefError, MissingError: with the near names.
    """
    store = library.store
    platform = Platform.parse(platform_text) if platform_text else Platform.host()
    if text.startswith("sha256:"):
        layer = library.get(_full_digest(store, text))
        return Target(layer.digest, layer, layer.config.platform, "digest")
    resolved = store.resolve_text(text, platform)
    return Target(str(resolved.ref), library.get(resolved.digest), resolved.platform, resolved.origin)


def open_stack(library: StoredLayers, text: str, platform_text: str | None = None, *, own: bool = False) -> StackView:
    """The stack `REF[,REF…]`, put in the order in which it would run.

    As `run` does it, a stack that names no base gets what its workspaces are differences against.

    Args:
        own: what one layer itself holds, its whiteouts too.

    Raises:
        RefError: several layers where one is wanted, or no references.
    """
    targets = [find_target(library, part, platform_text) for part in split_stack(text)]
    if own:
        if len(targets) > 1:
            raise RefError(f"--own looks at one layer, {len(targets)} were given", where=text)
        return StackView(library, (targets[0].layer.digest,), own=True)
    names_base = any(target.layer.config.kind == "base" for target in targets)
    digests: dict[str, None] = {}
    for layer in (target.layer for target in targets):
        brings = layer.config.kind == "workspace" and not names_base
        digests.update(dict.fromkeys(library.stack_of(layer.digest) if brings else (layer.digest,)))
    layers = [StackLayer(digest, digest, Path(), library.get(digest).config) for digest in digests]
    # What speaks against running the stack does not keep anybody from looking at it.
    ordered, _ = order_layers(layers)
    return StackView(library, tuple(layer.digest for layer in ordered))


def _full_digest(store: Store, text: str) -> str:
    match = _DIGEST_PREFIX.fullmatch(text)
    if not match:
        raise RefError(f"not a digest: {text[:100]!r}", hint="a digest is sha256: and 8 to 64 hexadecimal digits")
    digits = match[1]
    listed = store.objects.list(f"{LAYERS}{digits[:2]}/{digits}")
    found: Sequence[str] = sorted({digest for item in listed if (digest := layer_in_manifest_key(item.key))})
    if not found:
        raise MissingError("no layer of this store has this digest", where=text, hint="`layerkit ls` lists layers")
    if len(found) > 1:
        raise RefError(f"{len(found)} layers have a digest that begins so", where=text, hint=", ".join(found[:4]))
    return found[0]
