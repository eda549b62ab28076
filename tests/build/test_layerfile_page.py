"""docs/layerfile.md: every example parses and plans, every keyword and setting is on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerkit.build.headers import SETTINGS
from layerkit.build.layerfile import KEYWORDS, parse_layerfile
from layerkit.build.scope import platform_args
from layerkit.build.stages import plan_build
from layerkit.errors import LayerfileError
from layerkit.ids import Platform

PAGE = (Path(__file__).parents[2] / "docs" / "layerfile.md").read_text()
EXAMPLES = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example-{number}" for number in range(len(EXAMPLES))])
def test_examples_parse_and_plan(example: str) -> None:
    layerfile = parse_layerfile(example.encode())
    plan = plan_build(layerfile, emit_all=True, platform=Platform("linux", "amd64"))
    assert [stage.index for stage in plan.stages] == list(range(len(layerfile.stages)))
    assert plan.stages[-1].emits


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_every_instruction_is_on_the_page_and_in_an_example_or_table(keyword: str) -> None:
    assert re.search(rf"`{keyword}\b", PAGE), keyword


def test_every_setting_and_automatic_argument_is_on_the_page() -> None:
    for key, values in SETTINGS.items():
        assert "`" + f"{key}=" + "\\|".join(values) + "`" in PAGE
    host = Platform.host()
    for name in platform_args(host, host, ""):
        assert name.removeprefix("BUILD").removeprefix("TARGET") in PAGE


def test_the_error_on_the_page_is_the_one_that_comes() -> None:
    shown = re.search(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert shown
    with pytest.raises(LayerfileError) as caught:
        parse_layerfile(b"FROM scratch\n\n\n\n\n\nCOPY --chwon=1:1 a /a\n")
    error = caught.value
    assert shown[1] == f"{error}\n{error.excerpt}\nhint: {error.hint}\n"
