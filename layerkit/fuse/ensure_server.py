"""Where serving processes ask for absent ranges: a SOCK_SEQPACKET Unix socket in hostd's event loop.

Imported by hostd. Every request is a task; a connection that ends loses its replies, not its fetches.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable

from layerkit._util.unix_sockets import socket_address
from layerkit.errors import CorruptError, LayerkitError
from layerkit.fuse.data_file import DataIdentity
from layerkit.fuse.ensure_protocol import PACKET_MAX, EnsureReply, EnsureRequest, unpack_hello
from layerkit.fuse.events import Counts, ErrorLog
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.populate import Populator
from layerkit.fuse.waiting import wait_for_all

log = logging.getLogger("layerkit.host")

_NOBODY = DataIdentity(0, 0, 0, 0)
_BACKLOG = 16


class EnsureServer:
    """Answers EnsureRequests.

    Args:
        find_layer: the open layer of a digest, opened if need be.
        deadline_s: after which a reader gets EIO.

    Attributes:
        waiting: requests without an answer; prefetch stands back while there are any.
    """

    def __init__(
        self,
        paths: HostPaths,
        find_layer: Callable[[str], Awaitable[HostLayer]],
        populator: Populator,
        errors: ErrorLog,
        counts: Counts,
        *,
        deadline_s: float,
    ) -> None:
        self._path = paths.ensure_socket
        self._find_layer = find_layer
        self._populator = populator
        self._errors = errors
        self._counts = counts
        self._deadline_s = deadline_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.waiting = 0

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self) -> None:
        """Listen."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.setblocking(False)
        with socket_address(self._path) as address:
            listener.bind(address)
        os.chmod(self._path, 0o600)
        listener.listen(_BACKLOG)
        self._spawn(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                connection, _ = await loop.sock_accept(listener)
                self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection:
            connection.setblocking(False)
            try:
                pid = unpack_hello(await loop.sock_recv(connection, PACKET_MAX))
                log.info("serving process %d is connected", pid)
                while packet := await loop.sock_recv(connection, PACKET_MAX):
                    self._spawn(self._answer(connection, EnsureRequest.unpack(packet)))
            except (CorruptError, OSError) as error:
                log.error("serving process is cut off: %s", error)

    async def _answer(self, connection: socket.socket, request: EnsureRequest) -> None:
        began = time.monotonic()
        self.waiting += 1
        try:
            reply = await self._reply(request)
        finally:
            self.waiting -= 1
        self._counts.add("failed_faults", 1 if reply.errno else 0)
        self._counts.add("faults")
        self._counts.add("fault_seconds", time.monotonic() - began)
        try:
            await asyncio.get_running_loop().sock_sendall(connection, reply.pack())
        except OSError as error:
            log.info("nobody takes the reply: %s", error)

    async def _reply(self, request: EnsureRequest) -> EnsureReply:
        try:
            layer = await self._find_layer(request.layer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader needs an answer
            self._errors.record(error, layer=request.layer)
            return EnsureReply(request.id, errno.EIO, _NOBODY)
        try:
            await self.ensure(layer, request.offset, request.length)
        except LayerkitError:  # recorded where it was raised
            return EnsureReply(request.id, errno.EIO, _NOBODY)
        except Exception as error:  # noqa: BLE001 - as above
            self._errors.record(error, layer=request.layer)
            return EnsureReply(request.id, errno.EIO, _NOBODY)
        self._read_ahead(layer, request)
        return EnsureReply(request.id, 0, layer.data.identity)

    async def ensure(self, layer: HostLayer, offset: int, length: int) -> None:
        """Return when every chunk of the range is present; raises as `Populator.ensure` does."""
        flights = self._populator.start(layer, offset, length)
        left_s = min((flight.seconds_left(self._deadline_s) for flight in flights), default=0.0)
        in_time = await wait_for_all(flights, left_s)
        for flight in flights:
            if flight.done():
                flight.result()
        if not in_time:
            raise self._populator.late(layer, self._deadline_s)

    def _read_ahead(self, layer: HostLayer, request: EnsureRequest) -> None:
        with layer.lock:
            advice = layer.read_ahead.advise(request.offset, request.length)
        if advice is not None:
            try:
                self._populator.start(layer, *advice, urgent=False)
            except LayerkitError as error:
                log.info("no read-ahead: %s", error)

    async def close(self) -> None:
        """Stop; serving processes keep their requests and ask the next hostd."""
        self._path.unlink(missing_ok=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
