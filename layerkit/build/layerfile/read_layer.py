"""layerkit's own instructions: LAYER, REQUIRES, PROVIDES, CONFLICTS, PREFIX, EXPORT, MTIME, SETTING. Pure.

Only their shape is read here. What the words mean is checked by `build.headers`, after variables are put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.nodes import Declaration, Instruction, Layer
from layerkit.build.layerfile.statement import Statement
from layerkit.ids import KINDS

_FORMS = {
    "REQUIRES": "REQUIRES NAME[RANGE] …, for example REQUIRES toolkit/node>=22 glibc>=2.35",
    "PROVIDES": "PROVIDES NAME[=VERSION] …",
    "CONFLICTS": "CONFLICTS NAME[RANGE] …",
    "PREFIX": "PREFIX /absolute/path …",
    "EXPORT": "EXPORT PATH+=/absolute/bin, or EXPORT NAME=VALUE",
    "MTIME": "MTIME keep, MTIME clamp, or MTIME SECONDS since 1970",
    "SETTING": "SETTING key=value …",
}


def read_layer(statement: Statement) -> Layer:
    """LAYER base|workspace|toolkit NAME [VERSION] [BOUND]."""
    statement.take_flags([])
    form = "LAYER base|workspace|toolkit NAME [VERSION] [BOUND]"
    words = statement.quoted_words()
    bound = len(words) > 2 and words[-1].raw.upper() == "BOUND"
    if bound:
        words.pop()
    if len(words) < 2:
        raise statement.error("LAYER needs a kind and a name", hint=f"write {form}")
    if len(words) > 3:
        raise statement.error_at(words[3], f"LAYER does not take {words[3].raw[:40]!r}", hint=f"write {form}")
    kind = words[0].raw
    if kind not in KINDS and "$" not in kind:
        hint = did_you_mean(kind.lower(), KINDS) or f"write {form}"
        if kind.partition("/")[0] in KINDS:
            hint = f"write LAYER {kind.replace('/', ' ', 1).replace(':', ' ', 1)}"
        raise statement.error_at(words[0], f"{kind[:60]!r} is no kind of layer", hint=hint)
    return Layer(
        span=statement.span,
        keyword="LAYER",
        text=statement.text,
        kind=words[0],
        name=words[1],
        version=words[2] if len(words) == 3 else None,
        bound=bound,
    )


def read_declaration(statement: Statement) -> Declaration:
    """One of the others: one or more words."""
    statement.take_flags([])
    words = tuple(statement.quoted_words())
    form = _FORMS[statement.keyword]
    if not words:
        raise statement.error(f"{statement.keyword} needs an argument", hint=f"write {form}")
    if statement.keyword == "MTIME" and len(words) > 1:
        raise statement.error_at(words[1], "MTIME takes one word", hint=f"write {form}")
    return Declaration(span=statement.span, keyword=statement.keyword, text=statement.text, words=words)


LAYER_READERS: Mapping[str, Callable[[Statement], Instruction]] = {
    "LAYER": read_layer,
    **dict.fromkeys(_FORMS, read_declaration),
}
