"""The build context: what .dockerignore leaves out is not even read, and exceptions bring their folders along."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from layerkit.build.context import BuildContext
from layerkit.build.file_reader import FileReader
from layerkit.errors import InputError, MissingError, SourceChangedError
from layerkit.layer.facts import FactsCollector
from layerkit.layer.tree import walk
from tests.support.chunk_bag import ChunkBag

FILES = ("Dockerfile", "README.md", "src/main.py", "src/main.pyc", "src/deep/er/x.py", "docs/a.md", "docs/keep/b.md",
         "docs/keep/c.txt", "node_modules/x/index.js", ".git/config", "tmp/only/nothing.kept")  # fmt: skip


def context_of(folder: Path, ignore: str | None, *, name: str = ".dockerignore") -> BuildContext:
    for path in FILES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    if ignore is not None:
        (folder / name).write_text(ignore)
    return BuildContext(folder, folder / "Dockerfile")


def kept(context: BuildContext) -> set[str]:
    return {os.fsdecode(path) for path, inode in walk(context.root) if not inode.is_dir} - {".dockerignore"}


def folders(context: BuildContext) -> set[str]:
    return {os.fsdecode(path) for path, inode in walk(context.root) if inode.is_dir and path}


@pytest.mark.parametrize(
    ("ignore", "wanted"),
    [
        (None, set(FILES)),
        ("", set(FILES)),
        ("node_modules\n.git\n", set(FILES) - {"node_modules/x/index.js", ".git/config"}),
        ("**/*.pyc\ntmp", set(FILES) - {"src/main.pyc", "tmp/only/nothing.kept"}),
        ("*\n!src\n!README.md", {"src/main.py", "src/main.pyc", "src/deep/er/x.py", "README.md"}),
        ("*\n!src\nsrc/deep\n!src/deep/er/x.py", {"src/main.py", "src/main.pyc", "src/deep/er/x.py"}),
        ("docs\n!docs/keep/*.md", set(FILES) - {"docs/a.md", "docs/keep/c.txt"}),
        ("docs\n!**/b.md", set(FILES) - {"docs/a.md", "docs/keep/c.txt"}),
        ("docs\n!docs/keep\ndocs/keep/b.md", set(FILES) - {"docs/a.md", "docs/keep/b.md"}),
        ("# comment\n  /src/deep/  \n./docs/../tmp", set(FILES) - {"src/deep/er/x.py", "tmp/only/nothing.kept"}),
        ("**", set()),
        ("!src", set(FILES)),
    ],
)
def test_b36_what_stays(tmp_path: Path, ignore: str | None, wanted: set[str]) -> None:
    assert kept(context_of(tmp_path, ignore)) == wanted


def test_b36_excluded_folders_come_back_only_for_what_is_kept_in_them(tmp_path: Path) -> None:
    context = context_of(tmp_path, "*\n!docs/keep/b.md\n!tmp/only/else")
    assert kept(context) == {"docs/keep/b.md"}
    # tmp and tmp/only were entered, since an exception might have been there.
    assert folders(context) == {"docs", "docs/keep"}


def test_b36_the_layerfile_s_own_ignore_file_wins(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile.dockerignore").write_text("src")
    context = context_of(tmp_path, "docs")
    assert kept(context) == {path for path in FILES if not path.startswith("src")} | {"Dockerfile.dockerignore"}


def test_b36_mistakes_are_shown_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        context_of(tmp_path, "ok\nb[ad")
    assert caught.value.where.endswith(".dockerignore:2")


def test_what_is_left_out_is_not_read(tmp_path: Path) -> None:
    """Not its folders, and so nothing in them either: they may be huge, or unreadable."""
    context = context_of(tmp_path, "node_modules\n.git")
    (tmp_path / "node_modules/x").rename(tmp_path / "node_modules/y")
    if os.geteuid() == 0:
        os.mknod(tmp_path / ".git/device", stat.S_IFCHR, 0)  # a scan refuses a whiteout
    assert "node_modules" not in folders(context)


def test_ignored_sources_are_missing_and_say_why(tmp_path: Path) -> None:
    context = context_of(tmp_path, "docs")
    with pytest.raises(MissingError, match="dockerignore"):
        context.select("docs/a.md")


def test_only_what_is_copied_is_read(tmp_path: Path) -> None:
    context = context_of(tmp_path, None)
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    bag = ChunkBag()
    sources = context.select("src")
    context.fill(sources, FileReader(bag.ingester(), FactsCollector(), None))
    (main,) = context.select("src/main.py")
    assert bag.read(main.inode.body) == b"src/main.py"
    assert bag.chunks == {}
    (tmp_path / "README.md").write_text("changed")
    with pytest.raises(SourceChangedError):
        context.fill(context.select("README.md"), FileReader(bag.ingester(), FactsCollector(), None))


def test_finding_a_file_again(tmp_path: Path) -> None:
    context = context_of(tmp_path, None)
    (source,) = context.select("src/main.py")
    assert context.find_path(source.inode) == tmp_path / "src/main.py"
    (other,) = BuildContext(tmp_path, tmp_path / "Dockerfile").select("src/main.py")
    assert context.find_path(other.inode) is None


def test_a_context_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        with pytest.raises(InputError):
            BuildContext(tmp_path / name, tmp_path / "Dockerfile")


def test_b33_names_that_are_no_utf8(tmp_path: Path) -> None:
    context = context_of(tmp_path, "caf*")
    for name in (b"caf\xe9", b"tea\xe9"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("x")
    assert "tea\udce9" in kept(context)
    assert "caf\udce9" not in kept(context)
