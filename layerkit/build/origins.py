"""What FROM and COPY --from name: a stage, the empty base, a context, a layer, an image. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from layerkit.errors import RefError
from layerkit.ids import KINDS, Ref

SCHEMES = ("docker", "oci", "docker-archive", "registry")
_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(//)?(?=\S)")
# The grammar of distribution/reference, without its limit of 255 characters.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_MAX_NAME = 512


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file tree comes from.

    Attributes:
        kind: stage, scratch, context, layer, url (with a scheme of `SCHEMES`) or image (an OCI image's name).
        text: as written, variables put in.
        stage: index of the stage, -1 for others.
        ref: the layer's reference, None for others.
    """

    kind: str
    text: str
    stage: int = -1
    ref: Ref | None = None


def parse_origin(text: str, contexts: Collection[str] = ()) -> Origin:
    """Read everything but a stage's name.

    Raises:
        RefError: a layer reference or image name that does not follow its grammar, or an unknown scheme.
    """
    if text in contexts:
        return Origin("context", text)
    if text == "scratch":
        return Origin("scratch", text)
    if text.partition("/")[0] in KINDS:
        return Origin("layer", text, ref=Ref.parse(text))
    scheme = _SCHEME.match(text)
    if scheme and (scheme[2] or scheme[1] in SCHEMES):
        if scheme[1] not in SCHEMES:
            raise RefError(
                f"{scheme[1]}: is no scheme of FROM", hint=f"there are {', '.join(f'{name}:' for name in SCHEMES)}"
            )
        return Origin("url", text)
    if len(text) > _MAX_NAME or not _IMAGE.fullmatch(text):
        hint = "names of images are lower-case" if _IMAGE.fullmatch(text.lower()) else "write NAME[:TAG][@DIGEST]"
        raise RefError(f"not a layer, stage or image: {text[:100]!r}", hint=hint)
    return Origin("image", text)
