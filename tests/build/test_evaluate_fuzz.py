"""Whatever parses can be planned and evaluated, or is refused with a place; seeded, a few seconds."""

from __future__ import annotations

import random
import time
from pathlib import Path

from layerkit.build.config_effect import ImageConfig, apply, begin_child, begin_stage
from layerkit.build.dockerignore import IgnoreRules
from layerkit.build.layerfile import parse_layerfile
from layerkit.build.layerfile.nodes import Copy, Run
from layerkit.build.resolve import resolve_copy, resolve_run
from layerkit.build.stages import BuildPlan, plan_build
from layerkit.errors import InputError, LayerfileError
from layerkit.ids import Platform

CASES = sorted((Path(__file__).parent / "parser" / "cases").glob("*/Layerfile"))
SECONDS = 5.0
TOKENS = [
    *("$", "${", "}", ":-", ":+", "?", "#", "%", "/", "//", "*", "\\", "'", '"', "\\0", "$A", "${A/x/y}", "${B:-$A}"),
    *("FROM ", "\nLAYER toolkit x\n", "\nPREFIX /x\n", "\nEXPORT PATH+=", "\nSETTING network=", "\nARG A=1\n", " AS a"),
    *(
        "\nENV A=$A$A\n",
        "\nREQUIRES a>=",
        "--from=",
        "--chmod=u=",
        "\nWORKDIR ..\n",
        "\nMTIME ",
        "base/",
        ":",
        "@",
        " ",
    ),
]


def evaluate(plan: BuildPlan) -> None:
    states = {}
    for stage in plan.stages:
        below = states.get(stage.origin.stage)
        state = begin_child(below) if below else begin_stage(ImageConfig(env={"A": "base"}))
        for step in stage.steps:
            if isinstance(step, Run):
                resolve_run(step, state)
            elif isinstance(step, Copy):
                resolve_copy(plan.scope.layerfile, step, state)
            state = apply(state, step, plan.scope)
        states[stage.index] = state


def attempt(text: str) -> str:
    try:
        layerfile = parse_layerfile(text.encode("utf-8", "replace"))
    except LayerfileError:
        return "unparsed"
    try:
        evaluate(plan_build(layerfile, emit_all=True, build_args={"G": "x"}, platform=Platform("linux", "amd64")))
    except LayerfileError as error:
        return "refused" if error.excerpt else "without excerpt"
    return "evaluated"


def test_fuzz_plans_and_effects() -> None:
    seed = 77
    generator = random.Random(seed)
    seeds = [case.read_text("utf-8", "replace") for case in CASES]
    counts = dict.fromkeys(("unparsed", "refused", "evaluated", "without excerpt"), 0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        text = generator.choice(seeds)
        for _ in range(generator.randint(1, 5)):
            at = generator.randrange(len(text) + 1)
            text = text[:at] + generator.choice(TOKENS) + text[at + generator.randrange(3) :]
        try:
            counts[attempt(text)] += 1
        except Exception as unexpected:
            raise AssertionError(f"seed {seed}: {text!r}") from unexpected
    assert counts["without excerpt"] == 0
    assert min(counts["refused"], counts["evaluated"]) > 100, counts


def test_fuzz_dockerignore() -> None:
    generator = random.Random(78)
    for _ in range(5000):
        data = "".join(generator.choices("ab/*?![]^-\\\n #.", k=generator.randint(0, 30))).encode()
        try:
            rules = IgnoreRules.parse(data)
        except InputError as error:
            assert error.where.startswith(".dockerignore:")  # noqa: PT017
            continue
        for path in ("a", "a/b", "b/a/b", "ab"):
            rules.ignores(path)
