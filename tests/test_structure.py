"""The shape of the project: imports point downward, third-party modules have one home, files stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "layerkit"
# `errors` is the floor of rank 0; the rest of rank 0 stands on it.
RANKS = {"errors": -1, "ids": 0, "settings": 0, "_util": 0, "core": 1, "layer": 2, "store": 2, "build": 3, "fuse": 3,
         "runtime": 4, "cli": 5, "__init__": 5, "__main__": 6}  # fmt: skip
# Third-party import -> the only places (packages or files) where it may stand.
HOMES = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "cffi": ("core/build_core.py",),
    "boto3": ("store/s3.py",),
    "botocore": ("store/s3.py",),
    "lmdb": ("store/knowledge.py",),
    "pyfuse3": ("fuse/",),
    "trio": ("fuse/",),
    "aiohttp": ("fuse/",),
    "prometheus_client": ("fuse/",),
    "docker": ("build/import_docker.py",),
    "blake3": ("core/hashing.py",),
    "xxhash": ("core/hashing.py",),
    "zstandard": ("store/", "core/zstd.py"),
    "packaging": ("store/versions.py",),
}
# File -> why it is longer than MAX_LINES; C files count too.
LONG_FILES: dict[str, str] = {}
# Function -> why it is longer than MAX_FUNCTION.
LONG_FUNCTIONS: dict[str, str] = {}
MAX_LINES = 400
MAX_FUNCTION = 60

SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    part = part_of(path)
    place = str(path.relative_to(PACKAGE))
    for name in imports(ast.parse(path.read_text())):
        top, *rest = name.split(".")
        if top == "layerkit":
            target = rest[0] if rest else "__init__"
            if target in ("__version__",):
                continue
            assert target in RANKS, f"{place} imports {name}"
            assert target == part or RANKS[target] < RANKS[part], f"{place} ({part}) must not import {name}"
        elif top in HOMES:
            assert place.startswith(HOMES[top]), f"{place} imports {name}; its home is {HOMES[top]}"


@pytest.mark.parametrize(
    "path",
    [*SOURCES, *sorted(PACKAGE.rglob("*.c"))],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_files_are_small(path: Path) -> None:
    place = str(path.relative_to(PACKAGE))
    if place.endswith("_core.c"):
        return
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES or place in LONG_FILES, f"{place} has {lines} lines; split its subject or give the reason"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_are_small(path: Path) -> None:
    place = str(path.relative_to(PACKAGE))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            key = f"{place}:{node.name}"
            assert lines <= MAX_FUNCTION or key in LONG_FUNCTIONS, f"{key} has {lines} lines"


def test_exceptions_are_still_needed() -> None:
    for place in LONG_FILES:
        assert len((PACKAGE / place).read_text().splitlines()) > MAX_LINES, f"{place} no longer needs its exception"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
