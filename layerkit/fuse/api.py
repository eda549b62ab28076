"""hostd's HTTP API over its Unix socket: JSON in, JSON out (docs/formats/hostd-api.md); imported by hostd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from layerkit.errors import (
    ConflictError,
    DeniedError,
    InputError,
    LayerkitError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)
from layerkit.fuse import requests
from layerkit.fuse.host import Host
from layerkit.fuse.metrics import HostCollector, render_metrics
from layerkit.fuse.status import describe, gauges

log = logging.getLogger("layerkit.host")

MAX_BODY_BYTES = 4 << 20
_STATUS: tuple[tuple[type[LayerkitError], int], ...] = (
    (InputError, 400),
    (MissingError, 404),
    (DeniedError, 403),
    (ConflictError, 409),
    (UnsupportedError, 501),
    (UnavailableError, 503),
    (LayerkitError, 500),
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _error(error: LayerkitError, status: int) -> web.Response:
    body = {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}
    return web.json_response({"error": body}, status=status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A typed error becomes its JSON; anything else is logged with its traceback."""
    try:
        return await handler(request)
    except LayerkitError as error:
        status = next(code for kind, code in _STATUS if isinstance(error, kind))
        log.info("%s %s: %s", request.method, request.path, error)
        return _error(error, status)
    except web.HTTPException:
        raise
    except Exception as error:
        log.exception("%s %s", request.method, request.path)
        return _error(LayerkitError(f"{type(error).__name__}: {error}", hint="see hostd.log"), 500)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        value = await request.json()
    except ValueError as error:
        raise InputError("the request's body is no JSON") from error
    if not isinstance(value, dict):
        raise InputError("the request's body is no JSON object")
    return value


class Api:
    """The handlers.

    Args:
        stop: ends hostd.
    """

    def __init__(self, host: Host, stop: Callable[[], None]) -> None:
        self._host = host
        self._stop = stop

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/mount-layers", self._mount_layers),
                web.post("/v1/release", self._release),
                web.post("/v1/overlay", self._overlay),
                web.post("/v1/umount", self._umount),
                web.post("/v1/umount-all", self._umount_all),
                web.post("/v1/prune", self._prune),
                web.post("/v1/check-cache", self._check_cache),
                web.post("/v1/shutdown", self._shutdown),
                web.get("/v1/status", self._status),
                web.get("/v1/cache", self._cache),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    async def _mount_layers(self, request: web.Request) -> web.Response:
        wanted = requests.MountRequest.parse(await _body(request))
        return web.json_response(await self._host.mount_layers(wanted))

    async def _release(self, request: web.Request) -> web.Response:
        self._host.release(requests.parse_lease(await _body(request)))
        return web.json_response({})

    async def _overlay(self, request: web.Request) -> web.Response:
        record = await self._host.overlay(requests.OverlayRequest.parse(await _body(request)))
        return web.json_response(record.to_json())

    async def _umount(self, request: web.Request) -> web.Response:
        record = await self._host.umount(requests.parse_target(await _body(request)))
        return web.json_response(record.to_json())

    async def _umount_all(self, request: web.Request) -> web.Response:
        return web.json_response(await self._host.umount_all())

    async def _prune(self, request: web.Request) -> web.Response:
        budget = requests.parse_budget(await _body(request), self._host.cache.budget_bytes)
        return web.json_response(await self._host.prune(budget))

    async def _check_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"layers": [found._asdict() for found in await self._host.check_cache()]})

    async def _shutdown(self, request: web.Request) -> web.Response:
        done = await self._host.umount_all()
        # After the answer has gone out.
        asyncio.get_running_loop().call_later(0.05, self._stop)
        return web.json_response(done)

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(await describe(self._host))

    async def _cache(self, request: web.Request) -> web.Response:
        return web.json_response(await self._host.cache.describe())

    async def _metrics(self, request: web.Request) -> web.Response:
        collector = HostCollector(self._host.counts, lambda: gauges(self._host))
        return web.Response(body=render_metrics(collector), content_type="text/plain", charset="utf-8")
