"""Each folder below `cases/` holds a Layerfile and what parsing it gives: `result.json` or `error.txt`.

A new case is a new folder. `LAYERKIT_REGENERATE=1 pytest tests/build/parser/test_cases.py` writes the results anew;
read the difference before it is committed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from layerkit.build.layerfile import Layerfile, parse_layerfile
from layerkit.build.layerfile.source import Span
from layerkit.build.layerfile.words import Word
from layerkit.errors import LayerfileError

CASES = sorted(path for path in (Path(__file__).parent / "cases").iterdir() if path.is_dir())
REGENERATE = bool(os.environ.get("LAYERKIT_REGENERATE"))


def plain(value: Any) -> Any:
    """A node as JSON data: words as written, spans as line ranges, defaults left out."""
    if isinstance(value, Word):
        return value.raw
    if isinstance(value, Span):
        return str(value.first) if value.first == value.last else f"{value.first}-{value.last}"
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    data: dict[str, Any] = {"is": type(value).__name__}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name not in ("text", "keyword", "line", "column", "legacy") and item not in (None, "", (), 0, False):
            data[field.name] = plain(item)
    if type(value).__name__ == "ShellForm":
        data["line"] = value.line
    if type(value).__name__ == "Declaration":
        data["is"] = value.keyword
    return data


def dump(layerfile: Layerfile) -> str:
    data = {
        "directives": dict(layerfile.directives),
        "global_args": plain(layerfile.global_args),
        "stages": [
            {"index": stage.index, "from": plain(stage.source), "instructions": plain(stage.instructions)}
            for stage in layerfile.stages
        ],
        "notes": [f"line {note.line}: {note.code}: {note.message}" for note in layerfile.notes],
    }
    return json.dumps({key: item for key, item in data.items() if item}, indent=1, ensure_ascii=False) + "\n"


def render(error: LayerfileError) -> str:
    parts = [str(error), error.excerpt, f"hint: {error.hint}" if error.hint else ""]
    return "\n".join(part for part in parts if part) + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_case(case: Path) -> None:
    try:
        name, found = "result.json", dump(parse_layerfile((case / "Layerfile").read_bytes()))
    except LayerfileError as error:
        name, found = "error.txt", render(error)
    if REGENERATE:
        for old in ("result.json", "error.txt"):
            (case / old).unlink(missing_ok=True)
        (case / name).write_text(found)
    assert (case / name).exists(), f"parsing gave {name}:\n{found}"
    assert found == (case / name).read_text()


def test_b38_crlf_and_lf_give_one_tree() -> None:
    """Line ends change nothing: neither continuations nor heredoc bodies nor their delimiters."""
    checked = 0
    for case in CASES:
        data = (case / "Layerfile").read_bytes()
        if b"\r" in data or not (case / "result.json").exists():
            continue
        crlf = parse_layerfile(data.replace(b"\n", b"\r\n"))
        assert dump(crlf) == (case / "result.json").read_text(), case.name
        checked += 1
    assert checked > 20


def test_every_keyword_has_a_case() -> None:
    from layerkit.build.layerfile import KEYWORDS

    text = "\n".join((case / "Layerfile").read_text(errors="replace").upper() for case in CASES)
    for keyword in KEYWORDS:
        assert f"\n{keyword} " in text, keyword
