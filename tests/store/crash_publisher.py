"""Publishes samples and dies on the way, for test_crashes.py; run as a program of its own because it forks.

usage: crash_publisher.py FOLDER          every step: one line of JSON for each
       crash_publisher.py FOLDER SEED REF publish one sample, again and again until killed
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from store_samples import make_sample, make_store, publish_sample, stored_chunks

from layerkit.errors import MissingError
from layerkit.ids import Platform, Ref
from layerkit.store.verify import verify_store

SYSTEM_CALLS = ("open", "write", "fsync", "link", "rename", "unlink", "mkdir")
REF = Ref.parse("base/x:1")


def die_at(step: int) -> Callable[[], int]:
    """Kill this process before its step-th system call that changes a file; returns a counter of the calls."""
    lock = threading.Lock()
    done = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal done
            with lock:
                done += 1
                if done == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in SYSTEM_CALLS:
        setattr(os, name, counted(getattr(os, name)))
    return lambda: done


def in_child(work: Callable[[], object]) -> int:
    """Run in a fork, so that this process never has threads; returns the exit code."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(root: Path, *, complete: bool) -> None:
    """No damage; the name leads nowhere or to the right layer."""
    store = make_store(root)
    found = list(verify_store(store.objects, stored_chunks=stored_chunks))
    if found:
        raise AssertionError(found)
    try:
        digest = store.resolve(REF, Platform("linux", "amd64")).digest
    except MissingError:
        if complete:
            raise
        return
    if digest != make_sample(1).digest:
        raise AssertionError(digest)


def every_step(folder: Path) -> None:
    step = 0
    while True:
        step += 1
        root = folder / str(step)

        def publish(root: Path = root, step: int = step) -> None:
            make_store(root)
            die_at(step)
            publish_sample(make_store(root), 1, str(REF))

        died = in_child(publish)
        checked = in_child(lambda root=root: check(root, complete=False))
        again = in_child(lambda root=root: publish_sample(make_store(root), 1, str(REF)))
        complete = in_child(lambda root=root: check(root, complete=True))
        print(json.dumps([died, checked, again, complete]), flush=True)
        if died == 0:
            return


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) == 2:
        every_step(folder)
        return
    store = make_store(folder)
    while True:
        publish_sample(store, int(sys.argv[2]), sys.argv[3])
        print("published", flush=True)


if __name__ == "__main__":
    main()
