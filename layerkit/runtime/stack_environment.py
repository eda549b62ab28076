"""The environment of a stack: base < workspace < toolkits < user; pure, used by `runtime.stack` only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from layerkit.layer.config import LayerConfig


def compose_environment(configs: Sequence[LayerConfig], user: Mapping[str, str], default_path: str) -> dict[str, str]:
    """Join the layers' variables, bottom first, then the user's.

    A toolkit's ENV is for building it; only its exports reach the stack. What is appended is put in front of what is
    there already, because a layer that lies above is found first.
    """
    env = {"PATH": default_path}
    for config in configs:
        if config.kind != "toolkit":
            env.update(config.env)
        for export in config.exports:
            env[export.name] = _in_front(export.value, env.get(export.name, "")) if export.append else export.value
    env.update(user)
    return env


def _in_front(value: str, rest: str) -> str:
    """`value:rest`, every folder once."""
    parts = [part for part in value.split(":") if part]
    kept = [part for part in rest.split(":") if part and part not in parts]
    return ":".join(dict.fromkeys([*parts, *kept]))


def path_additions(configs: Iterable[LayerConfig]) -> tuple[str, ...]:
    """What exports add to PATH, foremost first."""
    found = ""
    for config in configs:
        for export in config.exports:
            if export.name == "PATH" and export.append:
                found = _in_front(export.value, found)
    return tuple(part for part in found.split(":") if part)
