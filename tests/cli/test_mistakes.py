"""What users and their machines get wrong: a typed error with place and exit code, never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from layerkit.cli.main import main


class Cli:
    """The command line in this process, on an instance below one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capfd = capfd
        self.setenv = monkeypatch.setenv
        for name in ("store", "home", "run"):
            monkeypatch.setenv(f"LAYERKIT_{name.upper()}", str(folder / name))
        self.root = folder / "root"
        (self.root / "etc").mkdir(parents=True)
        (self.root / "big").write_bytes(os.urandom(9000))

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = self._capfd.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("url", "code"),
    [("s3://bucket/x", 7), ("oci://r/x", 7), ("http://[", 2), ("file:///a%00b", 2), ("file://host/x", 2), ("/none", 3)],
)
def test_impossible_stores(cli: Cli, url: str, code: int) -> None:
    cli.setenv("LAYERKIT_STORE", url)
    found, out, err = cli("ls", "--json")
    assert found == code
    assert url in err
    assert json.loads(out)["error"]["where"] == url


@pytest.mark.parametrize("command", ["build", "import", "prune", "publish"])
@pytest.mark.parametrize("home", ["a file", "below a file"])
def test_a_home_that_cannot_be_written(cli: Cli, command: str, home: str) -> None:
    cli("import", cli.root, "-t", "base/b:1")
    (cli.folder / "in-the-way").write_text("")
    cli.setenv("LAYERKIT_HOME", str(cli.folder / ("in-the-way" if home == "a file" else "in-the-way/below")))
    (cli.root / "Layerfile").write_text("FROM scratch\nCOPY big /\n")
    words = {"build": [cli.root], "import": [cli.root, "-t", "base/c:1"], "publish": ["base/b:1"]}.get(command, [])
    code, _, err = cli(command, *words)
    assert code == 5
    assert "in-the-way" in err
    assert "LAYERKIT_HOME" in err


def test_a_layerfile_that_may_not_be_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "Layerfile").write_text("FROM scratch\n")

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("layerkit.cli.build_command.open", refuse, raising=False)
    code, out, err = cli("build", cli.root, "--json")
    assert code == 6
    assert "Layerfile: access refused" in err
    assert json.loads(out)["error"]["code"] == "denied"


def test_a_name_that_is_too_long(cli: Cli) -> None:
    code, _, err = cli("import", "x" * 300, "-t", "base/b:1")
    assert code != 1
    assert "File name too long" in err


@pytest.mark.parametrize("variable", ["LAYERKIT_STEP_CACHE", "LAYERKIT_HOST_CACHE"])
def test_budgets_that_are_no_numbers(cli: Cli, variable: str) -> None:
    cli("import", cli.root, "-t", "base/b:1")
    cli.setenv(variable, "lots")
    code, _, err = cli("prune")
    assert code == 2
    assert variable in err


def test_a_bad_budget_is_refused_before_anything_is_built(cli: Cli) -> None:
    (cli.root / "Layerfile").write_text("FROM scratch\nCOPY big /\n")
    cli.setenv("LAYERKIT_STEP_CACHE", "-5")
    code, out, _ = cli("build", cli.root)
    assert (code, out) == (2, "")


def test_a_bad_tag_publishes_nothing(cli: Cli) -> None:
    cli("import", cli.root, "-t", "base/b:1")
    code, _, err = cli("publish", "base/b:1", "--tag", "latest", "--tag", "not a tag")
    assert code == 2
    assert "not a tag" in err
    assert "published" not in cli("ls", "--json")[1]


def test_a_damaged_layer_elsewhere_fails_no_build(cli: Cli) -> None:
    """Pruning at a build's end cannot tell what a damaged layer stands on; that is not the build's fault."""
    (cli.root / "Layerfile").write_text("FROM scratch\nCOPY big /\n")
    assert cli("build", cli.root, "-t", "base/one")[0] == 0
    assert cli("import", cli.root, "-t", "base/other:1")[0] == 0
    digest = json.loads(cli("inspect", "base/other:1", "--json")[1].splitlines()[0])["digest"].removeprefix("sha256:")
    (cli.folder / "store/layers" / digest[:2] / digest / "config.json").write_bytes(b"{}")
    cli.setenv("LAYERKIT_STEP_CACHE", "0")
    (cli.root / "big").write_bytes(os.urandom(9000))
    code, out, _ = cli("build", cli.root, "-t", "base/two", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["result"]["ref"] == "base/two:dev"
