"""A layer as the FUSE server serves it: present ranges from the data file, the rest after hostd brought it in.

Imported by `fuse.fuse_server` only; lives in its one trio thread. Reads are full or an error: a short read would be
filled with zeros by some kernels.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from layerkit.core.erofs_views import old_view
from layerkit.errors import CorruptError, HostError
from layerkit.fuse.data_file import DataIdentity, identify
from layerkit.fuse.paths import LayerPaths
from layerkit.fuse.presence import VolatileMap
from layerkit.fuse.served import ServedRecord
from layerkit.layer.chunk_index import BLOCK_SIZE, ChunkIndex

log = logging.getLogger("layerkit.fuse")

Ask = Callable[[str, int, int], Awaitable[DataIdentity]]
_ATTEMPTS = 4


def read_file_now(fd: int, size: int, offset: int) -> bytes | None:
    """What is in the page cache, if that is all of it; None when a disk would have to be waited for."""
    buffer = bytearray(size)
    with suppress(OSError):
        if os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == size:
            return bytes(buffer)
    return None


def read_file(fd: int, size: int, offset: int) -> bytes:
    """Exactly `size` bytes; OSError(EIO) when the file ends before."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise OSError(errno.EIO, f"file ends at {offset + len(data)}")
        data += more
    return data


class ServedLayer:
    """An open layer: `attach` before the first read, `detach` after the last close.

    Attributes:
        record: what hostd wrote about it.
        opens: open files of it.
    """

    def __init__(self, record: ServedRecord, ask: Ask) -> None:
        self.record = record
        self.opens = 0
        self._ask = ask
        self._paths = LayerPaths(Path(record.folder))
        self._meta_fd = -1
        self._data_fd = -1
        self._present: VolatileMap | None = None
        self._index: ChunkIndex | None = None
        self._old_head = b""

    def attach(self) -> None:
        """Open everything that reads need.

        Raises:
            LayerkitError, OSError: the files are not what the record says.
        """
        if self._index is None:
            self._index = ChunkIndex.from_bytes(self._paths.chunk_index.read_bytes())
            self._index.ids = b""  # eight ninths of its memory, which serving does not need
        if self._meta_fd < 0:
            self._meta_fd = os.open(self._paths.meta, os.O_RDONLY | os.O_CLOEXEC)
        self._attach_data()

    def _attach_data(self) -> None:
        fd = os.open(self._paths.data, os.O_RDONLY | os.O_CLOEXEC)
        try:
            present = VolatileMap.open_for_reading(Path(self.record.presence), self.record.digest)
            if identify(fd) != present.identity or present.identity.size != self.record.data_size:
                present.close()
                raise CorruptError("presence map and data file do not belong together", where=self.record.digest)
        except BaseException:
            os.close(fd)
            raise
        self._detach_data()
        self._data_fd, self._present = fd, present

    def _detach_data(self) -> None:
        if self._present is not None:
            self._present.close()
            os.close(self._data_fd)
            self._present = None

    def detach(self) -> None:
        """Close everything; `attach` opens it again."""
        self._detach_data()
        if self._meta_fd >= 0:
            os.close(self._meta_fd)
            self._meta_fd = -1
        self._index = None

    def _is_present(self, offset: int, size: int) -> bool:
        index, present = self._index, self._present
        if index is None or present is None:
            raise HostError("the layer is not open", where=self.record.digest)
        if present.is_complete:
            return True
        first, last = index.range(offset, size)
        if last < first:
            return True
        low = index.stored_number(first)
        high = index.stored_number(last) - (1 if index.is_zero(last) else 0)
        return low > high or present.has_all(low, high)

    async def read_data(self, offset: int, size: int) -> bytes:
        """`size` bytes of the data space, fewer only at its end.

        Raises:
            LayerkitError, OSError: they cannot be had.
        """
        size = max(min(size, self.record.data_size - offset), 0)
        for attempt in range(_ATTEMPTS):
            if self._is_present(offset, size):
                return await self._read(self._data_fd, size, offset)
            identity = await self._ask(self.record.digest, offset, size)
            if attempt or self._present is None or self._present.identity != identity:
                # A new hostd found data file or map gone and began others.
                self._attach_data()
        raise HostError("hostd says present, the presence map says absent", where=self.record.digest)

    async def _read(self, fd: int, size: int, offset: int) -> bytes:
        data = read_file_now(fd, size, offset)
        if data is None:
            # The fd is kept open by a copy: a re-attach may close it while the thread still reads.
            copy = os.dup(fd)
            try:
                data = await trio.to_thread.run_sync(read_file, copy, size, offset)
            finally:
                os.close(copy)
        return data

    async def read_image(self, offset: int, size: int, *, old: bool) -> bytes:
        """`size` bytes of the flat view: metadata, then data.

        Args:
            old: without the device table, for kernels before 6.4.
        """
        head = self._old_meta() if old else b""
        parts = []
        while size > 0 and offset < self.record.mapped_size:
            part = await self._read_head(offset, size, head)
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        if size > 0:
            parts.append(await self.read_data(offset - self.record.mapped_size, size))
        return b"".join(parts)

    async def _read_head(self, offset: int, size: int, head: bytes) -> bytes:
        """From the part before the data: the old view's first bytes, the metadata, or the gap behind it."""
        if offset < len(head):
            return head[offset : offset + size]
        if offset < self.record.meta_size:
            return await self._read(self._meta_fd, min(size, self.record.meta_size - offset), offset)
        return bytes(min(size, self.record.mapped_size - offset))

    def _old_meta(self) -> bytes:
        """What the old view changes: all of it lies in the first block."""
        if not self._old_head:
            meta = read_file(self._meta_fd, self.record.meta_size, 0)
            self._old_head = bytes(old_view(meta)[:BLOCK_SIZE])
        return self._old_head
