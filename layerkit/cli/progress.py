"""Draws a build: a live view on a terminal, plain lines in a log, JSON objects with --json. `cli` only."""

from __future__ import annotations

import base64
import sys
from dataclasses import asdict
from typing import Protocol

from layerkit._util.text import format_bytes, format_seconds
from layerkit.build.events import Event, LayerDone, Note, StageStarted, StepDone, StepOutput, StepStarted
from layerkit.cli.output import print_json

NAMES = {StageStarted: "stage", StepStarted: "step", StepOutput: "output", StepDone: "step_done", LayerDone: "layer",
         Note: "note"}  # fmt: skip


class Progress(Protocol):
    """Hears of events until it is closed."""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def open_progress(*, as_json: bool) -> Progress:
    """The view that fits where the output goes."""
    if as_json:
        return _JsonLines()
    return _Terminal() if sys.stderr.isatty() else _PlainLines()


class _JsonLines:
    def __call__(self, event: Event) -> None:
        fields = asdict(event)
        if isinstance(event, StepOutput):
            try:
                fields["data"] = event.data.decode()
            except UnicodeDecodeError:
                fields["data"], fields["encoding"] = base64.b64encode(event.data).decode(), "base64"
        print_json({"event": NAMES[type(event)], **fields})

    def close(self) -> None:
        """Nothing to undo."""


def _line(event: Event) -> str:
    match event:
        case StageStarted(title, origin, _):
            return f"{title}: FROM {origin}"
        case StepStarted(stage, number, total, text):
            return f"[{stage} {number}/{total}] {_first_line(text)}"
        case StepDone(stage, number, cached, seconds, new_bytes):
            how = "cached" if cached else f"{format_seconds(seconds)}, {format_bytes(new_bytes)} new"
            return f"[{stage} {number}] {how}"
        case LayerDone(ref, digest, existed, seconds):
            return f"{ref}  {digest}  ({'unchanged' if existed else format_seconds(seconds)})"
        case Note(text, where):
            return f"note: {where + ': ' if where else ''}{text}"
        case StepOutput():
            return ""


def _first_line(text: str) -> str:
    lines = text.splitlines() or [""]
    return lines[0][:200] + (" …" if len(lines) > 1 or len(lines[0]) > 200 else "")


class _PlainLines:
    """Output lines carry their step in front, so that a log of parallel work can be read."""

    def __init__(self) -> None:
        self._step = ""
        self._rest = b""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepOutput):
            *lines, self._rest = (self._rest + event.data).split(b"\n")
            for line in lines:
                self._print(f"{self._step} | {line.decode('utf-8', 'replace')}")
            return
        if self._rest:
            self._print(f"{self._step} | {self._rest.decode('utf-8', 'replace')}")
            self._rest = b""
        if isinstance(event, StepStarted):
            self._step = f"[{event.stage} {event.number}]"
        self._print(_line(event))

    @staticmethod
    def _print(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print what had no line end yet."""
        if self._rest:
            self._print(f"{self._step} | {self._rest.decode('utf-8', 'replace')}")
            self._rest = b""


class _Terminal:
    """Finished steps scroll away as lines; the running one is a spinner with its last line of output.

    A step that never finishes has failed: then the end of its output is printed.
    """

    KEPT = 1 << 16

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("")
        self._text = ""
        self._output = b""
        self._status.start()

    def __call__(self, event: Event) -> None:
        from rich.markup import escape

        if isinstance(event, StepOutput):
            self._output = (self._output + event.data)[-self.KEPT :]
            last = event.data.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
            if last:
                width = max(self._console.width - 6, 20)
                self._status.update(f"{self._text}\n  [dim]{escape(last[:width])}[/dim]")
            return
        self._output = b""
        line = escape(_line(event))
        if isinstance(event, StepStarted):
            self._text = line
            self._status.update(line)
        elif isinstance(event, StepDone):
            style = "dim" if event.cached else "green"
            self._console.print(f"[{style}]✓[/{style}] {self._text}  [dim]{line.partition('] ')[2]}[/dim]")
        elif isinstance(event, LayerDone):
            self._console.print(f"[bold]{line}[/bold]")
        else:
            self._console.print(line)

    def close(self) -> None:
        """Take the spinner away, and show what a step that did not end has said."""
        self._status.stop()
        if self._output:
            self._console.print(self._text)
            self._console.out(self._output.decode("utf-8", "replace").rstrip())
