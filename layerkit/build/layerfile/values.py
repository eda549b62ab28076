"""Small values inside instructions: durations, ports, signals. Pure; each raises ValueError with a sentence."""

from __future__ import annotations

import re
from fractions import Fraction

_DURATION = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_MIN_DURATION_NS = 10**6
_MAX_INT64 = 2**63 - 1
_PORT = re.compile(r"(?:(?:\[?[0-9A-Fa-f.:]*\]?:)?(?:\d*(?:-\d+)?):)?(\d+)(?:-(\d+))?(?:/([A-Za-z]*))?", re.ASCII)
_MAX_TEXT = 100
_SIGNALS = re.compile(
    "ABRT|ALRM|BUS|CHLD|CLD|CONT|FPE|HUP|ILL|INT|IO|IOT|KILL|PIPE|POLL|PROF|PWR|QUIT|SEGV|STKFLT|STOP|SYS|TERM|TRAP|"
    "TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ"
)
_RT_SIGNAL = re.compile(r"RTMIN(?:\+(\d{1,2}))?|RTMAX(?:-(\d{1,2}))?")


def parse_duration_ns(text: str) -> int:
    """A duration as Go writes them (`1m30s`, `500ms`, `0`) in nanoseconds.

    Raises:
        ValueError: another form, negative, or between zero and a millisecond.
    """
    if text in ("0", "+0", "-0"):
        return 0
    if len(text) > _MAX_TEXT or not _DURATION.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no duration, such as 30s or 1m30s")
    total = int(sum(Fraction(number.rstrip(".")) * _UNIT_NS[unit] for number, unit in _DURATION_PART.findall(text)))
    if text.startswith("-") and total:
        raise ValueError(f"{text!r} is negative")
    if 0 < total < _MIN_DURATION_NS:
        raise ValueError(f"{text!r} is less than 1ms")
    if total > _MAX_INT64:
        raise ValueError(f"{text!r} is longer than 292 years")
    return total


def parse_ports(text: str) -> list[str]:
    """`80`, `80/udp`, `8000-8010`, `[IP:]HOST:80` as `PORT/PROTOCOL` texts, as EXPOSE keeps them.

    Raises:
        ValueError: not a port, beyond 65535, a range that runs backward, an unknown protocol.
    """
    match = _PORT.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if not match:
        raise ValueError(f"{text[:60]!r} is no port, such as 80, 53/udp or 8000-8010")
    first, last = int(match[1]), int(match[2] or match[1])
    protocol = (match[3] or "tcp").lower()
    if protocol not in ("tcp", "udp", "sctp"):
        raise ValueError(f"{protocol!r} is none of tcp, udp, sctp")
    if last > 65535 or first > 65535:
        raise ValueError(f"port {max(first, last)} is beyond 65535")
    if last < first:
        raise ValueError(f"the range {first}-{last} runs backward")
    return [f"{port}/{protocol}" for port in range(first, last + 1)]


def check_signal(text: str) -> str:
    """Return the text when it names a Linux signal: a number from 1 to 64, or a name with or without SIG.

    Raises:
        ValueError: anything else.
    """
    if text.isascii() and text.isdigit():
        if 1 <= int(text[:9]) <= 64:
            return text
        raise ValueError(f"signal {text[:20]} is not between 1 and 64")
    name = text.upper().removeprefix("SIG")
    match = _RT_SIGNAL.fullmatch(name)
    if _SIGNALS.fullmatch(name) or (match and int(match[1] or match[2] or 0) <= 30):
        return text
    raise ValueError(f"{text[:60]!r} is no signal, such as SIGTERM or 9")
