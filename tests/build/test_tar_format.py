"""Tar headers: every dialect, every lie; nothing is passed over in silence, allocated unasked or looked for in vain."""

from __future__ import annotations

import io
import random
import time
import tracemalloc

import pytest

from layerkit.build.tar_format import DIRECTORY, MAX_HEADERS, REGULAR, TarMember, TarReader
from layerkit.build.tar_numbers import read_number, read_records, read_time_ns
from layerkit.errors import ArchiveError
from tests.support.raw_tar import (
    END,
    base256,
    header,
    long_name,
    member,
    octal,
    padded,
    pax,
    record,
    reseal,
)


def read(data: bytes) -> list[tuple[TarMember, bytes]]:
    """Every member with its bytes, holes filled in."""
    reader = TarReader(io.BytesIO(data))
    return [(one, content(reader, one)) for one in reader]


def content(reader: TarReader, one: TarMember) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in reader.pieces(one))


def only(data: bytes) -> tuple[TarMember, bytes]:
    (found,) = read(data)
    return found


def test_a_plain_member() -> None:
    one, data = only(member(b"a/b", b"hello", mode=0o4755, uid=7, gid=8, mtime=99) + END)
    assert (one.name, one.type, one.mode, one.uid, one.gid, one.size, one.mtime_ns) == (
        b"a/b", REGULAR, 0o4755, 7, 8, 5, 99_000_000_000,
    )  # fmt: skip
    assert data == b"hello"


def test_members_whose_data_nobody_reads_are_skipped() -> None:
    reader = TarReader(io.BytesIO(member(b"a", b"x" * 5000) + member(b"b", b"y" * 512) + member(b"c") + END))
    assert [one.name for one in reader] == [b"a", b"b", b"c"]


def test_b25_ustar_prefix_and_gnu_times_in_its_place() -> None:
    assert only(member(b"name", prefix=b"some/folder") + END)[0].name == b"some/folder/name"
    assert only(member(b"name", magic=b"ustar  \0", prefix=b"14371234567") + END)[0].name == b"name"
    xstar = header(b"name", prefix=b"folder".ljust(131, b"\0") + b"14371234567\0", tail=b"\0" * 8 + b"tar\0")
    assert only(xstar + END)[0].name == b"folder/name"


def test_b25_v7_directories_end_with_a_slash() -> None:
    one, _ = only(member(b"folder/", kind=b"\0", magic=b"\0" * 8) + END)
    assert one.type == DIRECTORY


def test_b25_gnu_long_names_and_targets() -> None:
    data = long_name(b"n" * 300) + long_name(b"t" * 400, b"K") + member(b"cut", kind=b"2", linkname=b"cut") + END
    one, _ = only(data)
    assert (one.name, one.linkname) == (b"n" * 300, b"t" * 400)


def test_b25_empty_pax_values_fall_back_to_the_header() -> None:
    records = pax((b"path", b""), (b"size", b""), (b"uid", b""), (b"mtime", b""))
    one, data = only(records + member(b"kept", b"data", uid=5, mtime=6) + END)
    assert (one.name, one.uid, one.mtime_ns, data) == (b"kept", 5, 6_000_000_000, b"data")


def test_b25_global_records_hold_until_taken_back() -> None:
    data = (
        pax((b"uid", b"1000"), (b"comment", b"x"), kind=b"g") + member(b"a")
        + pax((b"uid", b"")) + member(b"b", uid=3) + member(b"c") + END
    )  # fmt: skip
    assert [one.uid for one, _ in read(data)] == [1000, 3, 1000]


def test_b25_no_trailing_blocks() -> None:
    assert [one.name for one, _ in read(member(b"a", b"data") + member(b"b"))] == [b"a", b"b"]
    assert [one.name for one, _ in read(member(b"a") + bytes(512))] == [b"a"]


def test_b25_empty_archives_and_labels() -> None:
    assert read(END) == []
    assert read(b"") == []
    assert [one.name for one, _ in read(header(b"Backup", kind=b"V") + member(b"a") + END)] == [b"a"]


def test_what_follows_the_end_is_nobody_s() -> None:
    assert [one.name for one, _ in read(member(b"a") + END + b"trailing garbage" * 100)] == [b"a"]


def test_b28_large_numbers() -> None:
    big = header(b"big", size=base256(9 << 30, 12), uid=base256(4_000_000_000, 8), gid=base256(2_097_152, 8))
    reader = TarReader(io.BytesIO(big))
    one = next(iter(reader))
    assert (one.size, one.uid, one.gid) == (9 << 30, 4_000_000_000, 2_097_152)
    one, _ = only(pax((b"uid", b"4294967294"), (b"size", b"4")) + member(b"x", b"data", size=0) + END)
    assert (one.uid, one.size) == (4_294_967_294, 4)
    with pytest.raises(ArchiveError):
        list(TarReader(io.BytesIO(big)))  # nine GiB that are not there


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [(b"0", 0), (b"-1", -1_000_000_000), (b"1.5", 1_500_000_000), (b"-1.5", -1_500_000_000), (b"1.", 1_000_000_000),
     (b"1700000000.123456789", 1_700_000_000_123_456_789), (b"-0.000000001", -1), (b"0.0000000019", 1),
     (b"-0.0000000011", -2), (b"17179869184.000000001", (1 << 34) * 10**9 + 1),
     (b"4.2e-08", 42), (b"-1e-9", -1), (b"1e3", 1000 * 10**9), (b"-1e-10", -1)],
)  # fmt: skip
def test_b30_pax_times(text: bytes, nanoseconds: int) -> None:
    assert read_time_ns(text) == nanoseconds
    assert only(pax((b"mtime", text)) + member(b"a") + END)[0].mtime_ns == nanoseconds


def test_b30_header_times() -> None:
    assert only(member(b"a", mtime=base256(-5, 12)) + END)[0].mtime_ns == -5_000_000_000
    assert only(member(b"a", mtime=base256(1 << 34, 12)) + END)[0].mtime_ns == (1 << 34) * 10**9


@pytest.mark.parametrize("text", [b"nan", b"1e999", b"inf", b"", b"1.2.3", b" 1", b"1_0", b"9" * 30])
def test_b25_impossible_times(text: bytes) -> None:
    with pytest.raises(ArchiveError):
        read_time_ns(text)


@pytest.mark.parametrize("value", [0, 1, 7, 0o777, 0o7777777])
def test_numbers_in_all_spellings(value: int) -> None:
    for field in (octal(value, 12), b"%o " % value, b"   %o\0\0" % value, base256(value, 12)):
        assert read_number(field, "x") == value
    assert read_number(base256(-value, 12), "x") == -value


@pytest.mark.parametrize("field", [b"9", b"0x12", b"-1", b"1 2", b"abc"])
def test_a_number_that_is_none_is_an_error(field: bytes) -> None:
    with pytest.raises(ArchiveError):
        read_number(field, "x")


def test_pax_records_of_any_bytes() -> None:
    pairs = [(b"a", b""), (b"SCHILY.xattr.user.x", b"\0\n\xff=" * 30), ("schlüssel".encode(), b"v" * 90)]
    pairs += [(b"k", b"v" * size) for size in range(985, 995)]
    assert list(read_records(b"".join(record(*pair) for pair in pairs) + bytes(7))) == pairs


SPARSE_10 = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
HOSTILE = {
    "text": b"this is no archive, whatever its name says" * 20,
    "short": b"x" * 100,
    "bad checksum": header(b"a", checksum=b"0000000"),
    "bad second header": member(b"a", b"data") + b"\x01" * 512,
    "truncated header": member(b"a", b"data") + header(b"b")[:300],
    "truncated data": member(b"a", b"x" * 5000)[:-600],
    "truncated padding": member(b"a", b"x" * 600)[:-100],
    "lone zero block": member(b"a") + bytes(512) + member(b"b") + END,
    "negative size": header(b"a", size=base256(-1, 12)) + END,
    "negative pax size": pax((b"size", b"-1")) + member(b"a") + END,
    "huge size": header(b"a", size=base256(1 << 90, 12)) + END,
    "huge pax size": pax((b"size", b"9" * 19)) + member(b"a") + END,
    "long pax number": pax((b"uid", b"9" * 5000)) + member(b"a") + END,
    "size that is no number": header(b"a", size=b"12345678901\0"[:11] + b"9") + END,
    "pax header without member": pax((b"path", b"x")) + END,
    "long name without member": long_name(b"x" * 200),
    "many headers": pax((b"path", b"x")) * (MAX_HEADERS + 1) + member(b"a") + END,
    "unknown type": header(b"a", kind=b"Q") + END,
    "multi volume": header(b"a", kind=b"M") + END,
    "incremental": header(b"a", kind=b"D") + END,
    "record without length": member(b"p", b"x path=a\n", kind=b"x") + member(b"a") + END,
    "record too long": member(b"p", b"99 path=a\n", kind=b"x") + member(b"a") + END,
    "record of length zero": member(b"p", b"0 path=a\n", kind=b"x") + member(b"a") + END,
    "record without newline": member(b"p", b"9 path=ab", kind=b"x") + member(b"a") + END,
    "record without equals": member(b"p", b"7 path\n", kind=b"x") + member(b"a") + END,
    "sparse map beyond the file": pax((b"GNU.sparse.map", b"0,4"), (b"GNU.sparse.size", b"3")) + member(b"a", b"data"),
    "sparse map backwards": pax((b"GNU.sparse.map", b"8,2,0,2"), (b"GNU.sparse.size", b"99")) + member(b"a", b"data"),
    "sparse map overlaps": pax((b"GNU.sparse.map", b"0,4,2,2"), (b"GNU.sparse.size", b"99")) + member(b"a", b"data"),
    "sparse map with more": pax((b"GNU.sparse.map", b"0,600"), (b"GNU.sparse.size", b"999")) + member(b"a", b"data"),
    "sparse map odd": pax((b"GNU.sparse.map", b"0,4,9"), (b"GNU.sparse.size", b"99")) + member(b"a", b"data"),
    "sparse map negative": pax((b"GNU.sparse.map", b"0,-4"), (b"GNU.sparse.size", b"99")) + member(b"a", b"data"),
    "sparse of the future": SPARSE_10.replace(b"major=1", b"major=2") + member(b"a", b"data"),
    "sparse 1.0 without map": SPARSE_10 + member(b"a", b"z" * 2000),
    "sparse 1.0 with a huge map": SPARSE_10 + member(b"a", b"99999999999\n" + b"1\n" * 1000),
    "sparse 1.0 with a map beyond its data": SPARSE_10 + member(b"a", b"200\n" + b"1\n" * 100) + member(b"b"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_b25_hostile_archives_are_typed_errors(name: str) -> None:
    with pytest.raises(ArchiveError):
        read(HOSTILE[name])


def test_b25_nothing_is_allocated_because_a_header_says_so() -> None:
    claims = [header(b"x", kind=kind, size=base256(1 << 50, 12)) for kind in (b"L", b"K", b"x", b"g")]
    tracemalloc.start()
    for claim in claims:
        with pytest.raises(ArchiveError):
            read(claim + bytes(4096))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_b25_records_take_linear_time() -> None:
    # tarfile searches this with a regular expression that looks back from every digit.
    start = time.monotonic()
    with pytest.raises(ArchiveError):
        read(member(b"p", b"1" * (4 << 20), kind=b"x") + member(b"a") + END)
    assert time.monotonic() - start < 5


def test_old_gnu_sparse() -> None:
    pairs = b"".join(octal(number, 12) for number in (0, 3, 1000, 2))
    block = bytearray(header(b"s", kind=b"S", size=5, magic=b"ustar  \0"))
    block[386 : 386 + len(pairs)] = pairs
    block[483:495] = octal(1100, 12)
    one, data = only(reseal(bytes(block)) + padded(b"abcde") + END)
    assert one.type == REGULAR
    assert data == b"abc" + bytes(997) + b"de" + bytes(98)


def test_pax_sparse_of_every_version() -> None:
    wanted = bytes(512) + b"abc" + bytes(100 - 3) + b"de" + bytes(10)
    size, path = str(len(wanted)).encode(), (b"GNU.sparse.name", b"real/name")
    versions = [
        pax((b"GNU.sparse.size", size), path, (b"GNU.sparse.numblocks", b"2"), (b"GNU.sparse.offset", b"512"),
            (b"GNU.sparse.numbytes", b"3"), (b"GNU.sparse.offset", b"612"), (b"GNU.sparse.numbytes", b"2"))
        + member(b"GNUSparseFile.0/name", b"abcde"),
        pax((b"GNU.sparse.size", size), path, (b"GNU.sparse.map", b"512,3,612,2")) + member(b"x", b"abcde"),
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", size), path)
        + member(b"x", padded(b"3\n512\n3\n612\n2\n%d\n0\n" % len(wanted)) + b"abcde"),
    ]  # fmt: skip
    for data in versions:
        (one, found), (after, _) = read(data + member(b"after") + END)
        assert (one.name, found, after.name) == (b"real/name", wanted, b"after")


def test_b25_seeded_fuzz() -> None:
    """Flipped bytes, with and without a checksum that fits: a result or an ArchiveError, quickly."""
    sample = (
        pax((b"path", b"a/" + b"n" * 120), (b"mtime", b"1.5"), (b"SCHILY.xattr.user.a", b"\0"))
        + member(b"a", b"x" * 700) + long_name(b"l" * 200) + member(b"b", kind=b"2", linkname=b"t")
        + pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9000"))
        + member(b"s", padded(b"2\n0\n4\n8192\n4\n") + b"datadata") + member(b"c", kind=b"1", linkname=b"a") + END
    )  # fmt: skip
    pick = random.Random(7)
    start = time.monotonic()
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        data = bytearray(sample)
        for _ in range(pick.choice((1, 1, 2, 5))):
            at = pick.randrange(len(data))
            data[at] = pick.choice((0, 0xFF, 0x80, ord("9"), ord("-"), pick.randrange(256)))
            block = at // 512 * 512
            if pick.random() < 0.8 and data[block + 257 : block + 262] == b"ustar":
                data[block : block + 512] = reseal(bytes(data[block : block + 512]))
        if pick.random() < 0.2:
            del data[pick.randrange(len(data)) :]
        try:
            for one, found in read(bytes(data)):
                assert len(found) == one.size
            outcomes[True] += 1
        except ArchiveError:
            outcomes[False] += 1
        except MemoryError:
            pytest.fail("a size that is nowhere")
    assert min(outcomes.values()) > 300
    assert time.monotonic() - start < 60
