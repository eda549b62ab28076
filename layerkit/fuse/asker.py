"""How a serving process asks hostd for absent ranges, and waits for the next hostd when one is gone.

Imported by `fuse.fuse_server` only; lives in its one trio thread.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from itertools import count

import trio

from layerkit._util.unix_sockets import socket_address
from layerkit.errors import CorruptError, UnavailableError
from layerkit.fuse.data_file import DataIdentity
from layerkit.fuse.ensure_protocol import PACKET_MAX, EnsureReply, EnsureRequest, pack_hello
from layerkit.fuse.paths import HostPaths

log = logging.getLogger("layerkit.fuse")

RECONNECT_S = 0.05
REVIVE_AFTER_S = 1.0
"""Requests wait this long for a hostd before the server starts one itself."""

MOST_WAITING = 4096


class _Waiter:
    def __init__(self, request: EnsureRequest) -> None:
        self.request = request
        self.done = trio.Event()
        self.reply: EnsureReply | None = None


class HostAsker:
    """One connection to hostd; requests survive it.

    Args:
        wait_s: longest wait of a reader, with or without a hostd.
        revive: starts a hostd where none runs; called in a thread.
    """

    def __init__(self, paths: HostPaths, *, wait_s: float, revive: Callable[[], None]) -> None:
        self._paths = paths
        self._wait_s = wait_s
        self._revive = revive
        self._numbers = count(1)
        self._waiting: dict[int, _Waiter] = {}
        self._socket: trio.socket.SocketType | None = None
        self._sending = trio.Lock()

    async def ask(self, layer: str, offset: int, length: int) -> DataIdentity:
        """Return when the range is present; the data file that it is present in.

        Raises:
            UnavailableError: hostd says that it cannot be had, or the wait was too long.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise UnavailableError(f"{MOST_WAITING} requests are waiting already", where=layer)
        waiter = _Waiter(EnsureRequest(next(self._numbers), layer, offset, length))
        self._waiting[waiter.request.id] = waiter
        try:
            with trio.move_on_after(self._wait_s):
                await self._send(waiter.request.pack())
                await waiter.done.wait()
        finally:
            del self._waiting[waiter.request.id]
        if waiter.reply is None:
            raise UnavailableError(f"no answer from hostd within {self._wait_s:g} s", where=layer)
        if waiter.reply.errno:
            raise UnavailableError(f"hostd answers {os.strerror(waiter.reply.errno)}; its log says why", where=layer)
        return waiter.reply.identity

    async def _send(self, packet: bytes) -> None:
        """Send if there is a connection; the next one sends whatever still waits."""
        if (connection := self._socket) is not None:
            try:
                async with self._sending:
                    await connection.send(packet)
            except OSError as error:
                log.info("hostd is gone: %s", error)

    async def run(self) -> None:
        """Keep the connection for ever."""
        away_since = trio.current_time()
        while True:
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                try:
                    with socket_address(self._paths.ensure_socket) as address:
                        await connection.connect(address)
                except OSError:
                    if self._waiting and trio.current_time() - away_since > REVIVE_AFTER_S:
                        await self._start_hostd()
                        away_since = trio.current_time()
                    await trio.sleep(RECONNECT_S)
                    continue
                await self._serve(connection)
            away_since = trio.current_time()

    async def _start_hostd(self) -> None:
        try:
            await trio.to_thread.run_sync(self._revive)
        except Exception as error:  # noqa: BLE001 - the readers' own deadline decides, not this attempt
            log.error("hostd cannot be started: %s", error)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        try:
            await connection.send(pack_hello(os.getpid()))
            asked = [waiter.request for waiter in self._waiting.values()]
            self._socket = connection
            for request in asked:
                async with self._sending:
                    await connection.send(request.pack())
            while packet := await connection.recv(PACKET_MAX):
                reply = EnsureReply.unpack(packet)
                if waiter := self._waiting.get(reply.id):
                    waiter.reply = reply
                    waiter.done.set()
        except (OSError, CorruptError) as error:
            log.info("hostd is gone: %s", error)
        finally:
            self._socket = None
