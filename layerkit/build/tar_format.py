"""Tar archives, member by member, forward only: V7, ustar, GNU and PAX with every form of sparse file. `build` only.

tarfile of the standard library is not used: it takes damage for the archive's end, allocates what a header claims and
searches records in quadratic time. Here every header is checked and every size bounded before anything is read.

Sources: POSIX.1-2017 pax; GNU tar's manual, "Basic Tar Format" and "Storing Sparse Files"; star(5) for xstar.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from layerkit.build.pieces import PIECE_SIZE, Piece
from layerkit.build.tar_numbers import read_decimal, read_number, read_records, read_time_ns
from layerkit.build.tar_sparse import Extents, SparseReader
from layerkit.errors import ArchiveError

BLOCK = 512
MAX_RECORDS_BYTES = 8 << 20
MAX_NAME_BYTES = 64 << 10
MAX_SIZE = 1 << 62
MAX_HEADERS = 16
"""Extension headers in a row before a member: two long names, local and global records are four."""

_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
REGULAR, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_LABEL, _DUMPDIR, _OLD_SPARSE = b"V", b"D", b"S"
# POSIX: no data follows these, whatever their size field says.
_WITHOUT_DATA = (LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO)
_KNOWN = (REGULAR, *_WITHOUT_DATA)
XATTR_PREFIXES = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")


class ByteStream(Protocol):
    """Plain bytes: `build.compressed.PlainStream`."""

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end."""
        ...


@dataclass(slots=True)
class TarMember:
    """One member as its headers say; names are bytes and unchecked.

    Attributes:
        number: its place among the members that `TarReader` gives.
        type: one of the letters above.
        size: of a regular file, holes included.
        records: the PAX records that hold for it.
        extents: where a sparse file has data; None for others.
    """

    number: int
    name: bytes
    linkname: bytes
    type: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    major: int
    minor: int
    records: dict[bytes, bytes]
    extents: Extents | None = None

    def shown(self) -> str:
        """The name for messages."""
        return self.name[:200].decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class _Extensions:
    """What the headers before a member said."""

    name: bytes = b""
    linkname: bytes = b""
    records: list[tuple[bytes, bytes]] = field(default_factory=list)


class TarReader:
    """Iterate over it for the members; read one's `pieces` before the next.

    Raises:
        ArchiveError: damage, truncation, or what this module does not know.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sparse = SparseReader(self._read)
        self._globals: dict[bytes, bytes] = {}
        self._left = 0
        self._padding = 0
        self._count = 0
        self._is_first = True

    def __iter__(self) -> Iterator[TarMember]:
        while (member := self._next()) is not None:
            yield member

    def pieces(self, member: TarMember) -> Iterator[Piece]:
        """The bytes of the member that came last, holes as numbers."""
        at = 0
        for offset, length in member.extents if member.extents is not None else ((0, member.size),):
            if offset > at:
                yield offset - at
            at = offset + length
            for start in range(offset, at, PIECE_SIZE):
                yield self._read_data(min(PIECE_SIZE, at - start), member)
        if at < member.size:
            yield member.size - at

    def _read_data(self, size: int, member: TarMember) -> bytes:
        if size > self._left:
            raise ArchiveError(f"the sparse map of {member.shown()!r} names more data than there is")
        data = self._read(size)
        self._left -= size
        return data

    def _next(self) -> TarMember | None:
        self._skip(self._left + self._padding)
        self._left = self._padding = 0
        extensions = _Extensions()
        for number in range(MAX_HEADERS):
            header = self._read_header(may_end=number == 0)
            if header is None:
                return None
            fields = _HEADER.unpack(header)
            kind, size = fields[7], read_number(fields[4], "size")
            if size < 0:
                raise ArchiveError("damaged header: a negative size")
            if kind in (b"L", b"K", b"x", b"X", b"g"):
                self._extend(extensions, kind, size)
            elif kind == _LABEL:
                self._skip(size + -size % BLOCK)
            else:
                return self._member(header, fields, size, extensions)
        raise ArchiveError(f"more than {MAX_HEADERS} extension headers in a row")

    def _read_header(self, *, may_end: bool) -> bytes | None:
        """The next header; None at the archive's end, which is a block of zeros or simply the end of the file."""
        header = self._stream.read(BLOCK)
        first, self._is_first = self._is_first, False
        if len(header) == BLOCK and any(header):
            if not _checksum_fits(header):
                raise ArchiveError("not a tar archive" if first else "damaged header: its checksum is wrong")
            return header
        if header and len(header) < BLOCK:
            raise ArchiveError("not a tar archive" if first else "truncated in the middle of a header")
        if not may_end:
            raise ArchiveError("truncated behind an extension header")
        # One block of zeros alone is damage: a second one, or nothing, follows the last member.
        if header and any(self._stream.read(BLOCK)):
            raise ArchiveError("a block of zeros in the middle of the archive")
        return None

    def _extend(self, extensions: _Extensions, kind: bytes, size: int) -> None:
        most = MAX_NAME_BYTES if kind in (b"L", b"K") else MAX_RECORDS_BYTES
        if size > most:
            raise ArchiveError(f"an extension header of {size} bytes, {most} are allowed")
        data = self._read(size)
        self._skip(-size % BLOCK)
        if kind == b"L":
            extensions.name = data.partition(b"\0")[0]
        elif kind == b"K":
            extensions.linkname = data.partition(b"\0")[0]
        elif kind == b"g":
            self._globals.update(read_records(data))
        else:
            extensions.records += read_records(data)

    def _member(
        self, header: bytes, fields: tuple[bytes, ...], size: int, extensions: _Extensions
    ) -> TarMember:
        records = {**self._globals, **dict(extensions.records)}
        # An empty value takes a record back; an xattr may well be empty.
        records = {key: value for key, value in records.items() if value or key.startswith(XATTR_PREFIXES)}
        name = records.get(b"GNU.sparse.name") or records.get(b"path") or extensions.name or _plain_name(header, fields)
        linkname = records.get(b"linkpath") or extensions.linkname or fields[8].partition(b"\0")[0]
        kind = _kind(fields[7], name)
        if kind not in (*_KNOWN, _OLD_SPARSE):
            raise ArchiveError(f"{name[:200].decode('utf-8', 'backslashreplace')!r} has the unknown type {kind!r}")
        size = _recorded(records, b"size", size)
        mtime = records.get(b"mtime")
        member = TarMember(
            self._count, name, linkname, REGULAR if kind == _OLD_SPARSE else kind,
            read_number(fields[1], "mode"), _recorded(records, b"uid", read_number(fields[2], "uid")),
            _recorded(records, b"gid", read_number(fields[3], "gid")), 0 if kind in _WITHOUT_DATA else size,
            read_time_ns(mtime) if mtime else read_number(fields[5], "mtime") * 1_000_000_000,
            _recorded(records, b"SCHILY.devmajor", read_number(fields[13], "device")),
            _recorded(records, b"SCHILY.devminor", read_number(fields[14], "device")), records,
        )  # fmt: skip
        self._count += 1
        if not 0 <= member.size <= MAX_SIZE:
            raise ArchiveError(f"{member.shown()!r} has the impossible size {member.size}")
        self._left, self._padding = member.size, -member.size % BLOCK
        self._find_extents(member, header, kind, extensions)
        return member

    def _find_extents(self, member: TarMember, header: bytes, kind: bytes, extensions: _Extensions) -> None:
        found = None
        if kind == _OLD_SPARSE:
            found = self._sparse.old_gnu(header)
        elif kind == REGULAR and any(key.startswith(b"GNU.sparse.") for key in member.records):
            found = self._sparse.pax(member.records, extensions.records, self._left)
        if found is None:
            return
        member.size, member.extents, used = found
        if used > self._left:
            raise ArchiveError(f"the sparse map of {member.shown()!r} is longer than its data")
        self._left -= used

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise ArchiveError("truncated in the middle of a member")
        return data

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._read(min(size, PIECE_SIZE)))


def _checksum_fits(header: bytes) -> bool:
    try:
        wanted = read_number(header[148:156], "checksum")
    except ArchiveError:
        return False
    plain = header[:148] + header[156:]
    unsigned = sum(plain) + 8 * ord(" ")
    # Some old programs added signed bytes.
    return wanted in (unsigned, unsigned - 256 * sum(byte > 127 for byte in plain))


def _plain_name(header: bytes, fields: tuple[bytes, ...]) -> bytes:
    name = fields[0].partition(b"\0")[0]
    if fields[9] != b"ustar\0":
        return name  # in GNU's own format times stand where ustar has the prefix
    prefix = fields[15][:131] if header[508:] == b"tar\0" else fields[15]
    prefix = prefix.partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _kind(kind: bytes, name: bytes) -> bytes:
    if kind in (b"\0", b"0", b"7"):
        # V7 knew no directories: a file whose name ends with a slash is one.
        return DIRECTORY if kind != b"7" and name.endswith(b"/") else REGULAR
    if kind == _DUMPDIR:
        raise ArchiveError("an incremental backup (tar --listed-incremental)", hint="make a plain archive")
    return kind


def _recorded(records: dict[bytes, bytes], key: bytes, otherwise: int) -> int:
    text = records.get(key)
    return otherwise if text is None else read_decimal(text, key.decode())
