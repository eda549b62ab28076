"""RUN in real sandboxes, on lazily mounted layers: what is in a layer afterwards, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layerkit.build.stage_files import StageFiles
from layerkit.build.stored import StoredLayer, StoredLayers
from layerkit.layer.tree import Content, find
from layerkit.store.store import open_store
from tests.e2e.conftest import Program
from tests.support.small_root import make_small_root

pytestmark = pytest.mark.privileged


class Built:
    """A program with base/small:1, and what its builds made."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.context = folder / "context"
        self.context.mkdir()
        root = folder / "root"
        make_small_root(root)
        root.chmod(0o755)
        for path in (root / "etc", root):
            os.utime(path, ns=(7, 7))
        program.result("import", root, "-t", "base/small:1")

    def build(self, text: str, *words: str) -> StageFiles:
        (self.context / "Layerfile").write_text(text)
        result = self.program.result("build", *words, self.context)
        library = StoredLayers(open_store(str(self.program.folder / "store"), home=self.program.home))
        return StageFiles(library, library.stack_of(result["digest"]))

    def top(self, files: StageFiles) -> StoredLayer:
        store = open_store(str(self.program.folder / "store"), home=self.program.home)
        return StoredLayers(store).get(files.layers[-1])

    def workspace(self, *lines: str) -> StageFiles:
        return self.build("FROM base/small:1\n" + "\n".join(lines) + "\n", "-t", "workspace/w")


def text_of(files: StageFiles, path: str) -> str:
    inode = find(files.tree, path.encode())
    assert inode is not None, path
    assert isinstance(inode.body, Content | bytes)
    return files.read(inode.body).decode()


@pytest.fixture
def built(layerkit: Program, tmp_path: Path) -> Built:
    return Built(layerkit, tmp_path)


def test_b21_a_run_that_changes_nothing_leaves_nothing(built: Built) -> None:
    files = built.workspace("RUN true", "RUN cat /etc/passwd >/dev/null; ls -lR /proc/self /etc /tmp >/dev/null")
    assert list(built.top(files).tree.entries) == []
    assert files.tree.mtime_ns == 7
    assert files.tree.mode & 0o7777 == 0o755


def test_what_a_run_sees_and_leaves(built: Built) -> None:
    files = built.workspace(
        "ARG A=arg", "ENV E=env", "WORKDIR /work", "USER user", 'RUN id -u > /tmp/uid; echo "$A $E $PWD" > /tmp/seen',
        "USER root", "RUN rm /bin/wc && mkdir /new && chmod 4750 /bin/ls && chown user /new && ln /bin/cat /new/hard",
        "RUN hostname > /name", "RUN <<EOF", "#!/bin/bash", 'echo "script $0" > /script', "EOF",
    )  # fmt: skip
    assert text_of(files, "tmp/uid") == "1000\n"
    assert text_of(files, "tmp/seen") == "arg env /work\n"
    assert text_of(files, "name") == "layerkit-build\n"
    assert text_of(files, "script") == "script /dev/pipes/EOF\n"
    assert find(files.tree, b"bin/wc") is None
    ls, new = find(files.tree, b"bin/ls"), find(files.tree, b"new")
    assert ls is not None
    assert new is not None
    assert (ls.mode & 0o7777, new.uid) == (0o4750, 1000)
    assert find(files.tree, b"new/hard") is find(files.tree, b"bin/cat")
    top = built.top(files).tree
    assert set(top.entries) == {b"bin", b"name", b"new", b"script", b"tmp", b"work"}
    assert set(top.entries[b"tmp"].entries) == {b"uid", b"seen"}


def test_required_toolkits_run_and_cannot_be_written_to(built: Built) -> None:
    (built.context / "hi").write_text("#!/bin/sh\necho hi from $T\n")
    (built.context / "hi").chmod(0o755)
    built.build(
        "FROM base/small:1\nLAYER toolkit t 1.0\nPREFIX /opt/t\n"
        "EXPORT PATH+=/opt/t/bin T=toolkit\nCOPY hi /opt/t/bin/\n"
    )
    files = built.workspace("REQUIRES toolkit/t>=1", "RUN hi > /said; touch /opt/t/no 2>/refused || true")
    assert text_of(files, "said") == "hi from toolkit\n"
    assert "Read-only" in text_of(files, "refused")
    assert set(built.top(files).tree.entries) == {b"said", b"refused"}


def test_a_failing_run_shows_output_and_code_and_keeps_earlier_steps(built: Built) -> None:
    (built.context / "Layerfile").write_text("FROM base/small:1\nRUN echo one > /one\nRUN echo why >&2; exit 5\n")
    done = built.program.call("build", "-t", "workspace/w", built.context)
    assert done.returncode == 11
    assert b"why" in done.stderr
    assert b"Layerfile:3" in done.stderr
    assert b"exit code 5" in done.stderr
    assert b"RUN echo why" in done.stderr
    (built.context / "Layerfile").write_text("FROM base/small:1\nRUN echo one > /one\nRUN echo two > /two\n")
    result = built.program.result("build", "-t", "workspace/w", built.context)
    assert (result["steps"], result["cached_steps"]) == (2, 1)
    missing = built.workspace.__self__
    (missing.context / "Layerfile").write_text('FROM base/small:1\nRUN ["/bin/absent"]\n')
    done = built.program.call("build", "-t", "workspace/w", built.context)
    assert done.returncode == 11
    assert b"exit code 127" in done.stderr
