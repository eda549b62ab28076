"""The FUSE server: `/<layer>/data`, `/<layer>/image` (flat view) and `/<layer>/image-old`, in a process of its own.

Started by hostd (`python -m layerkit.fuse.fuse_server`) in a session and cgroup of its own and outlives it: its death
is final for the mounts that stand on it. It keeps no list of layers; `fuse.served` tells it when a name is looked up.
One thread, trio.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence

import pyfuse3
import trio

from layerkit import settings
from layerkit.errors import LayerkitError
from layerkit.fuse.asker import HostAsker
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.served import read_served
from layerkit.fuse.served_layer import ServedLayer
from layerkit.fuse.starting import detach, report_ready, set_up_logging, start_hostd, take_ready_fd

log = logging.getLogger("layerkit.fuse")

MAX_TASKS = 1000
"""Requests in work at once: far more than one stuck store can hold, so that others are served."""

FILES = (b"data", b"image", b"image-old")
_STRIDE = 16
_FOREVER_S = 1e6
_EXTRA_WAIT_S = 15.0
"""Added to the fetch deadline for a hostd that has to be started first."""


class LayerFiles(pyfuse3.Operations):
    """The file system. Inode numbers: 1 the root, 16 n the folder of the n-th layer, the next three its files."""

    def __init__(self, paths: HostPaths, asker: HostAsker) -> None:
        super().__init__()
        self._paths = paths
        self._asker = asker
        self._layers: dict[int, ServedLayer] = {}
        self._numbers: dict[str, int] = {}
        self._lookups: dict[int, int] = {}
        self._next = 1

    @property
    def is_used(self) -> bool:
        """Whether any file is open."""
        return any(layer.opens for layer in self._layers.values())

    def _number(self, name: bytes) -> int:
        try:
            record = read_served(self._paths.served, os.fsdecode(name))
        except (OSError, LayerkitError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                log.error("%r: %s", name, error)
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        number = self._numbers.get(record.digest)
        if number is None:
            number = self._numbers[record.digest] = self._next
            self._next += 1
            self._layers[number] = ServedLayer(record, self._asker.ask)
        elif not self._layers[number].opens:
            self._layers[number].record = record
        return number

    def _split(self, inode: int) -> tuple[int, int]:
        number, file = divmod(inode, _STRIDE)
        if number not in self._layers:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return number, file

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode)
        entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o500)
        if inode != pyfuse3.ROOT_INODE:
            number, file = self._split(inode)
            record = self._layers[number].record
            if file:
                entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | 0o400)
                entry.st_size = record.data_size + (record.mapped_size if file > 1 else 0)
                entry.st_blocks = entry.st_size // 512
        entry.attr_timeout = _FOREVER_S
        # Names are asked for again: a layer may be served anew from another folder.
        entry.entry_timeout = 0.0
        return entry

    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        """Attributes; sizes never change."""
        return self._attributes(inode)

    async def lookup(self, parent_inode: int, name: bytes, ctx: object = None) -> pyfuse3.EntryAttributes:
        """A layer's folder, or one of its files."""
        if parent_inode == pyfuse3.ROOT_INODE:
            inode = self._number(name) * _STRIDE
        else:
            number, file = self._split(parent_inode)
            if file or name not in FILES:
                raise pyfuse3.FUSEError(errno.ENOENT)
            inode = number * _STRIDE + 1 + FILES.index(name)
        number = inode // _STRIDE
        self._lookups[number] = self._lookups.get(number, 0) + 1
        return self._attributes(inode)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Drop layers that the kernel knows no more."""
        for inode, lookups in inode_list:
            number = inode // _STRIDE
            if number not in self._layers:
                continue
            self._lookups[number] -= lookups
            if self._lookups[number] <= 0 and not self._layers[number].opens:
                layer = self._layers.pop(number)
                del self._lookups[number], self._numbers[layer.record.digest]

    async def opendir(self, inode: int, ctx: object) -> pyfuse3.FileHandleT:
        """Folders need no state."""
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """A layer's folder lists its files; the root lists what is served."""
        is_root = fh == pyfuse3.ROOT_INODE
        names = sorted(os.listdir(os.fsencode(self._paths.served))) if is_root else list(FILES)
        for index, name in enumerate(names):
            if index >= start_id and not name.startswith(b".tmp-"):
                attributes = await self.lookup(fh, name)
                if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), attributes, index + 1):
                    await self.forget([(attributes.st_ino, 1)])
                    break

    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        """Open a file; the first one opens the layer's own files."""
        number, file = self._split(inode)
        if not file:
            raise pyfuse3.FUSEError(errno.EISDIR)
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise pyfuse3.FUSEError(errno.EROFS)
        layer = self._layers[number]
        if not layer.opens:
            try:
                layer.attach()
            except (LayerkitError, OSError) as error:
                log.error("%s cannot be opened: %s", layer.record.digest, error)
                raise pyfuse3.FUSEError(errno.EIO) from error
        layer.opens += 1
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """All that was asked for up to the file's end, or EIO."""
        number, file = self._split(fh)
        layer = self._layers[number]
        try:
            if file == 1:
                return await layer.read_data(off, size)
            return await layer.read_image(off, size, old=file == 3)
        except (LayerkitError, OSError) as error:
            log.error("%s: read of %d bytes at %d: %s", layer.record.digest, size, off, error)
            raise pyfuse3.FUSEError(errno.EIO) from error

    async def release(self, fh: int) -> None:
        """Close a file; the last one closes the layer's own files."""
        layer = self._layers[fh // _STRIDE]
        layer.opens -= 1
        if not layer.opens:
            layer.detach()

    async def statfs(self, ctx: object) -> pyfuse3.StatvfsData:
        """Nothing to tell, but df asks."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_namemax = 255
        return data


async def _stop_on_signal(files: LayerFiles) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            if files.is_used:
                log.error("SIGTERM ignored: mounts read from this process")
                continue
            pyfuse3.terminate()
            return


async def _serve(asker: HostAsker, files: LayerFiles, ready_fd: int | None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.run)
        nursery.start_soon(_stop_on_signal, files)
        report_ready(ready_fd, {"pid": os.getpid()})
        await pyfuse3.main(min_tasks=1, max_tasks=MAX_TASKS)
        nursery.cancel_scope.cancel()


def run_fuse_server(ready_fd: int | None = None) -> None:
    """Mount at `<run>/fuse` and serve until that is unmounted."""
    paths = HostPaths.from_settings()
    set_up_logging(paths.log.with_name("fuse.log"))
    wait_s = settings.fetch_deadline_s() + _EXTRA_WAIT_S
    asker = HostAsker(paths, wait_s=wait_s, revive=lambda: start_hostd(paths))
    files = LayerFiles(paths, asker)
    # No max_read: pyfuse3 would announce it to the kernel without telling libfuse, and reads would fail.
    pyfuse3.init(files, str(paths.fuse_mount), {"default_permissions", "fsname=layerkit", "ro", "nosuid", "nodev"})
    unmount = False
    try:
        trio.run(_serve, asker, files, ready_fd)
        unmount = True
    finally:
        pyfuse3.close(unmount=unmount)
        log.info("the FUSE server ends")


if __name__ == "__main__":
    inherited = take_ready_fd(sys.argv)
    detach("fuse")
    run_fuse_server(inherited)
