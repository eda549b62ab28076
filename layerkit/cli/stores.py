"""Opens what commands work on: the store and local knowledge. `cli` only."""

from __future__ import annotations

from layerkit import settings
from layerkit.build.knowledge import BuildKnowledge
from layerkit.store.store import Store, open_store


def open_default_store(*, create: bool = False) -> Store:
    """The store of LAYERKIT_STORE; with `create` a directory store comes into being."""
    return open_store(settings.store_url(), create=create)


def open_knowledge(store: Store) -> BuildKnowledge:
    """This machine's knowledge of the store."""
    return BuildKnowledge(settings.home_dir(), store)
