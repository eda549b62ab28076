"""Local knowledge: an LMDB environment that may be deleted or damaged at any time; the only user of lmdb.

Imported by builds, publishers and the host side. `Knowledge.open` gives one object a process and path, opened after
fork. Any thread may use it; operations take turns. Nothing here ever fails a caller: what cannot be read is not
known, what cannot be written is not learnt, and a log line says so.

LMDB maps the file: a truncated or overwritten one kills the process that reads it (SIGBUS). So every record carries a
checksum, each commit leaves a stamp (inode, size, mtime), and a file that does not match its stamp is first walked
whole by a child process; when the child finds damage or dies, the environment is made anew.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from layerkit._util.files import locked, make_dirs
from layerkit._util.process import run_program
from layerkit.errors import LayerkitError
from layerkit.store.tables import AgedTable, ChunkTable, Items

T = TypeVar("T")
log = logging.getLogger(__name__)

FOLDER = "knowledge"
FIRST_MAP_BYTES = 256 << 20
MAX_MAP_BYTES = 64 << 30
_MAX_TABLES = 256
_CHECK_TIMEOUT_S = 120.0
_LOCK_FILE_BYTES = 32 << 10  # 64 a reader, the header among them
_CRC = struct.Struct("<I")
_Stamp = tuple[int, int, int]
# These say nothing of the file's content; nor does lmdb.Error itself, an errno without a class of its own.
_UNUSABLE = (OSError, LayerkitError, lmdb.DiskError, lmdb.ReadonlyError, lmdb.LockError, lmdb.DbsFullError,
             lmdb.ReadersFullError)  # fmt: skip

_opened: dict[Path, Knowledge] = {}
_opened_lock = threading.Lock()


class Knowledge:
    """Named tables of byte strings, and the three that layerkit keeps: `chunks(store id)`, `files`, `steps`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = AgedTable(self, "files")
        self.steps = AgedTable(self, "steps")
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._env: Any = None
        self._tables: dict[str, Any] = {}
        self._views: list[_View] = []
        self._stamp: _Stamp = (0, 0, 0)

    @classmethod
    def open(cls, home: Path) -> Knowledge:
        """The knowledge below LAYERKIT_HOME; the same object for every caller of this process."""
        folder = home.absolute() / FOLDER
        with _opened_lock:
            return _opened.setdefault(folder, cls(folder))

    def close(self) -> None:
        """Give up the file; the next use opens it again."""
        with self._lock:
            self._suspend_views()
            # py-lmdb leaves the file alone when the environment was opened before a fork.
            if self._env is not None:
                self._env.close()
            self._env = None
            self._tables.clear()

    def chunks(self, store_id: str) -> ChunkTable:
        """Where the chunks of a store lie."""
        return ChunkTable(self, store_id)

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        wanted = _checked(keys)

        def read(txn: Any) -> dict[bytes, bytes]:
            found = {}
            for key in wanted:
                value = txn.get(key)
                if value is not None:
                    found[key] = _unsealed(key, value)
            return found

        return self._read(table, read, {})

    @contextmanager
    def view(self, table: str) -> Iterator[Callable[[bytes], bytes | None]]:
        """Look-ups without a transaction and a check each, for scans of many thousand keys.

        They see one state of the table until this thread writes so much that the file grows, or until somebody
        replaces it; then the newest.
        """
        with self._lock:
            view = _View(self, table)
            self._views.append(view)
            try:
                yield view.find
            finally:
                self._views.remove(view)
                view.suspend()

    def items(self, table: str) -> list[tuple[bytes, bytes]]:
        """Every row, by key."""
        return self._read(table, lambda txn: [(key, _unsealed(key, value)) for key, value in txn.cursor()], [])

    def put_many(self, table: str, items: Items) -> None:
        """Store all or nothing, durably; ValueError for a key that is empty or longer than 511 bytes."""
        rows = sorted((key, _sealed(key, value)) for key, value in items)
        _checked(key for key, _ in rows)

        def write(txn: Any) -> None:
            for key, value in rows:
                txn.put(key, value)

        self._write(table, write, None)

    def delete_many(self, table: str, keys: Iterable[bytes]) -> None:
        """Delete those keys."""
        doomed = _checked(keys)

        def write(txn: Any) -> None:
            for key in doomed:
                txn.delete(key)

        self._write(table, write, None)

    def _read(self, table: str, use: Callable[[Any], T], nothing: T) -> T:
        return self._guarded(table, use, nothing, write=False)

    def _write(self, table: str, use: Callable[[Any], T], nothing: T) -> T:
        return self._guarded(table, use, nothing, write=True)

    def _guarded(self, table: str, use: Callable[[Any], T], nothing: T, *, write: bool) -> T:
        """Run `use` in a transaction; again after growth, after a rebuild, and never with an error."""
        rebuilt = False
        with self._lock:
            while True:
                try:
                    return self._transact(table, use, nothing, write=write)
                except lmdb.MapFullError:
                    if not self._grow():
                        return nothing
                except lmdb.MapResizedError:
                    self._resize(0)
                except (OSError, LayerkitError, lmdb.Error, _DamagedError) as error:
                    if isinstance(error, _UNUSABLE) or type(error) is lmdb.Error:
                        log.warning("local knowledge in %s cannot be used now: %s", self.folder, error)
                        return nothing
                    log.warning("local knowledge in %s is damaged and made anew: %s", self.folder, error)
                    if rebuilt:
                        return nothing
                    rebuilt = True
                    self._remove()

    def _transact(self, table: str, use: Callable[[Any], T], nothing: T, *, write: bool) -> T:
        env = self._ensure_env()
        if table not in self._tables:
            try:
                self._tables[table] = env.open_db(table.encode(), create=write)
            except lmdb.NotFoundError:
                return nothing
        with env.begin(db=self._tables[table], write=write) as txn:
            result = use(txn)
        if write:
            self._leave_stamp()
        return result

    def _ensure_env(self) -> Any:
        """The open environment, opened anew after a fork and when its file was deleted, replaced or changed."""
        if self._env is not None:
            if self._pid == os.getpid() and self._is_unchanged():
                return self._env
            self.close()
        self._pid = os.getpid()
        make_dirs(self.folder.parent)
        with locked(self.folder.parent / f"{FOLDER}.lock"):
            there = _stamp_of(self.folder)
            if there is not None and there != self._read_stamp() and not _is_sound(self.folder):
                log.warning("local knowledge in %s is damaged and made anew", self.folder)
                self._remove()
            size = max(FIRST_MAP_BYTES, there[1] if there else 0)
            _fill_lock_file(self.folder)
            self._env = lmdb.open(str(self.folder), map_size=size, max_dbs=_MAX_TABLES, max_readers=510)
        self._env.reader_check()
        self._leave_stamp()
        return self._env

    def _is_unchanged(self) -> bool:
        """Whether the file is still the one that was opened, changed at most by processes that left their stamp."""
        now = _stamp_of(self.folder)
        if now is None or now[0] != self._stamp[0] or (now != self._stamp and now != self._read_stamp()):
            return False
        self._stamp = now
        return True

    def _remove(self) -> None:
        self.close()
        # Renamed first: another process that opens now finds nothing rather than half of it.
        doomed = self.folder.with_name(f".{FOLDER}-{os.getpid()}-{threading.get_ident()}")
        with suppress(FileNotFoundError):
            self.folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _grow(self) -> bool:
        size = self._env.info()["map_size"] * 2
        if size > MAX_MAP_BYTES:
            log.warning("local knowledge in %s is larger than %d bytes; no more is learnt", self.folder, MAX_MAP_BYTES)
            return False
        self._resize(size)
        return True

    def _resize(self, size: int) -> None:
        # LMDB maps the file anew: no transaction may have pages of the old map.
        self._suspend_views()
        self._env.set_mapsize(size)

    def _suspend_views(self) -> None:
        for view in self._views:
            view.suspend()

    def _begin_read(self, table: str) -> Any:
        """A read transaction of a view, None where the table cannot be read."""
        try:
            env = self._ensure_env()
            return env.begin(db=env.open_db(table.encode(), create=False))
        except lmdb.NotFoundError:
            return None
        except (OSError, LayerkitError, lmdb.Error) as error:
            log.warning("local knowledge in %s cannot be used now: %s", self.folder, error)
            return None

    def _leave_stamp(self) -> None:
        found = _stamp_of(self.folder)
        if found is None:
            return
        self._stamp = found
        temp = self.folder / f".stamp-{os.getpid()}-{threading.get_ident()}"
        # Without a stamp (the disk is full, the folder is gone) the next one to open the file walks it.
        with suppress(OSError):
            temp.write_text(" ".join(map(str, found)))
            temp.rename(self.folder / "stamp")

    def _read_stamp(self) -> _Stamp | None:
        try:
            inode, size, mtime_ns = map(int, (self.folder / "stamp").read_bytes()[:100].split())
        except (OSError, ValueError):
            return None
        return inode, size, mtime_ns


class _View:
    """The look-ups of one `Knowledge.view`; its transaction is given up whenever the environment must let go of it."""

    def __init__(self, knowledge: Knowledge, table: str) -> None:
        self._knowledge = knowledge
        self._table = table
        self._txn: Any = None
        self._begun = False

    def find(self, key: bytes) -> bytes | None:
        """The record under a key; None when there is none, or none that can be read."""
        if not self._begun:
            self._txn = self._knowledge._begin_read(self._table)
            self._begun = True
        if self._txn is None:
            return None
        try:
            return _sound(key, self._txn.get(key))
        except lmdb.Error as error:
            log.warning("local knowledge in %s cannot be read: %s", self._knowledge.folder, error)
            self._txn.abort()
            self._txn = None
            return None

    def suspend(self) -> None:
        """End the transaction; the next look-up begins a new one."""
        if self._txn is not None:
            self._txn.abort()
        self._txn = None
        self._begun = False


class _DamagedError(Exception):
    """A record whose checksum is wrong."""


def _checked(keys: Iterable[bytes]) -> list[bytes]:
    found = list(keys)
    if not all(0 < len(key) <= 511 for key in found):
        raise ValueError("a key has 1 to 511 bytes")
    return found


def _sealed(key: bytes, value: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(value, zlib.crc32(key))) + value


def _unsealed(key: bytes, value: bytes) -> bytes:
    plain = value[_CRC.size :]
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != zlib.crc32(plain, zlib.crc32(key)):
        raise _DamagedError("a record's checksum is wrong")
    return plain


def _sound(key: bytes, value: bytes | None) -> bytes | None:
    """The record, or None when it is missing or damaged."""
    if value is None:
        return None
    try:
        return _unsealed(key, value)
    except _DamagedError:
        return None


def _stamp_of(folder: Path) -> _Stamp | None:
    try:
        found = os.stat(folder / "data.mdb")
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _fill_lock_file(folder: Path) -> None:
    """Give the mapped table of readers its blocks: a hole in it kills the process (SIGBUS) when the disk is full."""
    folder.mkdir(exist_ok=True)
    fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        os.posix_fallocate(fd, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(fd)


def _is_sound(folder: Path) -> bool:
    """Walk the whole environment in a child process, which may die of it."""
    argv = [sys.executable, "-m", __name__, str(folder)]
    try:
        return run_program(argv, check=False, timeout_s=_CHECK_TIMEOUT_S).returncode == 0
    except LayerkitError as error:
        log.warning("the check of %s did not end well: %s", folder, error)
        return False


def check_environment(folder: Path) -> None:
    """Read every record; raises lmdb.Error for damage, or kills the process by a signal."""
    with lmdb.open(str(folder), map_size=FIRST_MAP_BYTES, max_dbs=_MAX_TABLES, max_readers=510) as env:
        with env.begin() as txn:
            names = [bytes(name) for name, _ in txn.cursor()]
        for name in names:
            table = env.open_db(name, create=False)
            with env.begin(db=table) as txn:
                for key, value in txn.cursor():
                    _unsealed(key, value)


if __name__ == "__main__":
    try:
        check_environment(Path(sys.argv[1]))
    except (lmdb.Error, _DamagedError) as error:
        sys.exit(str(error))
