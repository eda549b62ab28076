"""What stages take from outside of the file: the layers that FROM and COPY --from name, and required toolkits.

Everything that can be refused is refused before the first step runs, and a layer that was found then is the one that
is used. `build` only; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from layerkit.build.layerfile.nodes import Layerfile, Run
from layerkit.build.origins import Origin
from layerkit.build.stages import BuildPlan, PlannedStage
from layerkit.build.stored import StoredLayers
from layerkit.errors import InputError, LayerkitError, MissingError, RefError, UnsupportedError
from layerkit.ids import Platform, Ref
from layerkit.store.resolve import ResolvedRef
from layerkit.store.store import Store
from layerkit.store.versions import VersionRange, split_requirement


class StageInputs:
    """Finds layers by the plan's names; each name means one layer for the whole build."""

    def __init__(self, store: Store, library: StoredLayers, layerfile: Layerfile) -> None:
        self._store = store
        self._library = library
        self._layerfile = layerfile
        self._found: dict[tuple[Ref, str, Platform], ResolvedRef] = {}

    def check(self, plan: BuildPlan) -> None:
        """Find everything that is not made by this build itself.

        Raises:
            MissingError: a layer that is not there, at its line; the hint suggests near names.
            UnsupportedError: an image of an engine or registry.
        """
        made: set[tuple[str, str]] = set()
        for planned in plan.stages:
            places = [(planned.origin, planned.stage.source.span.first)]
            places += [(origin, planned.steps[number].span.first) for number, origin in planned.copies.items()]
            for origin, line in places:
                if origin.kind not in ("stage", "scratch") and not _is_made(origin, made):
                    with located(self._layerfile, line):
                        self.stack(origin, planned.platform)
            if not any(("toolkit", requirement.name) in made for requirement in planned.header.requires):
                self.toolkits(planned, None)
            if planned.emits:
                made.add((planned.header.kind, planned.header.name))

    def stack(self, origin: Origin, platform: Platform) -> tuple[str, ...]:
        """The layers of what an origin outside of the file means, bottom first."""
        if origin.ref is None:
            raise UnsupportedError(
                f"{origin.text}: images of engines and registries cannot be imported yet",
                hint=self._import_hint(origin),
            )
        return self._library.stack_of(self._resolve(origin.ref, platform).digest)

    def _import_hint(self, origin: Origin) -> str:
        try:
            near = Ref.parse(f"base/{origin.text}")
            self._store.resolve(near, Platform.host())
        except (RefError, MissingError):
            name = plain_name(origin.text.partition("@")[0])
            return f"export its files and run `layerkit import rootfs.tar -t base/{name}`, then write FROM base/{name}"
        return f"write FROM {near} for the layer of that name"

    def _resolve(self, ref: Ref, platform: Platform, clauses: str = "") -> ResolvedRef:
        key = (ref, clauses, platform)
        if key not in self._found:
            self._found[key] = (
                self._store.resolve_range(ref, VersionRange.parse(clauses), platform)
                if clauses
                else self._store.resolve(ref, platform)
            )
        return self._found[key]

    def toolkits(self, planned: PlannedStage, base: tuple[str, ...] | None) -> tuple[str, ...]:
        """The digests of the toolkits that a stage requires and that those require, dependencies first.

        Nothing for a stage that runs nothing: its layer only records what it requires.

        Args:
            planned: the stage.
            base: the layers that it stands on; None while they are not known.

        Raises:
            MissingError: no version of a toolkit is in the range.
            InputError: two ranges exclude each other, toolkits require each other in a circle, or a BOUND one belongs
                to another base.
        """
        if not any(isinstance(step, Run) for step in planned.steps):
            return ()
        chosen: dict[str, ResolvedRef] = {}
        for requirement in planned.header.requires:
            if requirement.kind == "toolkit":
                with located(self._layerfile, requirement.word.line):
                    self._choose(chosen, requirement.name, requirement.range, planned.platform, base, ())
        return tuple(found.digest for found in chosen.values())

    def _choose(
        self,
        chosen: dict[str, ResolvedRef],
        name: str,
        clauses: str,
        platform: Platform,
        base: tuple[str, ...] | None,
        asked_by: tuple[str, ...],
    ) -> None:
        allowed = VersionRange.parse(clauses)
        if name in asked_by:
            raise InputError(f"toolkits require each other in a circle: {' -> '.join((*asked_by, name))}")
        if name in chosen:
            version = chosen[name].ref.version
            if clauses and version not in allowed:
                by = f"toolkit/{asked_by[-1]}" if asked_by else "this stage"
                raise InputError(f"{by} requires toolkit/{name}{clauses}, but {version} is chosen already")
            return
        found = self._resolve(Ref("toolkit", name), platform, clauses)
        config = self._library.get(found.digest).config
        if config.bound and base is not None and config.parent not in base:
            raise InputError(f"{found.ref} is BOUND to another base than this stage stands on")
        for text in config.requires:
            needed, needed_range = split_requirement(text)
            if needed.startswith("toolkit/"):
                needed_name = needed.removeprefix("toolkit/")
                self._choose(chosen, needed_name, str(needed_range), platform, base, (*asked_by, name))
        chosen[name] = found


def _is_made(origin: Origin, made: set[tuple[str, str]]) -> bool:
    return origin.ref is not None and (origin.ref.kind, origin.ref.name) in made


@contextmanager
def located(layerfile: Layerfile, line: int) -> Iterator[None]:
    """Gives errors a line of the Layerfile as their place, unless they have one; their own goes to the message."""
    try:
        yield
    except LayerkitError as error:
        if not error.excerpt:
            if error.where:
                error.message = f"{error.where}: {error.message}"
            error.where, error.excerpt = f"{layerfile.file}:{line}", layerfile.text.excerpt(line)
        raise


def plain_name(text: str) -> str:
    """A layer's name made of any text."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in text.lower())
    return "-".join(part for part in plain.split("-") if part) or "app"
