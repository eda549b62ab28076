"""zstd from untrusted sources: no memory for claims that cannot be true."""

from __future__ import annotations

import pytest
import zstandard

from layerkit.core.zstd import compress, decompress
from layerkit.errors import CorruptError


@pytest.mark.parametrize("size", [0, 1, 1000, 128 << 10, (128 << 10) + 1, 50 << 20])
def test_what_shrinks_most_comes_back(size: int) -> None:
    for level in (1, 3, 19):
        assert decompress(compress(bytes(size), level), max_bytes=size) == bytes(size)


def test_l32_an_impossible_claim_takes_no_memory() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 30)))
    claim = frame[:200]
    assert zstandard.frame_content_size(bytes(claim)) == 1 << 30
    with pytest.raises(CorruptError, match="1073741824 bytes in 200"):
        decompress(claim, max_bytes=1 << 30)
