"""A compressed file as the stream of its plain bytes; every way in which that fails is one type. `build` only.

Forward only, bounded memory, one thread. Members in a row (pigz, pixz, several zstd frames) are one stream.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from layerkit._util.files import translate_os_error
from layerkit.core.zstd import FrameReader
from layerkit.errors import ArchiveError, CorruptError

_MAGICS: tuple[tuple[bytes, str, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", "gzip", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", "bzip2", bz2.BZ2File),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", "zstd", FrameReader),
)
_SKIPPABLE = (b"\x50\x2a\x4d\x18", 4)  # pzstd begins with a skippable frame: 0x184D2A50 to 0x184D2A5F
READ_SIZE = 1 << 18


class PlainStream:
    """The plain bytes of a file.

    Raises:
        ArchiveError: from every method, when the compression is damaged or ends too early.
        LayerkitError: when the file cannot be read.
    """

    def __init__(self, file: Any, name: str, where: str) -> None:
        self._file = file
        self._name = name
        self._where = where

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end."""
        parts = []
        while size:
            part = self._read_some(size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Read what is left of a compressed file: only at its end do its checksums speak."""
        if self._name:
            while self._read_some(READ_SIZE):
                pass

    def _read_some(self, size: int) -> bytes:
        try:
            data: bytes = self._file.read(min(size, READ_SIZE))
        except EOFError as error:
            raise ArchiveError(f"truncated: the {self._name} data has no end", where=self._where) from error
        except (lzma.LZMAError, zlib.error, CorruptError, ValueError) as error:
            raise self._damaged(error) from error
        except OSError as error:
            # gzip and bzip2 complain with an OSError that has no number.
            raise self._damaged(error) if error.errno is None else translate_os_error(error, self._where) from error
        return data

    def _damaged(self, error: Exception) -> ArchiveError:
        return ArchiveError(f"damaged {self._name} data: {error}", where=self._where)


@contextmanager
def open_plain(path: Path) -> Iterator[PlainStream]:
    """The plain bytes of a file that may be compressed with gzip, bzip2, xz or zstd, as its first bytes say.

    Raises:
        LayerkitError: it cannot be opened or read.
        ArchiveError: see `PlainStream`.
    """
    try:
        raw = open(path, "rb", buffering=READ_SIZE)  # noqa: SIM115  (closed below; its errors are ours, the body's not)
    except OSError as error:
        raise translate_os_error(error, str(path)) from error
    with raw:
        name, opener = _format_of(raw)
        yield PlainStream(opener(raw) if opener else raw, name, str(path))


def _format_of(raw: Any) -> tuple[str, Callable[[IO[bytes]], Any] | None]:
    head = raw.peek(8)[:8]
    if head[1:4] == _SKIPPABLE[0][1:] and head[0] >> _SKIPPABLE[1] == 5:
        return "zstd", FrameReader
    return next(((name, opener) for magic, name, opener in _MAGICS if head.startswith(magic)), ("", None))
