"""`layerkit-store.json`: format version, id and sizes of a store, fixed when it is created (docs/formats/store.md).

Imported by `store.py`. A value; safe in any thread and under concurrent creation.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from layerkit._util.canonical import canonical_json, read_json_object
from layerkit.errors import CorruptError, MissingError, UnsupportedError
from layerkit.store.frames import MAX_FRAME_BYTES
from layerkit.store.keys import PARAMS_KEY
from layerkit.store.objectstore import ObjectStore
from layerkit.store.pack import MAX_PACK_BYTES

FORMAT = "layerkit-store"
FORMAT_VERSION = 1
_MAX_BYTES = 64 << 10
_ID_DIGITS = 32


@dataclass(frozen=True)
class StoreParams:
    """What every writer of a store keeps to.

    Args:
        frame_size: plain bytes that are compressed together.
        pack_size: bytes of a pack at most.
        zstd_level: 1 to 19.
        id: 32 hexadecimal digits, drawn at creation; local knowledge is filed under it.
    """

    frame_size: int = 512 << 10
    pack_size: int = 16 << 20
    zstd_level: int = 3
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_DIGITS // 2))

    def problem(self) -> str:
        """What is out of bounds; '' when nothing is."""
        if not 4096 <= self.frame_size <= MAX_FRAME_BYTES:
            return f"frame_size {self.frame_size} is not between 4 KiB and 16 MiB"
        if not self.frame_size <= self.pack_size <= MAX_PACK_BYTES:
            return f"pack_size {self.pack_size} is not between frame_size and 1 GiB"
        if not 1 <= self.zstd_level <= 19:
            return f"zstd_level {self.zstd_level} is not between 1 and 19"
        if len(self.id) != _ID_DIGITS or set(self.id) - set("0123456789abcdef"):
            return f"id {self.id[:100]!r} is not {_ID_DIGITS} hexadecimal digits"
        return ""

    def to_bytes(self) -> bytes:
        """The canonical JSON; ValueError for values out of bounds."""
        if problem := self.problem():
            raise ValueError(problem)
        return canonical_json({"format": FORMAT, "version": FORMAT_VERSION, **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = PARAMS_KEY) -> StoreParams:
        """Read the object of a store.

        Raises:
            UnsupportedError: a version that this layerkit does not know.
            CorruptError: anything else that no layerkit wrote.
        """
        try:
            value = read_json_object(data, "the store's description", max_bytes=_MAX_BYTES)
        except CorruptError as error:
            raise CorruptError(error.message, where=where) from error
        version = value.get("version")
        if value.get("format") != FORMAT or type(version) is not int:
            raise CorruptError("does not describe a layerkit store", where=where)
        if version != FORMAT_VERSION:
            raise UnsupportedError(
                f"the store has format version {version}, this layerkit knows version {FORMAT_VERSION}",
                where=where, hint="use a newer layerkit for this store",
            )  # fmt: skip
        numbers = {name: _number(value, name, where) for name in ("frame_size", "pack_size", "zstd_level")}
        params = cls(**numbers, id=str(value.get("id", "")))
        if problem := params.problem():
            raise CorruptError(problem, where=where)
        return params


def _number(value: dict[str, Any], name: str, where: str) -> int:
    number = value.get(name)
    if type(number) is not int:
        raise CorruptError(f"{name} is not a number", where=where)
    return number


def read_params(objects: ObjectStore, where: str) -> StoreParams:
    """What the store says about itself; MissingError when there is no store."""
    try:
        data = objects.get(PARAMS_KEY, max_bytes=_MAX_BYTES)
    except MissingError as error:
        raise MissingError(
            "there is no store", where=where, hint="the first build or import into it makes one"
        ) from error  # fmt: skip
    return StoreParams.from_bytes(data, where=f"{where}/{PARAMS_KEY}")


def ensure_params(objects: ObjectStore, where: str, params: StoreParams) -> StoreParams:
    """Create the store unless it exists; of several creators one wins, and all get its parameters."""
    try:
        return read_params(objects, where)
    except MissingError:
        objects.put_if_absent(PARAMS_KEY, params.to_bytes())
        return read_params(objects, where)
