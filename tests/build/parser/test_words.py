"""Heredoc marks, flags and words by themselves, where whole files would hide the detail."""

from __future__ import annotations

import pytest

from layerkit.build.layerfile.heredoc import find_heredocs, parse_mark
from layerkit.build.layerfile.source import Source
from layerkit.build.layerfile.values import check_signal, parse_duration_ns, parse_ports
from layerkit.build.layerfile.words import split_flags, split_words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("<<EOF", ["EOF"]),
        ("<<-EOF", ["EOF"]),
        ("4<<EOF", ["EOF"]),
        ("<<'EOF'", ["EOF"]),
        ('<<EO"F"', ["EOF"]),
        ("<<A <<B", ["A", "B"]),
        ("<< EOF", ["EOF"]),
        ("<<- EOF > x", ["EOF"]),
        ("<< -EOF", ["-EOF"]),
        ("<<one.txt", ["one.txt"]),
        ("cat <<EOF|sort", ["EOF"]),
        ("'<<EOF'", []),
        ('"<<EOF"', []),
        ("\\<<EOF", []),
        ("a<<EOF", []),
        ("<<<EOF", []),
        ("<<", []),
        ("<<-", []),
        ("don't <<EOF", []),
        ("$((1 << 4))", []),
    ],
)
def test_heredocs_of_a_line(text: str, names: list[str]) -> None:
    assert [mark.name for mark in find_heredocs(text)] == names


@pytest.mark.parametrize(
    ("word", "name", "expand"),
    [
        ("<<EOF", "EOF", True),
        ("<<'EOF'", "EOF", False),
        ('<<"EOF"', "EOF", False),
        ("<<eo'f'", "eof", False),
        ("<<eo\\'f", "eo'f", True),
        ("<<'one two'", "one two", False),
        ("<<$EOF", "$EOF", True),
    ],
)
def test_quotes_in_a_delimiter_stop_expansion(word: str, name: str, expand: bool) -> None:
    mark = parse_mark(word)
    assert mark is not None
    assert (mark.name, mark.expand, mark.whole) == (name, expand, True)


@pytest.mark.parametrize(
    ("text", "escape", "words"),
    [
        ("a b", "\\", ["a", "b"]),
        ("a\\ b c", "\\", ["a\\ b", "c"]),
        ("a` b c", "`", ["a` b", "c"]),
        ("a\\ b", "`", ["a\\", "b"]),
        ("x='a b' y=\"c d\"z", "\\", ["x='a b'", 'y="c d"z']),
        ('x="a \\" b"', "\\", ['x="a \\" b"']),
        ("x='a\\' b", "\\", ["x='a\\'", "b"]),
        ("x='open to the end", "\\", ["x='open to the end"]),
        ("last\\", "\\", ["last"]),
        ('"last\\', "\\", ['"last']),
        ("\u00a0a\u3000b", "\\", ["a", "b"]),
        ('""', "\\", ['""']),
    ],
)
def test_words(text: str, escape: str, words: list[str]) -> None:
    assert [word for _, word in split_words(text, escape)] == words


@pytest.mark.parametrize(
    ("text", "flags", "rest"),
    [
        ("a b", [], "a b"),
        ("--a=1 --b c", ["--a=1", "--b"], "c"),
        ('--a="x y" z', ["--a=x y"], "z"),
        ("--a='x\\'y' z", ["--a=x'y"], "z"),
        ("--a=x\\ y z", ["--a=x y"], "z"),
        ("-- --a", [], "--a"),
        ("--a", ["--a"], ""),
        ("-a --b", [], "-a --b"),
    ],
)
def test_flags(text: str, flags: list[str], rest: str) -> None:
    found, position = split_flags(text)
    assert ([flag for _, flag in found], text[position:]) == (flags, rest)


@pytest.mark.parametrize(
    ("text", "value"),
    [("30s", 30 * 10**9), ("1m30s", 90 * 10**9), ("1.5h", 5400 * 10**9), (".5s", 5 * 10**8), ("0", 0), ("1ms", 10**6)],
)
def test_durations(text: str, value: int) -> None:
    assert parse_duration_ns(text) == value


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "-1s", "1us", "1d", "9" * 200 + "h", "1e3s", "9999999h"])
def test_durations_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|negative|less|longer"):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("80", ["80/tcp"]),
        ("53/UDP", ["53/udp"]),
        ("8000-8002", ["8000/tcp", "8001/tcp", "8002/tcp"]),
        ("8080:80", ["80/tcp"]),
        ("127.0.0.1:8080:80/sctp", ["80/sctp"]),
        ("[::1]:8080:80", ["80/tcp"]),
        ("80/", ["80/tcp"]),
    ],
)
def test_ports(text: str, ports: list[str]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "http", "65536", "90-80", "80/icmp", "80-", "1" * 5000, ":" * 5000])
def test_ports_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|none of|beyond|backward"):
        parse_ports(text)


def test_signals() -> None:
    for good in ("SIGTERM", "term", "9", "64", "RTMIN+3", "SIGRTMAX-2"):
        assert check_signal(good) == good
    for bad in ("", "0", "65", "SIGNOPE", "RTMIN+40", "9" * 5000):
        with pytest.raises(ValueError, match="signal"):
            check_signal(bad)


def test_excerpt_keeps_tabs_and_cuts_long_lines() -> None:
    source = Source(b"\tA b\n" + b"x" * 500 + b"WRONG" + b"y" * 500, "L")
    assert source.excerpt(1, 4, 1) == "    1 | \tA b\n      | \t  ^"
    shown, carets = source.excerpt(2, 501, 5).split("\n")
    assert len(shown) < 130
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "WRONG"
    assert source.excerpt(99) == ""
