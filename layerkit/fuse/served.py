"""Which layers serving processes may serve: one small file a layer below `<run>/served`, named by the short name.

hostd writes them, the FUSE server reads one when its name is first looked up, so that layers come without a remount
and without hostd. Pure apart from the file; safe from any thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit._util.files import make_dirs, temp_name
from layerkit.errors import CorruptError
from layerkit.ids import check_digest


@dataclass(frozen=True, slots=True)
class ServedRecord:
    """One layer.

    Attributes:
        folder, presence: paths of its files and of its volatile presence map.
        meta_size, data_size: bytes of `meta` and `data`.
        mapped_size: where the data begins in the flat view, at least `meta_size`.
    """

    digest: str
    folder: str
    presence: str
    meta_size: int
    mapped_size: int
    data_size: int


def write_volatile(path: Path, value: dict[str, object]) -> None:
    """Replace a small JSON file below `run`; not synced, because `run` need not survive a boot."""
    make_dirs(path.parent, 0o700)
    temp = temp_name(path)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, canonical_json(value))
    finally:
        os.close(fd)
    os.rename(temp, path)


def write_served(folder: Path, name: str, record: ServedRecord) -> None:
    """Let the layer be served under `name`."""
    write_volatile(folder / name, asdict(record))


def read_served(folder: Path, name: str) -> ServedRecord:
    """The record of a name.

    Raises:
        FileNotFoundError: no such layer is served.
        CorruptError: not such a record.
    """
    data = read_json_object((folder / name).read_bytes(), "served record", max_bytes=64 << 10)
    try:
        record = ServedRecord(**data)
    except TypeError as error:
        raise CorruptError(f"not a served record: {error}", where=name) from error
    check_digest(record.digest)
    return record


def remove_served(folder: Path, name: str) -> None:
    """Serve the layer no longer to new openers."""
    with suppress(FileNotFoundError):
        (folder / name).unlink()
