"""Go's `filepath.Match`: the table that Go and moby publish, and that no pattern is slow."""

from __future__ import annotations

import time

import pytest

from layerkit.build.gomatch import PatternError, has_wildcards, match

MATCHING = [
    ("abc", "abc"),
    ("*", "abc"),
    ("*", ""),
    ("*c", "abc"),
    ("a*", "a"),
    ("a*", "abc"),
    ("a*/b", "abc/b"),
    ("a*b*c*d*e*/f", "axbxcxdxe/f"),
    ("a*b*c*d*e*/f", "axbxcxdxexxx/f"),
    ("a*b?c*x", "abxbbxdbxebxczzx"),
    ("ab[c]", "abc"),
    ("ab[b-d]", "abc"),
    ("ab[^e-g]", "abc"),
    (r"a\*b", "a*b"),
    ("a?b", "a☺b"),
    ("a[^a]b", "a☺b"),
    ("[a-ζ]*", "α"),
    (r"[\]a]", "]"),
    (r"[\-]", "-"),
    (r"[x\-]", "x"),
    (r"[x\-]", "-"),
    (r"[\-x]", "x"),
    (r"[\-x]", "-"),
    ("*x", "xxx"),
    ("[!a]", "!"),
    ("a.b+(c)", "a.b+(c)"),
    ("***", "abc"),
    ("*a*a", "aa"),
    ("*\udcff", "x\udcff"),
]
NOT_MATCHING = [
    ("a*", "ab/c"),
    ("a*/b", "a/c/b"),
    ("a*b*c*d*e*/f", "axbxcxdxe/xxx/f"),
    ("a*b*c*d*e*/f", "axbxcxdxexxx/fff"),
    ("a*b?c*x", "abxbbxdbxebxczzy"),
    ("ab[e-g]", "abc"),
    ("ab[^c]", "abc"),
    ("ab[^b-d]", "abc"),
    (r"a\*b", "ab"),
    ("a???b", "a☺b"),
    ("a[^a][^a][^a]b", "a☺b"),
    ("*[a-ζ]", "A"),
    ("a?b", "a/b"),
    ("a*b", "a/b"),
    (r"[x\-]", "z"),
    (r"[\-x]", "a"),
    ("[b-a]", "a"),
    ("a.b", "axb"),
    ("*a*a", "a"),
    ("", "a"),
    ("abc", "ABC"),
    ("*", "a/b"),
]
MALFORMED = ["[]a]", "[-]", "[x-]", "[-x]", "\\", "[a-b-c]", "[", "[^", "[^bc", "a[", "[a", "a\\", "[]", "[\\", "[^]"]


@pytest.mark.parametrize(("pattern", "name"), MATCHING)
def test_matches(pattern: str, name: str) -> None:
    assert match(pattern, name)


@pytest.mark.parametrize(("pattern", "name"), NOT_MATCHING)
def test_does_not_match(pattern: str, name: str) -> None:
    assert not match(pattern, name)


@pytest.mark.parametrize("pattern", MALFORMED)
def test_malformed(pattern: str) -> None:
    with pytest.raises(PatternError):
        match(pattern, "a")


def test_wildcards_are_found_unless_escaped() -> None:
    assert [text for text in ("a", r"a\*b", r"\[x", "a*", "[", "?", r"\\*") if has_wildcards(text)] == [
        "a*",
        "[",
        "?",
        r"\\*",
    ]


def test_many_stars_are_linear() -> None:
    begin = time.perf_counter()
    assert not match("a*" * 40 + "b", "a" * 5000)
    assert match("*a" * 40 + "*", "a" * 5000)
    assert time.perf_counter() - begin < 2
