"""Standard input through the real agent (row R12)."""

from __future__ import annotations

import os
import threading
import time

import pytest
from agent_harness import ENV, running_agent

LARGE = bytes(range(256)) * (10 << 12)  # 10 MiB


@pytest.mark.parametrize(("size", "rounds"), [(0, 200), (1, 200), (len(LARGE), 8)])
def test_r12_cat_gets_all_and_the_end(size: int, rounds: int) -> None:
    data = LARGE[:size]
    with running_agent() as agent:
        for _ in range(rounds):
            assert agent.exec(["cat"], env=ENV, stdin=data, timeout_s=30).stdout == data


def test_r12_under_load_from_several_threads() -> None:
    failures: list[object] = []
    with running_agent() as agent:

        def loop(size: int) -> None:
            for _ in range(25):
                result = agent.exec(["cat"], env=ENV, stdin=LARGE[:size], timeout_s=60)
                if result.stdout != LARGE[:size]:
                    failures.append((size, len(result.stdout)))

        threads = [threading.Thread(target=loop, args=(size,)) for size in (0, 1, 4096, 65536, 65537, 300_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_input_is_at_its_end_where_none_is_given() -> None:
    with running_agent() as agent:
        assert agent.exec(["cat"], env=ENV, timeout_s=10).stdout == b""


def test_input_from_a_pipe_ends_when_the_writer_does() -> None:
    read_end, write_end = os.pipe()
    with running_agent() as agent:
        running = agent.start(["sh", "-c", "read line; echo got $line; cat"], env=ENV, stdin=read_end, timeout_s=20)

        def write() -> None:
            os.write(write_end, b"one\n")
            time.sleep(0.2)
            os.write(write_end, b"two\n")
            os.close(write_end)

        thread = threading.Thread(target=write)
        thread.start()
        assert running.wait().stdout == b"got one\ntwo\n"
        thread.join()
    os.close(read_end)


def test_input_from_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "input"
    path.write_bytes(LARGE)
    with running_agent() as agent, path.open("rb") as file:
        assert agent.exec(["cat"], env=ENV, stdin=file.fileno()).stdout == LARGE


def test_command_that_does_not_read_its_input() -> None:
    with running_agent() as agent:
        started = time.monotonic()
        assert agent.exec(["true"], env=ENV, stdin=LARGE).exit_code == 0
        assert agent.exec(["sh", "-c", "exec <&-; sleep 0.3; exit 5"], env=ENV, stdin=LARGE).exit_code == 5
        assert agent.exec(["head", "-c", "3"], env=ENV, stdin=LARGE).stdout == LARGE[:3]
        result = agent.exec(["sleep", "0.5"], env=ENV, stdin=LARGE)  # never reads, never closes
        assert (result.exit_code, time.monotonic() - started < 10) == (0, True)


def test_pipe_that_never_ends_does_not_hold_a_command_that_does() -> None:
    read_end, write_end = os.pipe()
    with running_agent() as agent:
        assert agent.exec(["true"], env=ENV, stdin=read_end, timeout_s=20).exit_code == 0
    os.close(read_end)
    os.close(write_end)
