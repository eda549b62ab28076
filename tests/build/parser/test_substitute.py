"""Variables, quotes and escapes. The first two tables follow the behaviour of BuildKit's shell lexer."""

from __future__ import annotations

import time

import pytest

from layerkit.build.layerfile.substitute import MAX_DEPTH, SubstitutionError, substitute

ENV = {"HOME": "/home", "SHELL": "bash", "WORD": "한국어", "EMPTY": ""}

PLAIN = [
    ("hello", "hello"),
    ("he'll'o", "hello"),
    (r"he\'llo", "he'llo"),
    (r"abc\tdef", "abctdef"),
    (r'"abc\tdef"', r"abc\tdef"),
    (r'"abc\\tdef"', r"abc\tdef"),
    (r"'abc\tdef'", r"abc\tdef"),
    ("hello\\", "hello"),
    (r"hello\\", "hello\\"),
    (r"'hello\'", "hello\\"),
    ('"hel\'lo"', "hel'lo"),
    ("\"''\"", "''"),
    ("'\"hello\"'", '"hello"'),
    ("$.", "$."),
    ("a$", "a$"),
    ("$1", ""),
    ("he$1x", "hex"),
    ("he$$", "he"),
    ("$@$*$#$?$-$!", ""),
    ("he$nope.", "he."),
    ("he$HOME", "he/home"),
    (r"he\$HOME", "he$HOME"),
    (r"he\\$HOME", r"he\/home"),
    (r'"he\$HOME"', "he$HOME"),
    (r'"he\\$HOME"', r"he\/home"),
    (r"'\$HOME'", r"\$HOME"),
    (r"\${}aaa", "${}aaa"),
    ("he${nope}xx", "hexx"),
    ("he${HOME}", "he/home"),
    ("\"he'$HOME'\"", "he'/home'"),
    ("'he${HOME}'", "he${HOME}"),
    ("${nope}}", "}"),
    ("안녕$WORD", "안녕한국어"),
    ("안'녕'", "안녕"),
    ("$WORD한", ""),
    ("${nope:-$HOME}", "/home"),
    ("${nope:-${SHELL:-x}}", "bash"),
    ("${nope:-${nada:-x}}", "x"),
    ("${nope:-a {b}", "a {b"),
    (r"${nope:-\$HOME:}", "$HOME:"),
    (r"${nope:-\${HOME}z}", "${HOMEz}"),
    ("${nope:-'a b'} c", "a b c"),
    ("\"${nope:-'a b'}\"", "a b"),
    ("${EMPTY-x}|${EMPTY:-x}|${nope-x}", "|x|x"),
    ("${EMPTY+x}|${EMPTY:+x}|${nope+x}|${HOME:+x}", "x|||x"),
    ("${HOME:+${HOME}:}xx", "/home:xx"),
    ("${HOME?m}|${EMPTY?m}", "/home|"),
]

BROKEN = [
    "he'llo",
    r"he\\'llo",
    '"hello',
    r'"hello\"',
    "${}",
    "${}aaa",
    "${.}",
    "${HOME",
    "${{HOME}",
    "${:}",
    "${:-x}",
    "${HOME:x}",
    "${HOME:=x}",
    "${HOME=x}",
    "${HOME:}",
    "${HOME:-x",
    "${HOME:-x ${y}",
    "${#HOME}",
    "${HOME//x}",
    "${HOME//}",
    "${HOME/x/y",
    r"${HOME#\x}",
    "${nope?m}",
    "${nope:?}",
    "${EMPTY:?m}",
    "한'글",
]

PATTERNS = [
    ("${V#x}", "xxyy", "xyy"),
    ("${V#*}", "xxyy", "xxyy"),
    ("${V##*}", "xxyy", ""),
    ("${V#*x*y}", "xxyy", "y"),
    ("${V##*x}", "xxyy", "yy"),
    ("${V#}", "xxyy", "xxyy"),
    ("${V##}", "xxyy", "xxyy"),
    ("${V#?}", "한글", "글"),
    (r"${V#?\?}", "???y", "?y"),
    (r"${V#()[]{\}^$.\*\?|\\}", "()[]{}^$.*?|\\x", "x"),
    (r"${V%%\**}", "xx**", "xx"),
    (r"${V%%\**\*}", "a***yy*", "a"),
    ("${V%.*}", "a.tar.gz", "a.tar"),
    ("${V%%.*}", "a.tar.gz", "a"),
    ("${V%}", "xxyy", "xxyy"),
    ("${V%x}", "xxyy", "xxyy"),
    ("${V%$HOME}", "a/home", "a"),
    ("${V/a/b}", "banana", "bbnana"),
    ("${V//a/b}", "banana", "bbnbnb"),
    ("${V//a/}", "banana", "bnn"),
    ("${V/n*n/-}", "bananas", "ba-as"),
    ("${V//?a/<>}", "banana", "<><><>"),
    (r"${V//\//\/}", "/a/b", r"\/a\/b"),
    ("${V/$HOME/~}", "x/home/home", "x~/home"),
    ("${V/$EMPTY/w}", "xy", "wxy"),
    ("${V///}", "xy", "xy"),
    ("${V//$EMPTY/-}", "xy", "-x-y-"),
    ("${V//x/$1}", "axb", "ab"),
    ("${V/z/y}", "abc", "abc"),
    ("${V//b*/-}", "ab\nbc\nd", "a-\n-\nd"),
]


@pytest.mark.parametrize(("raw", "expected"), PLAIN)
def test_plain(raw: str, expected: str) -> None:
    assert substitute(raw, ENV).text == expected


@pytest.mark.parametrize("raw", BROKEN)
def test_broken(raw: str) -> None:
    with pytest.raises(SubstitutionError) as caught:
        substitute(raw, ENV)
    assert 0 <= caught.value.offset <= len(raw)


@pytest.mark.parametrize(("raw", "value", "expected"), PATTERNS)
def test_patterns(raw: str, value: str, expected: str) -> None:
    assert substitute(raw, {**ENV, "V": value}).text == expected


def test_backtick_escapes() -> None:
    assert substitute(r"C:\x`$HOME", ENV, "`").text == r"C:\x$HOME"
    assert substitute('"`"`$`x\\"', ENV, "`").text == '"$`x\\'
    assert substitute("${V#`*}", {"V": "*a"}, "`").text == "a"


def test_heredoc_bodies_keep_quotes() -> None:
    """BuildKit puts variables into the body of an unquoted heredoc and takes escapes away, quotes stay."""
    body = 'it\'s "$SHELL" \\$HOME a\\b\n'
    assert substitute(body, ENV, quotes=False).text == 'it\'s "bash" $HOME ab\n'


def test_names_used_are_reported() -> None:
    result = substitute("$HOME ${nope:-$SHELL} ${EMPTY:+$other}", ENV)
    assert result.found == {"HOME", "SHELL", "EMPTY"}
    assert result.missing == {"nope", "other"}


def test_message_of_a_question_mark() -> None:
    with pytest.raises(SubstitutionError, match="nope: set it to /home"):
        substitute("${nope:?set it to $HOME}", ENV)
    with pytest.raises(SubstitutionError, match="EMPTY: must not be empty"):
        substitute("${EMPTY:?}", ENV)


def test_strict_refuses_what_is_not_set() -> None:
    assert substitute("${nope:-x}$HOME", ENV, strict=True).text == "x/home"
    with pytest.raises(SubstitutionError, match="nope is not set"):
        substitute("a$nope", ENV, strict=True)


def test_growth_and_depth_are_bounded() -> None:
    with pytest.raises(SubstitutionError, match="MiB"):
        substitute("$A" * 1000, {"A": "x" * 100_000})
    with pytest.raises(SubstitutionError, match="MiB"):
        substitute("${A//x/$A}", {"A": "x" * 100_000})
    with pytest.raises(SubstitutionError, match=f"{MAX_DEPTH} substitutions"):
        substitute("${a:-" * 500 + "}" * 500, {})


def test_patterns_do_not_backtrack() -> None:
    """Each of these takes exponential or quadratic time in a backtracking matcher."""
    value = "a" * 20_000
    begin = time.perf_counter()
    assert substitute("${V##" + "*a" * 40 + "b}", {"V": value}).text == value
    assert substitute("${V//" + "a*" * 20 + "b/x}", {"V": value}).text == value
    assert substitute("${V%%*" + "?" * 50 + "b}", {"V": value}).text == value
    assert time.perf_counter() - begin < 3
