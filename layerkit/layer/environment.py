"""What EXPORTs do to an environment; imported by the compiler and the runtime. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from layerkit.layer.config import Export


def apply_exports(env: Mapping[str, str], exports: Iterable[Export]) -> dict[str, str]:
    """The environment with the exports of a toolkit: `NAME=VALUE` sets, `PATH+=/abs/bin` puts the folder first.

    A folder that the list holds already is not put in again.
    """
    result = dict(env)
    for export in exports:
        if not export.append:
            result[export.name] = export.value
            continue
        known = result.get(export.name, "").split(":") if result.get(export.name) else []
        added = [part for part in export.value.split(":") if part not in known]
        result[export.name] = ":".join([*added, *known])
    return result
