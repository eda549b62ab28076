"""Same Layerfile and inputs, same digest: other folders, listings, time zones, umasks, stores and caches (L24)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.build.build_cli import SHUFFLED, Instance
from tests.build.engine import make_root

LAYERFILE = """\
FROM base/b:1 AS stage
COPY tree /tree
COPY --chown=app tree/5 /new/folder/
ADD --chown=app:staff . /add
WORKDIR /made/by/workdir

FROM base/b:1
LAYER toolkit t 1
PREFIX /opt/t
COPY --from=stage /tree /opt/t
COPY <<EOF /opt/t/etc/conf
text
EOF

FROM stage
LAYER workspace w 1
ENV B=2 A=1
LABEL z=1 a=2
VOLUME /b /a
EXPOSE 80 22
USER app
COPY --from=stage /tree /again
"""


def make_inputs(folder: Path) -> None:
    """The same files at the same times, wherever."""
    draw = random.Random(5)
    context = folder / "context"
    for number in range(60):
        path = context / "tree" / (f"{number % 7}/{number}" if number > 6 else f"{number}.d/{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.choice((0, 10, 300, 5000, 70_000))))
        path.chmod(draw.choice((0o644, 0o755, 0o4755)))
    os.link(context / "tree/1/8", context / "tree/hard")
    (context / "tree/link").symlink_to("../outside")
    (context / "Layerfile").write_text(LAYERFILE)
    make_root(folder / "root", usr__lib__x="x" * 5000)
    for path, folders, names in os.walk(folder, topdown=False):
        os.chmod(path, 0o755)
        for name in (*folders, *names):
            os.utime(os.path.join(path, name), ns=(9, 1_234_567_890_123_456_789), follow_symlinks=False)
    (context / "Layerfile").chmod(0o644)


def digests(instance: Instance, inputs: Path, *, shuffle: int | None = None) -> dict[str, str]:
    start = ("-m", "layerkit") if shuffle is None else ("-c", SHUFFLED, str(shuffle))
    instance.run("import", inputs / "root", "-t", "base/b:1", start=start)
    result = instance.run("build", "--all", "-t", "workspace/w:1", inputs / "context", start=start)
    return {layer["ref"]: layer["digest"] for layer in result["layers"]}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("first")
    make_inputs(folder)
    return folder, digests(Instance(folder / "instance"), folder)


@pytest.mark.parametrize(
    ("env", "umask", "shuffle"),
    [
        ({"TZ": "Pacific/Chatham", "LC_ALL": "C"}, 0o077, 1),
        ({"TZ": "America/Caracas", "LANG": "C.UTF-8"}, 0o000, 2),
        ({"PYTHONUTF8": "1"}, 0o027, 3),
    ],
)
def test_l24_other_machines_make_the_same_layers(
    expected: tuple[Path, dict[str, str]], tmp_path: Path, env: dict[str, str], umask: int, shuffle: int
) -> None:
    make_inputs(tmp_path / "elsewhere")
    instance = Instance(tmp_path / "instance", env, umask)
    assert digests(instance, tmp_path / "elsewhere", shuffle=shuffle) == expected[1]


def test_l24_a_store_with_other_layers_makes_the_same_layers(
    expected: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    inputs, first = expected
    instance = Instance(tmp_path / "instance")
    instance.run("import", inputs / "context", "-t", "base/other:1")
    assert digests(instance, inputs) == first


def test_l24_lost_caches_change_nothing(expected: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    inputs, first = expected
    instance = Instance(tmp_path / "instance")
    assert digests(instance, inputs) == first
    shutil.rmtree(tmp_path / "instance/home/knowledge")
    assert digests(instance, inputs) == first
    again = instance.run("build", "--all", "-t", "workspace/w:1", inputs / "context")
    assert again["steps"] == again["cached_steps"] > 5
    assert again["stored_bytes"] == 0
