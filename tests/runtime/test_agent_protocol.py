"""Frames: laws of the codec, bounds on what a peer may claim, and one set of numbers in C, Python and the page."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerkit.errors import AgentProtocolError, InputError, LimitError
from layerkit.runtime import agent_protocol as protocol
from layerkit.runtime.agent_protocol import ErrorCode, ExecRequest, Frame, FrameDecoder, FrameType, Stage

ROOT = Path(__file__).parents[2]
C_HEADER = (ROOT / "layerkit/runtime/agent/agent.h").read_text()
PAGE = (ROOT / "docs/formats/agent-protocol.md").read_text()
AGENT_TYPES = [kind for kind in FrameType if kind >= 0x80]
frames = st.builds(
    Frame, st.sampled_from(AGENT_TYPES), st.integers(0, 2**32 - 1), st.binary(max_size=protocol.MAX_PING)
)


def decode(data: bytes, piece_size: int = 1 << 20) -> list[Frame]:
    decoder, found = FrameDecoder(), []
    for start in range(0, len(data), piece_size):
        view = memoryview(data)[start : start + piece_size]
        while view:
            size = min(len(view), len(decoder.space()))
            decoder.space()[:size] = view[:size]
            found += decoder.received(size)
            view = view[size:]
    return found


@given(st.lists(frames, max_size=20), st.integers(1, 100))
def test_frames_survive_any_cutting(sent: list[Frame], piece_size: int) -> None:
    data = b"".join(protocol.encode(frame.type, frame.id, frame.payload) for frame in sent)
    assert decode(data, piece_size) == sent


@given(st.binary(max_size=300))
def test_garbage_is_a_typed_error_or_waits(data: bytes) -> None:
    try:
        decode(data)
    except AgentProtocolError:
        return
    assert len(data) < protocol.HEADER.size or data[:2] == b"LK"


def test_largest_frames_pass_and_larger_do_not() -> None:
    data = protocol.encode(FrameType.STDOUT, 1, b"x" * protocol.MAX_DATA)
    assert len(decode(data * 20)) == 20
    for kind, size in [
        (FrameType.STDOUT, protocol.MAX_DATA + 1),
        (FrameType.EXIT, protocol.MAX_SMALL + 1),
        (FrameType.WELCOME, 2**32 - 1),
    ]:
        with pytest.raises(AgentProtocolError):
            decode(protocol.HEADER.pack(b"LK", kind, 0, 1, size))


@pytest.mark.parametrize("header", [
    b"KL\x83\0" + bytes(8), b"LK\x83\x01" + bytes(8), b"LK\x02\0" + bytes(8), b"LK\xff\0" + bytes(8),
])  # fmt: skip
def test_wrong_headers_are_refused(header: bytes) -> None:
    with pytest.raises(AgentProtocolError):
        decode(header)


def request(**changes: object) -> ExecRequest:
    fields: dict[str, object] = {
        "argv": [b"a", b""], "env": [b"K=V"], "cwd": b"/", "user": b"", "has_stdin": True, "timeout_ms": 5,
        "stdout_credit": 6, "stderr_credit": 7, "stdout_cap": 8, "stderr_cap": 9,
    }  # fmt: skip
    return ExecRequest(**(fields | changes))  # type: ignore[arg-type]


def test_exec_is_laid_out_as_the_page_says() -> None:
    body = protocol.encode_exec(3, request())[protocol.HEADER.size :]
    assert struct.unpack_from("<IIIIIIQQ", body) == (1, 2, 1, 6, 7, 5, 8, 9)
    assert body[40:] == b"/\0\0a\0\0K=V\0"


def test_exec_that_cannot_be_said_is_refused() -> None:
    for changes in ({"argv": []}, {"argv": [b"a\0b"]}, {"cwd": b"/\0"}, {"user": b"\0"}, {"env": [b"A=\0"]}):
        with pytest.raises(InputError):
            protocol.encode_exec(1, request(**changes))
    for changes in ({"argv": [b"x" * protocol.MAX_PAYLOAD]}, {"argv": [b""] * (protocol.MAX_STRINGS + 1)}):
        with pytest.raises(LimitError):
            protocol.encode_exec(1, request(**changes))


@given(st.binary(max_size=80))
def test_payloads_are_decoded_or_refused(payload: bytes) -> None:
    for kind, function in [
        (FrameType.WELCOME, protocol.decode_welcome),
        (FrameType.EXIT, protocol.decode_exit),
        (FrameType.ERROR, protocol.decode_error),
        (FrameType.STARTED, protocol.decode_u32),
    ]:
        try:
            function(Frame(kind, 1, payload))
        except AgentProtocolError:
            continue


def c_constants(prefix: str) -> dict[str, int]:
    return {
        name: int(value, 0)
        for name, value in re.findall(rf"\b{prefix}_([A-Z_]+) = (0x[0-9a-f]+|\d+)", C_HEADER)
        if not name.startswith("RESERVED_") or prefix == "ERROR"
    }


def test_c_and_python_have_the_same_numbers() -> None:
    assert c_constants("FRAME") == {kind.name: kind.value for kind in FrameType}
    assert c_constants("ERROR") == {code.name: code.value for code in ErrorCode}
    assert c_constants("STAGE") == {stage.name: stage.value for stage in Stage}
    for name, value in [
        ("MAX_PAYLOAD = 4 << 20", protocol.MAX_PAYLOAD == 4 << 20),
        ("MAX_DATA = 64 << 10", protocol.MAX_DATA == 64 << 10),
        ("MAX_PING = 64", protocol.MAX_PING == 64),
        ("MAX_STRINGS = 1 << 18", protocol.MAX_STRINGS == 1 << 18),
        ("PROTOCOL_VERSION = 1", protocol.VERSION == 1),
    ]:
        assert name in C_HEADER
        assert value


def test_page_lists_every_frame_and_error() -> None:
    for kind in FrameType:
        assert re.search(rf"\| `{kind.value:#04x}` \| {kind.name} \|", PAGE), kind
    for code in ErrorCode:
        assert f"| {code.value} | {code.name.lower().replace('_', '-')} |" in PAGE, code
