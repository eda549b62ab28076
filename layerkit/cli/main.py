"""The program's entry: global flags and the table of commands, each imported only when it is called."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    raise SystemExit("layerkit: no command yet")
