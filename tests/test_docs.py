"""The tables of docs/operations.md are what the code says; every link between pages leads somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerkit import settings
from layerkit.errors import LayerkitError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_README_LINES = 150


def error_classes(kind: type[LayerkitError] = LayerkitError) -> Iterator[type[LayerkitError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from error_classes(child)


def error_table() -> list[str]:
    importlib.import_module("layerkit.build.gomatch")  # the one error class outside of errors.py
    rows = []
    for kind in error_classes():
        rows.append(f"| `{kind.code}` | {kind.exit_code} | {(kind.__doc__ or '').splitlines()[0]} |")
    return rows


def settings_table() -> list[str]:
    return [f"| `{row.variable}` | {row.meaning} | {row.default} |" for row in settings.SETTINGS]


def test_operations_lists_every_setting_and_every_error() -> None:
    text = (ROOT / "docs/operations.md").read_text().splitlines()
    for row in settings_table():
        assert row in text, f"docs/operations.md lacks: {row}"
    listed = {row.split("`")[1] for row in error_table()}
    for row in error_table():
        assert row in text, f"docs/operations.md lacks: {row}"
    said = {line.split("`")[1] for line in text if re.match(r"\| `[a-z-]+` \| \d+ \|", line)}
    assert said == listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_every_command_of_the_help_exists_and_explains_itself() -> None:
    from layerkit.cli.main import COMMANDS

    for name in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "layerkit", name, "--help"], capture_output=True, text=True, check=True
        )
        assert "--json" in done.stdout, f"{name} has no --json"
        assert len(done.stdout.splitlines()) > 5, name


def test_commands_in_the_readme_exist() -> None:
    from layerkit.cli.main import COMMANDS

    for name in re.findall(r"\.venv/bin/layerkit ([a-z]+)", (ROOT / "README.md").read_text()):
        assert name in COMMANDS
