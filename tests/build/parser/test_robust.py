"""Speed on large files, and that nothing but LayerfileError comes out of anything."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from layerkit.build.layerfile import parse_layerfile
from layerkit.errors import LayerfileError

CASES = sorted((Path(__file__).parent / "cases").glob("*/Layerfile"))
FUZZ_SECONDS = 8.0
TOKENS = [
    *(b"\\\n", b"`\n", b"\n", b"\r\n", b"<<EOF", b"<<-'E O'", b"<<", b"EOF\n", b'"', b"'", b"${", b"}", b"$", b'["'),
    *(b'"]', b"\\", b"# escape=`\n", b"--from=", b"--", b"=", b" ", b"\t", b"\xff", b"\x00", b"\xef\xbb\xbf", b"#"),
    *(b"\xe2\x80\x83", b"FROM ", b"RUN ", b"ENV ", b"ARG ", b"LAYER toolkit ", b"HEALTHCHECK --interval=9", b"[" * 60),
    *(b"{", b",", b"\\ud800", b"ONBUILD ", b"COPY --chmod=", b"EXPOSE 1-"),
]


def seconds_for(data: bytes) -> float:
    begin = time.perf_counter()
    try:
        parse_layerfile(data)
    except LayerfileError:
        pass
    return time.perf_counter() - begin


def test_fifteen_thousand_lines_in_a_second() -> None:
    data = b"FROM base/debian:12\n" + b"".join(
        b'RUN echo %d && \\\n    apt-get install -y a b c\nENV A%d="x y" B=$C\n' % (n, n) for n in range(5000)
    )
    assert data.count(b"\n") > 15_000
    assert seconds_for(data) < 1


@pytest.mark.parametrize(
    "data",
    [
        b"RUN " + b"a " * (1 << 19),
        b"RUN " + b"a \\\n" * (1 << 18),
        b"RUN x <<E " + b"'a' " * (1 << 18) + b"\nE\n",
        b"RUN " + b"<<A " * (1 << 15) + b"\n" + b"A\n" * (1 << 15),
        b"COPY " + b"<<A " * (1 << 15) + b"/x\n" + b"A\n" * (1 << 15),
        b'ENV a="' + b"a'\\\"" * (1 << 18) + b'"',
        b"ENV " + b"'" * (1 << 19),
        b"ENV " + b"\\" * (1 << 20),
        b"ENV a=" + b'"' * (1 << 20),
        b"RUN [" + b'"a",' * (1 << 18) + b'"b"]',
        b"RUN " + b"[" * (1 << 20),
        b"RUN " + b"--a=1 " * (1 << 17),
        b"EXPOSE " + b":" * (1 << 20),
        b"HEALTHCHECK --interval=" + b"1" * (1 << 20) + b" CMD x",
        b" " * (1 << 20) + b"x",
        b"RUN <<E\n" + b"E \n" * (1 << 18),
        b"#" * (1 << 20) + b"\n" * (1 << 18),
    ],
    ids=lambda data: repr(data[:14]),
)
def test_a_megabyte_of_anything_is_linear(data: bytes) -> None:
    assert seconds_for(b"FROM scratch\n" + data + b"\n") < 3


def mutate(generator: random.Random, data: bytes) -> bytes:
    text = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(text) + 1)
        match generator.randrange(5):
            case 0:
                text[at:at] = generator.choice(TOKENS)
            case 1:
                del text[at : at + generator.randint(1, 12)]
            case 2:
                text[at:at] = bytes([generator.randrange(256)])
            case 3:
                end = min(len(text), at + generator.randint(1, 30))
                text[at:at] = text[at:end]
            case _:
                other = CASES[generator.randrange(len(CASES))].read_bytes()
                text[at:at] = other[generator.randrange(len(other) + 1) :][:40]
    return bytes(text)


def outcome(data: bytes) -> LayerfileError | None:
    try:
        parse_layerfile(data)
    except LayerfileError as error:
        return error
    return None


def test_fuzz_gives_layerfile_errors_only() -> None:
    seed = 20_240_611
    generator = random.Random(seed)
    seeds = [case.read_bytes() for case in CASES]
    end = time.monotonic() + FUZZ_SECONDS
    parsed = refused = 0
    while time.monotonic() < end:
        data = mutate(generator, generator.choice(seeds))
        try:
            error = outcome(data)
        except Exception as unexpected:
            raise AssertionError(f"seed {seed}: {data!r}") from unexpected
        if error is None:
            parsed += 1
            continue
        refused += 1
        assert error.where.startswith("Layerfile:"), data
        assert error.excerpt, data
    assert parsed > 100
    assert refused > 100
