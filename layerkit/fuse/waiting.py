"""Waiting in an event loop for what worker threads do; imported by hostd's asynchronous parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from layerkit.errors import UnavailableError

T = TypeVar("T")


async def wait_for_all(futures: Sequence[Future[Any]], timeout_s: float) -> bool:
    """Wait until every future is done; False when that took too long. Errors stay in the futures."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    left = len(futures)

    def one_is_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    def from_thread(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(one_is_done)

    for future in futures:
        future.add_done_callback(from_thread)
    if futures:
        try:
            await asyncio.wait_for(done.wait(), timeout_s)
        except TimeoutError:
            return False
    return True


async def result_of(future: Future[T], timeout_s: float, where: str) -> T:
    """The result of a call to a store.

    Raises:
        UnavailableError: not in time; the call itself goes on.
    """
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
    except TimeoutError as error:
        raise UnavailableError(f"the store did not answer within {timeout_s:g} s", where=where) from error
