"""Local knowledge may be deleted or damaged at any time: it answers as if it knew nothing, and learns again."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from layerkit.store import knowledge as module
from layerkit.store.frames import CODEC_ZSTD, ChunkPlace
from layerkit.store.knowledge import FOLDER, Knowledge
from layerkit.store.tables import TOUCH_AFTER_NS, AgedTable

STORE = "ab" * 16


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    forget(tmp_path)


def forget(home: Path) -> None:
    """What the end of a process does."""
    found = module._opened.pop(home / FOLDER, None)
    if found is not None:
        found.close()


def chunk_places(count: int, seed: int = 0) -> list[tuple[bytes, ChunkPlace]]:
    draw = random.Random(seed)
    return [
        (draw.randbytes(32), ChunkPlace(draw.randbytes(1) * 32, 16, 100, 200, CODEC_ZSTD, draw.randrange(200)))
        for _ in range(count)
    ]


def test_chunks_by_store(home: Path) -> None:
    known = Knowledge.open(home)
    places = chunk_places(500)
    known.chunks(STORE).put_many(places)
    found = known.chunks(STORE).get_many([key for key, _ in places[:400]] + [b"x" * 32])
    assert found == dict(places[:400])
    assert known.chunks("cd" * 16).get_many([places[0][0]]) == {}
    forget(home)
    assert Knowledge.open(home).chunks(STORE).get_many([places[0][0]]) == dict(places[:1])


def test_one_object_a_path(home: Path) -> None:
    assert Knowledge.open(home) is Knowledge.open(home)


def test_records_age_and_are_pruned_to_a_budget(home: Path) -> None:
    now = [1_000 * TOUCH_AFTER_NS]
    table = AgedTable(Knowledge.open(home), "steps", clock_ns=lambda: now[0])
    for number in range(10):
        now[0] += 1
        table.put(b"%d" % number, b"record", cost=94)
    assert table.total_cost() == 1000
    assert table.prune(1000) == []
    now[0] += 2 * TOUCH_AFTER_NS
    table.touch([b"0", b"missing"])
    assert table.prune(550, keep=[b"2"]) == [(b"%d" % number, b"record") for number in (1, 3, 4, 5, 6)]
    assert dict(table.items()) == {b"%d" % number: b"record" for number in (0, 2, 7, 8, 9)}
    assert table.get(b"0") == b"record"
    assert table.get(b"1") is None
    table.delete([b"0"])
    assert table.get_many([b"0", b"2"]) == {b"2": b"record"}
    table.delete([b"2", b"7", b"8", b"9"])
    assert table.total_cost() == 0


def test_touch_writes_only_what_is_old(home: Path) -> None:
    now = [TOUCH_AFTER_NS]
    known = Knowledge.open(home)
    table = AgedTable(known, "files", clock_ns=lambda: now[0])
    table.put(b"k", b"v")
    before = known.items("files")
    now[0] += TOUCH_AFTER_NS
    table.touch([b"k"])
    assert known.items("files") == before
    now[0] += 1
    table.touch([b"k"])
    assert known.items("files") != before


@pytest.mark.parametrize("key", [b"", b"x" * 512])
def test_impossible_keys_are_the_callers_mistake(home: Path, key: bytes) -> None:
    known = Knowledge.open(home)
    known.put_many("files", [(b"kept", b"v")])
    for call in (lambda: known.get_many("files", [key]), lambda: known.put_many("files", [(key, b"")]),
                 lambda: known.delete_many("files", [key])):  # fmt: skip
        with pytest.raises(ValueError, match="key"):
            call()
    assert known.get_many("files", [b"kept"]) == {b"kept": b"v"}


def test_the_map_grows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_MAP_BYTES", 128 << 10)
    known = Knowledge.open(home)
    for number in range(20):
        known.put_many("files", [(b"%d-%d" % (number, row), bytes(1000)) for row in range(100)])
    assert len(known.items("files")) == 2000
    monkeypatch.setattr(module, "MAX_MAP_BYTES", 1 << 20)
    known.put_many("files", [(b"x%d" % row, bytes(1000)) for row in range(20_000)])
    assert len(known.items("files")) == 2000


def test_deleted_while_open(home: Path) -> None:
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    shutil.rmtree(home / FOLDER)
    assert known.get_many("files", [b"k"]) == {}
    known.put_many("files", [(b"k", b"new")])
    assert known.get_many("files", [b"k"]) == {b"k": b"new"}
    forget(home)
    assert Knowledge.open(home).get_many("files", [b"k"]) == {b"k": b"new"}


def test_deleted_with_the_whole_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    shutil.rmtree(home)
    known.put_many("files", [(b"k", b"w")])
    assert known.get_many("files", [b"k"]) == {b"k": b"w"}
    forget(home)


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    draw = random.Random(how)
    match how:
        case "emptied":
            data = b""
        case "cut":
            data = data[: len(data) // 2]
        case "cut-in-header":
            data = data[:100]
        case "overwritten":
            data = draw.randbytes(len(data))
        case "other-file":
            data = b"SQLite format 3\0" * 1000
        case "pages":
            # Every page but the first two, which say where the root is.
            data = data[:8192] + draw.randbytes(len(data) - 8192)
        case "values":
            data = data.replace(b"value-", b"VALUE-")
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)


DAMAGES = ["emptied", "cut", "cut-in-header", "overwritten", "other-file", "pages", "values"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("while_open", [True, False])
def test_damaged_knowledge_is_made_anew(
    home: Path, how: str, while_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    known = Knowledge.open(home)
    rows = [(b"key-%d" % number, b"value-%d" % number) for number in range(5000)]
    known.put_many("files", rows)
    if not while_open:
        forget(home)
    spoil(home / FOLDER / "data.mdb", how)
    caplog.set_level(logging.WARNING)
    known = Knowledge.open(home)
    assert known.get_many("files", [key for key, _ in rows]) == {}
    if how != "emptied":
        assert "damaged" in caplog.text
    known.put_many("files", rows[:10])
    assert known.get_many("files", [key for key, _ in rows]) == dict(rows[:10])


def test_a_file_in_the_folders_place_stops_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / FOLDER).write_bytes(b"in the way")
    caplog.set_level(logging.WARNING)
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    assert known.get_many("files", [b"k"]) in ({}, {b"k": b"v"})
    assert "knowledge" in caplog.text


@pytest.mark.privileged
def test_full_and_read_only_disks_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", home], check=True)
    try:
        known = Knowledge.open(home)
        known.put_many("files", [(b"k", b"v")])
        known.put_many("files", [(b"big-%d" % number, os.urandom(10_000)) for number in range(100)])
        assert "cannot be used" in caplog.text
        assert known.get_many("files", [b"k", b"big-1"]) == {b"k": b"v"}
        known.put_many("files", [(b"j", b"w")])
        assert known.get_many("files", [b"j"]) == {b"j": b"w"}
        forget(home)
        subprocess.run(["mount", "-o", "remount,ro", home], check=True)
        known = Knowledge.open(home)
        known.put_many("files", [(b"i", b"w")])
        assert known.get_many("files", [b"i"]) == {}
    finally:
        forget(home)
        subprocess.run(["umount", home], check=True)


@pytest.mark.privileged
def test_a_disk_full_before_the_start_stops_nothing(tmp_path: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", home], check=True)
    try:
        with open(home / "fill", "wb") as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
        code = f"""
from pathlib import Path
from layerkit.store.knowledge import Knowledge
known = Knowledge.open(Path({str(home)!r}))
known.put_many("files", [(b"k", b"v")])
assert known.get_many("files", [b"k"]) == {{}}
with known.view("files") as find:
    assert find(b"k") is None
"""
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_view_survives_growth(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_MAP_BYTES", 1 << 20)
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    with known.view("files") as find, known.view("none") as find_none:
        assert (find(b"k"), find_none(b"k")) == (b"v", None)
        known.put_many("big", [(b"%d" % number, os.urandom(10_000)) for number in range(500)])
        assert find(b"k") == b"v"
        known.put_many("none", [(b"k", b"w")])
        known.put_many("big", [(b"x%d" % number, os.urandom(10_000)) for number in range(500)])
        assert (find(b"k"), find_none(b"k")) == (b"v", b"w")
    assert len(known.items("big")) == 1000


def test_a_view_survives_writes_of_others(home: Path) -> None:
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    with known.view("files") as find:
        assert find(b"k") == b"v"
        os.utime(home / FOLDER / "data.mdb")  # as between the commit of another process and its stamp
        assert known.get_many("files", [b"k"]) == {b"k": b"v"}
        assert find(b"k") == b"v"
        shutil.rmtree(home / FOLDER)
        assert known.get_many("files", [b"k"]) == {}
        assert find(b"k") is None


def test_threads_share_it(home: Path) -> None:
    known = Knowledge.open(home)

    def work(number: int) -> int:
        for row in range(10):
            known.put_many("files", [(b"%d-%d" % (number, row), b"v")])
        return len(known.get_many("files", [b"%d-%d" % (number, row) for row in range(10)]))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [10] * 8


CHILD = """
import sys
from pathlib import Path
from layerkit.store.knowledge import Knowledge
known = Knowledge.open(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    known.put_many("files", [(b"%s-%d" % (sys.argv[2].encode(), number), b"v" * 100)])
print(len(known.items("files")), flush=True)
"""


def test_processes_share_it(home: Path) -> None:
    known = Knowledge.open(home)
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, home, str(number), "40"], stdout=subprocess.PIPE)
        for number in range(3)
    ]
    for row in range(40):
        known.put_many("files", [(b"parent-%d" % row, b"v")])
    assert all(child.wait() == 0 for child in children)
    assert len(known.items("files")) == 160


def test_killed_writers_leave_it_sound(home: Path) -> None:
    draw = random.Random(7)
    for trial in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD.replace("print", "pass;print"), home, str(trial), "100000"]
        )  # fmt: skip
        threading.Event().wait(0.5 + draw.random() * 0.3)
        child.kill()
        child.wait()
    known = Knowledge.open(home)
    before = known.items("files")
    assert before
    assert all(value == b"v" * 100 for _, value in before)
    known.put_many("files", [(b"k", b"v")])
    assert len(known.items("files")) == len(before) + 1


def test_it_may_be_used_on_both_sides_of_a_fork(home: Path) -> None:
    known = Knowledge.open(home)
    known.put_many("files", [(b"k", b"v")])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            known.put_many("files", [(b"child", b"v")])
            status = 0 if len(Knowledge.open(home).items("files")) == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(known.items("files")) == 2
    known.put_many("files", [(b"parent", b"v")])
    assert len(known.items("files")) == 3


def test_looking_up_many_is_quick(home: Path) -> None:
    import time

    chunks = Knowledge.open(home).chunks(STORE)
    places = chunk_places(50_000)
    chunks.put_many(places)
    began = time.process_time()
    assert len(chunks.get_many([key for key, _ in places])) == 50_000
    assert time.process_time() - began < 1.5
