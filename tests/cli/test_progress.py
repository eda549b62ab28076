"""How a build is drawn: plain lines, JSON, and a terminal that shows a failing step's output."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from layerkit.build.events import LayerDone, Note, StageStarted, StepDone, StepOutput, StepStarted
from layerkit.cli import progress
from layerkit.cli.progress import open_progress


def failing(view: progress.Progress) -> None:
    view(StageStarted("app", "base/b:1", 2))
    view(StepStarted("app", 1, 2, "RUN one"))
    view(StepOutput("stdout", b"first step\n"))
    view(StepDone("app", 1, False, 0.1, 10))
    view(StepStarted("app", 2, 2, "RUN [two]\nmore"))
    view(StepOutput("stdout", b"before\nhalf"))
    view(StepOutput("stderr", b" a line\n[bold]why\xff\n"))


def test_plain_lines_carry_their_step(capsys: pytest.CaptureFixture[str]) -> None:
    view = open_progress(as_json=False)
    failing(view)
    view(StepOutput("stdout", b"no end"))
    view.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["app: FROM base/b:1", "[app 1/2] RUN one", "[app 1] | first step"]
    assert lines[4:] == [
        "[app 2/2] RUN [two] …", "[app 2] | before", "[app 2] | half a line", "[app 2] | [bold]why\ufffd",
        "[app 2] | no end",
    ]  # fmt: skip


def test_json_is_one_object_a_line_and_keeps_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    view = open_progress(as_json=True)
    failing(view)
    view(LayerDone("workspace/w:dev", "sha256:0", True, 0.1))
    view(Note("text", "Layerfile:1"))
    view.close()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["event"] for item in found] == [
        "stage", "step", "output", "step_done", "step", "output", "output", "layer", "note",
    ]  # fmt: skip
    assert found[6]["encoding"] == "base64"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    return screen


def test_a_terminal_shows_what_a_failing_step_wrote(terminal: io.StringIO) -> None:
    view = open_progress(as_json=False)
    failing(view)
    view.close()
    after = terminal.getvalue().rpartition("\x1b[?25h")[2]
    assert "before" in after
    assert "half a line" in after
    assert "[bold]why" in after
    assert "first step" not in after


def test_a_terminal_stays_clean_when_all_went_well(terminal: io.StringIO) -> None:
    view = open_progress(as_json=False)
    view(StepStarted("app", 1, 1, "RUN one"))
    view(StepOutput("stdout", b"noise\n"))
    view(StepDone("app", 1, True, 0.1, 10))
    view(LayerDone("workspace/w:dev", "sha256:0", False, 0.1))
    view.close()
    assert "noise" not in terminal.getvalue().rpartition("\x1b[?25h")[2]
    assert "workspace/w:dev" in terminal.getvalue()
