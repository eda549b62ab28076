"""How commands print: one JSON object a line with --json, aligned tables for people. `cli` only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(function: Function) -> Function:
    """The flag every command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(function)


def platform_option(function: Function) -> Function:
    """`--platform`, of the commands that look layers up."""
    return click.option(
        "--platform", "platform_text", metavar="OS/ARCH", help="Look for layers of this platform, not of this machine."
    )(function)


def own_option(function: Function) -> Function:
    """`--own`, of the commands that look into layers."""
    return click.option(
        "--own", is_flag=True, help="Only what the layer itself holds, whiteouts too, without the layers it stands on."
    )(function)


def print_json(value: Mapping[str, Any], *, flush: bool = True) -> None:
    """One line of JSON on stdout, flushed because streams are read while they run; listings go without."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")
    if flush:
        sys.stdout.flush()


def print_line(text: str) -> None:
    """A line of a listing, which may have a million: not flushed, `main` does it at the end."""
    sys.stdout.write(text + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Rows under a header, columns aligned; the columns in `right` end at one edge (numbers)."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for number, row in enumerate((header, *rows)):
        cells = [
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def shown(name: bytes) -> str:
    """A name from an image for a terminal: what is not UTF-8 or not printable is escaped."""
    text = name.decode("utf-8", "surrogateescape")
    return "".join(
        char if char.isprintable() and not "\ud800" <= char <= "\udfff" else char.encode("unicode_escape").decode()
        if not "\udc80" <= char <= "\udcff"
        else f"\\x{ord(char) - 0xDC00:02x}"
        for char in text
    )
