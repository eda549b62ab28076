"""How the command line and the runtime talk to hostd, and start it; standard library only, and little of that.

`layerkit run` must begin within milliseconds: no http.client (20 ms of imports), no asyncio, no subprocess unless a
daemon has to be started. A HostClient holds one connection: one thread at a time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerkit import errors, settings
from layerkit._util.processes import Owner
from layerkit._util.unix_sockets import socket_address
from layerkit.errors import HostError, LayerkitError
from layerkit.fuse.paths import HostPaths

__all__ = ["HostClient", "MountedLayer", "MountedStack", "Owner"]

TIMEOUT_S = 3600.0
"""hostd has deadlines of its own; a mount that brings in a whole layer takes as long as that takes."""

LOOK_TIMEOUT_S = 30.0
"""For questions that hostd answers from memory: a daemon that hangs must not hold whoever asks how it is."""

_HEAD_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class MountedLayer:
    """A mounted layer: its full reference ('' when it was asked for by digest), mount point, and config as JSON."""

    ref: str
    digest: str
    path: Path
    config: dict[str, Any]
    frontend: str = ""


@dataclass(frozen=True, slots=True)
class MountedStack:
    """Layers held by a lease, in the order they were asked for."""

    lease: str
    layers: list[MountedLayer]


def _error_classes(root: type[LayerkitError] = LayerkitError) -> dict[str, type[LayerkitError]]:
    classes = {root.code: root}
    for kind in root.__subclasses__():
        classes.update(_error_classes(kind))
    return classes


def _raise(body: dict[str, Any]) -> None:
    error = body.get("error")
    if not isinstance(error, dict):
        raise HostError("hostd answered an error without saying which")
    code, message = str(error.get("code")), str(error.get("message"))
    where, hint = str(error.get("where", "")), str(error.get("hint", ""))
    kind = _error_classes().get(code, HostError)
    if kind is LayerkitError or issubclass(kind, errors.SandboxError):
        kind = HostError
    raise kind(message, where=where, hint=hint)


def _absolute_store(url: str) -> str:
    """hostd's cwd is another than the caller's."""
    return url if "://" in url else os.path.abspath(url)


class HostClient:
    """A connection to this instance's hostd; use it as a context manager or `close` it."""

    def __init__(self, connection: socket.socket, paths: HostPaths, *, start: bool) -> None:
        self._connection = connection
        self._paths = paths
        self._start = start
        self._is_proven = False

    @classmethod
    def connect(cls, *, start: bool = True) -> HostClient:
        """Connect, and start hostd first where none runs and `start` allows it.

        Raises:
            HostError: no hostd runs, or it cannot be started.
        """
        paths = HostPaths.from_settings()
        return cls(_connect_or_start(paths, start=start), paths, start=start)

    def __enter__(self) -> HostClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; leases stay."""
        self._connection.close()

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """One request of docs/formats/hostd-api.md.

        Args:
            timeout_s: longest silence of hostd; after it the connection is of no more use.

        Raises:
            LayerkitError: hostd's own, by its type.
            HostError: the connection broke.
        """
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: hostd\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        try:
            self._connection.settimeout(timeout_s)
            status, answer = self._exchange(request)
        except TimeoutError as error:
            self._connection.close()
            raise HostError(f"hostd does not answer within {timeout_s:g} s", hint=f"see {self._paths.log}") from error
        except OSError as error:
            raise HostError(f"the connection to hostd broke: {error}", hint=f"see {self._paths.log}") from error
        value = json.loads(answer)
        if not isinstance(value, dict):
            raise HostError("hostd's answer is no JSON object")
        if status >= 400:
            _raise(value)
        return value

    def _exchange(self, request: bytes) -> tuple[int, bytes]:
        try:
            self._connection.sendall(request)
            answer = self._receive()
        except ConnectionError:
            if self._is_proven:
                raise
            # A hostd that is just dying still accepts connections; the next one answers.
            self._connection.close()
            self._connection = _connect_or_start(self._paths, start=self._start)
            self._connection.sendall(request)
            answer = self._receive()
        self._is_proven = True
        return answer

    def _receive(self) -> tuple[int, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            if len(data) > _HEAD_MAX:
                raise HostError("hostd's answer has no end of its head")
            data += self._read_some()
        head, _, body = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = [body]
        left = int(fields.get("content-length", "0")) - len(body)
        while left > 0:
            part = self._read_some()
            parts.append(part)
            left -= len(part)
        return int(status_line.split(" ")[1]), b"".join(parts)

    def _read_some(self) -> bytes:
        part = self._connection.recv(1 << 16)
        if not part:
            raise ConnectionResetError("hostd ended before it answered")
        return part

    def mount_layers(
        self,
        layers: Sequence[str],
        *,
        store: str | None = None,
        owner: Owner | None = None,
        prefetch: str = "all",
        frontend: str = "auto",
        parents: bool = False,
    ) -> MountedStack:
        """Mount layers, each once a host.

        Args:
            layers: references or digests.
            store: URL; the settings' store where none is given.
            owner: the process with which the lease ends; this one where none is given.
            prefetch: `all` or `none`.
            frontend: `auto`, `local` or `fuse`.
            parents: whether a stack that names no base gets the layers that its workspaces are differences against.

        Raises:
            LayerkitError: a layer does not exist or cannot be had or mounted; nothing is held then.
        """
        holder = owner or Owner.current()
        body = {
            "layers": list(layers), "store": _absolute_store(store or settings.store_url()), "prefetch": prefetch,
            "owner": {"pid": holder.pid, "start_time": holder.start_time}, "frontend": frontend,
            "parents": parents,
        }  # fmt: skip
        answer = self.call("POST", "/v1/mount-layers", body)
        mounted = [
            MountedLayer(entry["ref"], entry["digest"], Path(entry["path"]), entry["config"], entry["frontend"])
            for entry in answer["layers"]
        ]
        return MountedStack(answer["lease"], mounted)

    def release(self, lease: str) -> None:
        """End a lease; twice is once. Another hostd than the one that gave it knows it too.

        Where none runs nothing is raised: the lease ends with its process, and what was done under it is done.
        """
        try:
            self._release(lease)
        except HostError:
            self._connection.close()
            connection = _connect(self._paths.api_socket)
            if connection is not None:
                self._connection = connection
                self._release(lease)

    def _release(self, lease: str) -> None:
        self.call("POST", "/v1/release", {"lease": lease}, timeout_s=LOOK_TIMEOUT_S)

    def overlay(
        self,
        lowers: Sequence[str | Path],
        target: Path,
        *,
        lease: str,
        rw: bool = False,
        upper: Path | None = None,
        work: Path | None = None,
        suid: bool = False,
    ) -> dict[str, Any]:
        """Mount an overlay at an existing folder; the lease then ends with that mount instead of with its process.

        Args:
            lowers: topmost first.
            rw: writable, into `upper` and `work`, or where none are given into folders that go with the mount.
            suid: with setuid programs and devices in force.

        Raises:
            LayerkitError: as hostd answers.
        """
        body = {
            "lowers": [str(lower) for lower in lowers], "target": os.path.abspath(target), "lease": lease, "rw": rw,
            "upper": os.path.abspath(upper) if upper else "", "work": os.path.abspath(work) if work else "",
            "suid": suid,
        }  # fmt: skip
        return self.call("POST", "/v1/overlay", body)

    def umount(self, target: Path) -> dict[str, Any]:
        """Undo an overlay and its lease."""
        return self.call("POST", "/v1/umount", {"target": os.path.abspath(target)})

    def umount_all(self) -> dict[str, Any]:
        """Undo every mount of this instance."""
        return self.call("POST", "/v1/umount-all", {})

    def status(self) -> dict[str, Any]:
        """What is mounted, by whom, from where; recent errors."""
        return self.call("GET", "/v1/status", timeout_s=LOOK_TIMEOUT_S)

    def cache(self) -> dict[str, Any]:
        """What the host's data files take."""
        return self.call("GET", "/v1/cache", timeout_s=LOOK_TIMEOUT_S)

    def prune(self, *, budget_bytes: int | None = None) -> dict[str, Any]:
        """Evict layers that are not in use until the cache fits the budget (the settings' where none is given)."""
        return self.call("POST", "/v1/prune", {} if budget_bytes is None else {"budget_bytes": budget_bytes})

    def check_cache(self) -> list[dict[str, Any]]:
        """Hash all that is cached; for each layer `digest`, `checked`, and the `damaged` chunks, which are dropped."""
        layers: list[dict[str, Any]] = self.call("POST", "/v1/check-cache", {})["layers"]
        return layers

    def shutdown(self) -> dict[str, Any]:
        """Undo every mount and end hostd; returns when its socket is gone."""
        answer = self.call("POST", "/v1/shutdown", {})
        self._connection.settimeout(10.0)
        try:
            while self._connection.recv(4096):
                pass
        except OSError as error:
            raise HostError("hostd does not end", hint=f"see {self._paths.log}") from error
        return answer


def _connect_or_start(paths: HostPaths, *, start: bool) -> socket.socket:
    connection = _connect(paths.api_socket)
    if connection is None and start:
        # Here and not above: starting needs subprocess and logging, a warm call does not.
        from layerkit.fuse.starting import start_hostd

        start_hostd(paths)
        connection = _connect(paths.api_socket)
    if connection is None:
        raise HostError("hostd does not run", where=str(paths.run), hint="`layerkit hostd` starts it")
    return connection


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_S)
    try:
        with socket_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection
