"""The variables of a stage as far as the file alone tells them, to read declarations before anything is built. Pure.

ENVs of a base are not known yet. What depends on them is left out here, and a declaration that uses it is an error
with that reason; `config_effect` computes the real values when the base is there.
"""

from __future__ import annotations

from layerkit.build.headers import Header, HeaderReader
from layerkit.build.layerfile.expand import error_in, expansion
from layerkit.build.layerfile.nodes import Arg, Declaration, Env, Instruction, Layer
from layerkit.build.layerfile.words import Word
from layerkit.build.scope import ArgScope
from layerkit.errors import LayerfileError


class PlanScope:
    """Walks one stage. One thread."""

    def __init__(self, scope: ArgScope, parent: PlanScope | None, *, base_is_known: bool) -> None:
        """`parent` is the finished scope of the stage below, None when FROM leads out of the file."""
        self._scope = scope
        self._reader = HeaderReader(scope.layerfile)
        self._values: dict[str, str] = dict(parent._values) if parent else {}
        self._open: set[str] = set(parent._open) if parent else set()
        self._base_is_known: bool = parent._base_is_known if parent else base_is_known

    @property
    def header(self) -> Header:
        """The declarations so far."""
        return self._reader.header

    def add(self, node: Instruction) -> None:
        """Take the next instruction of the stage; raises LayerfileError for a declaration that is wrong."""
        if isinstance(node, Arg):
            for item in node.items:
                self._arg(item.name, item.default)
        elif isinstance(node, Env):
            values = [(self._value(pair.key), self._value(pair.value)) for pair in node.pairs]
            for name, value in values:
                if name is not None:
                    self._set(name, value)
        elif isinstance(node, Layer | Declaration):
            self._check_open(node)
            self._reader.add(node, self._values)

    def _arg(self, name: str, default: Word | None) -> None:
        if name in self._scope.build_args:
            self._set(name, self._scope.build_args[name])
        elif default is not None:
            self._set(name, self._value(default))
        elif name in self._scope.global_values:
            self._set(name, self._scope.global_values[name])
        elif name not in self._values and not self._base_is_known:
            # The base may have an ENV of this name.
            self._open.add(name)

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self._values.pop(name, None)
            self._open.add(name)
        else:
            self._values[name] = value
            self._open.discard(name)

    def _value(self, word: Word) -> str | None:
        """The word's value, None when the base decides; real errors come up again when the stage is built."""
        try:
            result = expansion(self._scope.layerfile, word, self._values)
        except LayerfileError:
            return None
        is_open = result.missing if not self._base_is_known else result.missing & self._open
        return None if is_open else result.text

    def _check_open(self, node: Layer | Declaration) -> None:
        words = node.words if isinstance(node, Declaration) else (node.kind, node.name, node.version)
        for word in words:
            if word is None:
                continue
            used = expansion(self._scope.layerfile, word, self._values).missing & self._open
            if used:
                raise error_in(
                    self._scope.layerfile,
                    node,
                    f"${min(used)} depends on the base, which is not read before the layer is declared",
                    hint=f"give {min(used)} its value in an ARG or ENV of this file",
                )
