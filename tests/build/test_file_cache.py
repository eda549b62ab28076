"""Keys of known files: the short way to one and the long way agree."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from layerkit.build import file_cache


@pytest.mark.parametrize(
    "times", [(0, 1), (1_700_000_000_123_456_789, 5), (2**63 + 7, 2**64 - 1), (-5, 1), (2**64 + 1, -(2**63) - 9)]
)
def test_the_short_and_the_long_way_to_a_key_agree(times: tuple[int, int]) -> None:
    status = SimpleNamespace(st_dev=7, st_ino=2**40, st_size=2**33, st_mtime_ns=times[0], st_ctime_ns=times[1])
    assert file_cache._key(b"12345678", status) == file_cache._long_key(b"12345678", status)  # type: ignore[arg-type]
