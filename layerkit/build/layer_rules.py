"""What a stage may declare, given what it stands on: kinds, PREFIX, BOUND (design: building). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerkit.build.headers import Header
from layerkit.build.layerfile.expand import error_at
from layerkit.build.layerfile.nodes import Layerfile, Stage
from layerkit.build.origins import Origin
from layerkit.errors import LayerfileError


def settle_header(layerfile: Layerfile, stage: Stage, chain: Sequence[tuple[Origin, Header]], *, emits: bool) -> Header:
    """The stage's header with its kind, checked.

    Args:
        layerfile: the file.
        stage: the stage.
        chain: origin and declarations of the stage and of every stage of the file below it, topmost first.
        emits: whether a stage without LAYER becomes a layer all the same: then it is a base when it stands on nothing,
            else a workspace.

    Raises:
        LayerfileError: at the declaration that is impossible.
    """
    header = chain[0][1]
    parent = _parent_kind(chain)
    if header.implicit:
        _refuse_toolkit_words(layerfile, header)
        if emits:
            if parent == "toolkit":
                raise layerfile.text.error(
                    f"{stage.title} stands on a toolkit, which is no base",
                    stage.source.span.first,
                    hint="begin FROM a base and write REQUIRES for the toolkit, or COPY --from it",
                )
            header = replace(header, kind="workspace" if parent else "base")
        return header
    _check_kind(layerfile, stage, header, parent)
    _check_prefix(layerfile, stage, header)
    _check_itself(layerfile, header)
    return header


def _parent_kind(chain: Sequence[tuple[Origin, Header]]) -> str:
    """Kind of the nearest layer below: '' for none, 'base' also for images, contexts and URLs."""
    for number, (origin, header) in enumerate(chain):
        if number and not header.implicit:
            return header.kind
        if origin.kind == "layer" and origin.ref is not None:
            return origin.ref.kind
        if origin.kind not in ("stage", "scratch"):
            return "base"
    return ""


def _refuse_toolkit_words(layerfile: Layerfile, header: Header) -> None:
    if word := header.words.get("PREFIX"):
        raise error_at(
            layerfile, word, "PREFIX stands in a stage without LAYER", hint="write LAYER toolkit NAME in this stage"
        )


def _check_kind(layerfile: Layerfile, stage: Stage, header: Header, parent: str) -> None:
    def fail(message: str, hint: str) -> LayerfileError:
        return error_at(layerfile, header.words["LAYER"], message, hint=hint)

    if header.kind == "workspace" and not parent:
        raise fail(
            f"the workspace {header.name} stands on nothing",
            "a workspace is the difference to its base: begin FROM one, or write LAYER base",
        )
    if header.bound and not parent:
        raise fail(f"the toolkit {header.name} is BOUND, but stands on nothing", "begin FROM the base it belongs to")
    if parent == "toolkit" and header.kind != "toolkit":
        raise fail(
            f"the {header.kind} {header.name} stands on a toolkit, which is no base",
            "begin FROM a base and write REQUIRES for the toolkit, or COPY --from it",
        )


def _check_prefix(layerfile: Layerfile, stage: Stage, header: Header) -> None:
    word = header.words.get("PREFIX")
    if header.kind != "toolkit":
        if word is not None:
            raise error_at(layerfile, word, f"PREFIX belongs to toolkits; this is a {header.kind}")
        return
    if header.bound and word is not None:
        raise error_at(
            layerfile, word, "a BOUND toolkit holds all its differences and has no PREFIX", hint="leave out one of both"
        )
    if not header.bound and word is None:
        raise error_at(
            layerfile,
            header.words["LAYER"],
            f"the toolkit {header.name} has no PREFIX",
            hint=f"write PREFIX /opt/{header.name.rpartition('/')[2]}, or BOUND when it cannot live under one",
        )


def _check_itself(layerfile: Layerfile, header: Header) -> None:
    for requirement in (*header.requires, *header.conflicts):
        if (requirement.kind, requirement.name) == (header.kind, header.name):
            raise error_at(layerfile, requirement.word, f"{header.kind}/{header.name} names itself")
