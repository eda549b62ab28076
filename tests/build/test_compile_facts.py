"""Facts of built layers: those that importing the same tree would find, whatever way the files took."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from layerkit.build.stored import StoredLayer
from tests.build.engine import Bench, UpperExecutor, extract, make_root, write

STATUS = "Package: libx\nStatus: install ok installed\nVersion: 1.2\nArchitecture: amd64\n\n" + "#" * 300 + "\n"
METADATA = "Metadata-Version: 2.1\nName: thing\nVersion: 3.4\n\ntext\n"
LONG_SCRIPT = "#!/usr/bin/env bash\n" + "true\n" * 100


def imported(bench: Bench, digest: str) -> StoredLayer:
    """The same tree as the layer's stack, extracted and imported."""
    folder = bench.folder / "extracted"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    extract(bench.stack(digest), folder)
    return bench.layer(bench.base(folder, "base/imported:1"))


def check(bench: Bench, text: str, **kwargs: object) -> StoredLayer:
    """Build a base that stands alone, and compare its facts with the import's."""
    built = bench.build(f"FROM scratch\nLAYER base flat 1\n{text}", **kwargs).layers[-1]  # type: ignore[arg-type]
    layer = bench.layer(built.digest)
    assert layer.facts.to_bytes() == imported(bench, built.digest).facts.to_bytes()
    return layer


def test_copies_to_paths_where_they_mean_something(bench: Bench) -> None:
    bench.files(status=STATUS, metadata=METADATA, long=METADATA + "x" * 400)
    layer = check(
        bench, "COPY status /var/lib/dpkg/status\nCOPY metadata /lib/thing.dist-info/METADATA\n"
        "COPY long /lib/long.dist-info/METADATA\nCOPY status /elsewhere\n",
    )  # fmt: skip
    assert [package.name for package in layer.facts.packages("dpkg")] == ["libx"]
    assert len(layer.facts.packages("python")) == 1
    assert sorted(layer.facts.files) == [
        b"lib/long.dist-info/METADATA", b"lib/thing.dist-info/METADATA", b"var/lib/dpkg/status",
    ]  # fmt: skip


def test_copies_away_from_such_paths(bench: Bench) -> None:
    bench.files(var__lib__dpkg__status=STATUS, x__a_dist_info=METADATA)
    (bench.context / "x/a.dist-info").mkdir()
    bench.file("x/a.dist-info/METADATA", METADATA)
    layer = check(bench, "COPY var/lib/dpkg/status /plain\nCOPY x /x\nCOPY x/a.dist-info/METADATA /y\n")
    assert list(layer.facts.files) == [b"x/a.dist-info/METADATA"]


@pytest.mark.parametrize("script", ["#!/bin/sh\n", LONG_SCRIPT])
def test_scripts_are_those_that_somebody_may_execute(bench: Bench, script: str) -> None:
    bench.file("plain", script, 0o644)
    bench.file("run", script + " ", 0o755)
    layer = check(
        bench, "COPY plain /a\nCOPY --chmod=755 plain /b\nCOPY run /c\nCOPY --chmod=644 run /d\n"
        f"COPY --chmod=700 <<EOF /e\n{script}EOF\n",
    )  # fmt: skip
    assert sorted(layer.facts.scripts) == [b"b", b"c", b"e"]


def test_elf_files_through_every_way(bench: Bench) -> None:
    elf = Path(sys.executable).resolve().read_bytes()[: 4 << 20]
    bench.file("elf", elf, 0o644)
    with tarfile.open(bench.context / "a.tar", "w") as archive:
        found = {"bin/elf": elf, "lib/t.dist-info/METADATA": METADATA.encode(), "status": STATUS.encode()}
        for name, data in found.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    executor = UpperExecutor({"make": lambda upper: write(upper, "run/elf", elf)})
    layer = check(
        bench, "COPY elf /one\nCOPY elf /two\nADD a.tar /var/lib/dpkg\nADD a.tar /\nRUN make\n", executor=executor
    )
    assert sorted(layer.facts.elf) == [b"bin/elf", b"one", b"run/elf", b"two", b"var/lib/dpkg/bin/elf"]
    assert b"var/lib/dpkg/status" in layer.facts.files


def test_copies_from_stages_and_layers(bench: Bench, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", var__lib__dpkg__status=STATUS, hidden=STATUS, text=LONG_SCRIPT, meta=METADATA)
    (root / "run").write_text(LONG_SCRIPT + "#")
    (root / "run").chmod(0o755)
    bench.base(root)
    layer = check(
        bench,
        "COPY --from=base/b:1 /run /r\nCOPY --from=base/b:1 --chmod=755 /text /x\nCOPY --from=base/b:1 /hidden "
        "/var/lib/dpkg/status.d/h\nCOPY --from=base/b:1 /var/lib/dpkg /moved\n"
        "COPY --from=base/b:1 /meta /m.dist-info/METADATA\nCOPY --from=base/b:1 --chmod=600 /run /s\n",
    )
    assert sorted(layer.facts.files) == [b"m.dist-info/METADATA", b"r", b"var/lib/dpkg/status.d/h", b"x"]


def test_replaced_and_removed_files_lose_their_facts(based: Bench) -> None:
    based.files(status=STATUS, other="no stanza")
    text = "FROM base/b:1\nLAYER base flat 1\nCOPY {} /var/lib/dpkg/status\nCOPY other /usr/bin/tool\n"
    first = based.layer(based.build(text.format("status")).layers[-1].digest)
    assert list(first.facts.files) == [b"var/lib/dpkg/status"]
    second = based.build(text.format("status") + "COPY other /var/lib/dpkg/status\n").layers[-1]
    assert [fact.packages for fact in based.layer(second.digest).facts.files.values()] == [()]
    assert based.layer(second.digest).facts.to_bytes() == imported(based, second.digest).facts.to_bytes()


def test_a_workspace_has_the_facts_of_its_own_files_only(based: Bench) -> None:
    based.files(status=STATUS)
    layer = based.layer(based.one("FROM base/b:1\nCOPY status /var/lib/dpkg/status\n").digest)
    assert list(layer.facts.files) == [b"var/lib/dpkg/status"]


def test_the_same_file_read_under_two_paths(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file cache keeps of a file must not depend on the path under which it was read first."""
    monkeypatch.setattr("layerkit.build.file_cache.SETTLED_NS", 0)
    root = make_root(tmp_path / "root", var__lib__dpkg__status=STATUS)
    bench.base(root)
    bench.context = root / "var/lib/dpkg"
    built = bench.build("FROM scratch\nLAYER base flat 1\nCOPY status /s\n").layers[-1]
    assert bench.layer(built.digest).facts.files == {}
