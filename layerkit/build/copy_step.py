"""COPY and ADD: looked up, or carried out on the stage's tree and the difference kept. `build` only; one thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from layerkit.build.context import BuildContext
from layerkit.build.copied_facts import CopiedFacts
from layerkit.build.copying import CopyOptions, CopySource, copy_sources
from layerkit.build.edit import TreeEditor
from layerkit.build.file_reader import FileReader
from layerkit.build.knowledge import StepResult
from layerkit.build.making import LayerMaking
from layerkit.build.memory_source import MemorySource
from layerkit.build.owners import find_owner
from layerkit.build.resolve import ResolvedCopy
from layerkit.build.selection import select_sources
from layerkit.build.source_digest import sources_digest
from layerkit.build.stage_files import StageFiles
from layerkit.build.step_kit import Outcome, StepKit
from layerkit.build.tar_source import TarSource, is_tar
from layerkit.layer.facts import FactsCollector


@dataclass(frozen=True, slots=True)
class _Selected:
    """One thing to copy; `archive` is where it lies when it is a tar to be unpacked."""

    source: CopySource
    archive: Path | None = None


class CopySteps:
    """The COPYs and ADDs of one build."""

    def __init__(self, kit: StepKit, context: BuildContext) -> None:
        self._kit = kit
        self._context = context

    def copy_from(self, files: StageFiles, copy: ResolvedCopy, origin: StageFiles) -> Outcome:
        """A COPY --from another stage or layer.

        Two keys lead to its result: the layers that it copies from, which needs no tree, and the contents of the
        sources, so that other changes of a stage miss nothing (B04).

        Raises:
            MissingError: a source is not there.
            InputError: an impossible copy.
        """
        quick = self._kit.key(
            "copy from", files.layers, origin.layers, copy.sources, [[file.name, file.content] for file in copy.files],
            *_where(copy),
        )  # fmt: skip
        known = self._kit.find(quick)
        if known is not None:
            return known, True
        with self._kit.making(lambda id_: origin.find_place(id_) or files.find_place(id_), pack_now=False) as making:
            making.add_source(origin)
            found = [pair for pattern in copy.sources for pair in select_sources(origin.tree, pattern, copy.from_stage)]
            selected = [_Selected(source) for source in found] + self._inline_files(making, copy)
            outcome = self._cached(making, files, copy, selected, origin)
        self._kit.add(quick, outcome[0])
        return outcome

    def copy(self, files: StageFiles, copy: ResolvedCopy) -> Outcome:
        """A COPY or ADD from the build context; raises as `copy_from` does."""
        with self._kit.making(files.find_place, pack_now=False) as making:
            making.add_source(self._context)
            read = FileReader(making.ingester, self._context.facts, making.cache)
            selected: list[_Selected] = []
            for pattern in copy.sources:
                found = self._context.select(pattern)
                self._context.fill(found, read)
                selected += [_Selected(source, self._find_archive(copy, source)) for source in found]
            return self._cached(making, files, copy, [*selected, *self._inline_files(making, copy)], None)

    def _find_archive(self, copy: ResolvedCopy, source: CopySource) -> Path | None:
        path = self._context.find_path(source.inode) if copy.unpack and source.inode.is_regular else None
        return path if path is not None and is_tar(path) else None

    def _inline_files(self, making: LayerMaking, copy: ResolvedCopy) -> list[_Selected]:
        memory = MemorySource()
        making.add_source(memory)
        names = [file.name.encode() for file in copy.files]
        inodes = [
            memory.file(name, file.content, making.ingester, self._kit.options.mtime_ns)
            for name, file in zip(names, copy.files, strict=True)
        ]
        return [_Selected(CopySource(name, inode)) for name, inode in zip(names, inodes, strict=True)]

    def _cached(
        self,
        making: LayerMaking,
        files: StageFiles,
        copy: ResolvedCopy,
        selected: list[_Selected],
        origin: StageFiles | None,
    ) -> Outcome:
        key = self._kit.key(
            "copy", files.layers, sources_digest((item.source for item in selected), owners=origin is not None),
            [item.archive is not None for item in selected], *_where(copy), origin is not None,
        )  # fmt: skip
        return self._kit.cached(key, lambda: self._carry_out(making, files, copy, selected, origin))

    def _carry_out(
        self,
        making: LayerMaking,
        files: StageFiles,
        copy: ResolvedCopy,
        selected: list[_Selected],
        origin: StageFiles | None,
    ) -> StepResult:
        owner = find_owner(files.tree, copy.owner, files.read) if copy.owner else None
        # Owners of this machine's files mean nothing in the layer; those of a stage or of an archive do (B13).
        kept = owner if origin is not None else owner or (0, 0)
        options = CopyOptions(kept, copy.mode, self._kit.options.mtime_ns)
        into = copy.into_directory or len(selected) > 1
        destination = copy.destination.encode("utf-8", "surrogateescape") + (b"/" if into else b"")
        facts = self._facts(making, origin)
        editor = TreeEditor(files.tree)
        for item in selected:
            if item.archive is None:
                copy_sources(editor, [item.source], destination, options)
                continue
            collector = FactsCollector()
            unpacked = TarSource(item.archive, making.ingester, collector)
            making.add_source(unpacked)
            facts.add(unpacked.root, collector.finish(unpacked.root))
            source = CopySource(item.source.name, unpacked.root)
            copy_sources(editor, [source], destination + b"/", replace(options, owner=owner))
        difference = editor.difference()
        return self._kit.keep(making, files, difference, facts.of(difference))

    def _facts(self, making: LayerMaking, origin: StageFiles | None) -> CopiedFacts:
        facts = CopiedFacts(making.sources)
        if origin is not None:
            facts.add(origin.tree, origin.facts)
        else:
            facts.add(self._context.root, self._context.facts.finish(self._context.root))
        return facts


def _where(copy: ResolvedCopy) -> tuple[str, bool, str, str | None]:
    return copy.destination, copy.into_directory, copy.owner, copy.mode.text if copy.mode else None
