"""Stacks on the command line: `REF[,REF…]` mounted by hostd and put together by the runtime. `cli` only.

Nothing here imports the store: `layerkit run` must begin within milliseconds, and hostd resolves the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from layerkit.errors import HostError, InputError, RefError
from layerkit.ids import Ref, check_digest, is_range, split_stack

if TYPE_CHECKING:
    from layerkit.fuse.client import HostClient
    from layerkit.runtime.stack import Composition


def stack_words(stack: str, toolkits: Sequence[str] = ()) -> list[str]:
    """The references or digests of a stack and of further toolkits, checked before anything is started.

    Raises:
        RefError: what cannot be one, or a `--with` that is no toolkit.
    """
    words = [_checked(part) for part in split_stack(stack)]
    for text in toolkits:
        for part in split_stack(text):
            if not part.startswith("toolkit/"):
                raise RefError(f"--with takes toolkits, {part} is none", hint="name it in the stack instead")
            words.append(_checked(part))
    return words


def _checked(text: str) -> str:
    """A part of a stack; of a range hostd checks the rest. Raises RefError."""
    if text.startswith("sha256:"):
        return check_digest(text)
    return text if is_range(text) else str(Ref.parse(text))


@contextmanager
def mounted_stack(
    client: HostClient,
    words: Sequence[str],
    *,
    prefetch: str = "all",
    frontend: str = "auto",
    env: Mapping[str, str] | None = None,
    allow_rebase: bool = False,
) -> Iterator[tuple[str, Composition]]:
    """The stack, mounted under a lease of this process and put together; released at the end."""
    from layerkit.runtime.stack import StackLayer, compose

    mounted = client.mount_layers(words, prefetch=prefetch, frontend=frontend, parents=True)
    try:
        layers = [StackLayer.of(layer) for layer in mounted.layers]
        yield mounted.lease, compose(layers, user_env=env, allow_rebase=allow_rebase)
    finally:
        client.release(mounted.lease)


def existing_folder(path: Path) -> Path:
    """A mount point; raises InputError."""
    if not path.is_dir():
        raise InputError("not a folder to mount on", where=str(path), hint=f"mkdir {path}")
    return path


def remove_dead_sandboxes() -> None:
    """Remove what sandboxes of killed processes left behind; what cannot go now is said, and tried again next time."""
    from layerkit import settings
    from layerkit.runtime.records import cleanup_leftovers

    try:
        cleanup_leftovers(settings.run_dir(), settings.home_dir(), wait=False)
    except HostError as error:
        click.echo(f"note: {error}", err=True)
