"""`.dockerignore` against the table that moby's patternmatcher publishes, and walks against single answers."""

from __future__ import annotations

import random
import re
import time

import pytest

from layerkit.build.dockerignore import IgnoreRules, clean_path
from layerkit.errors import InputError

# pattern, path, whether the pattern names the path itself, whether the path is left out
SINGLE = [
    ("**", "file", True, True),
    ("**/", "file", True, True),
    ("**", "dir/file", True, True),
    ("**/**", "dir/file", True, True),
    ("dir/**", "dir/file", True, True),
    ("dir/**", "dir/dir2/file", True, True),
    ("dir/**", "dir", False, False),
    ("**/dir", "dir", True, True),
    ("**/dir", "dir/file", False, True),
    ("**/dir2/*", "dir/dir2/file", True, True),
    ("**/dir2/**", "dir/dir2/dir3/file", True, True),
    ("**file", "file", True, True),
    ("**file", "dir/file", True, True),
    ("**/file", "dir/file", True, True),
    ("**file", "dir/dir/file", True, True),
    ("**/file", "dir/dir/file", True, True),
    ("**/file*", "dir/dir/file", True, True),
    ("**/file*", "dir/dir/file.txt", True, True),
    ("**/file*txt", "dir/dir/file.txt", True, True),
    ("**/file*.txt", "dir/dir/file.txt", True, True),
    ("**/file*.txt*", "dir/dir/file.txt", True, True),
    ("**/**/*.txt", "dir/dir/file.txt", True, True),
    ("**/**/*.txt2", "dir/dir/file.txt", False, False),
    ("**/*.txt", "file.txt", True, True),
    ("**/**/*.txt", "file.txt", True, True),
    ("a**/*.txt", "a/file.txt", True, True),
    ("a**/*.txt", "a/dir/file.txt", True, True),
    ("a**/*.txt", "a/dir/dir/file.txt", True, True),
    ("a/*.txt", "a/dir/file.txt", False, False),
    ("a/*.txt", "a/file.txt", True, True),
    ("a/*.txt**", "a/file.txt", True, True),
    ("a[b-d]e", "ae", False, False),
    ("a[b-d]e", "ace", True, True),
    ("a[b-d]e", "aae", False, False),
    ("a[^b-d]e", "aze", True, True),
    (".*", ".foo", True, True),
    (".*", "foo", False, False),
    ("abc.def", "abcdef", False, False),
    ("abc.def", "abc.def", True, True),
    ("abc.def", "abcZdef", False, False),
    ("abc?def", "abcZdef", True, True),
    ("abc?def", "abcdef", False, False),
    (r"a\\", "a\\", True, True),
    (r"a\*b", "a*b", True, True),
    ("**/foo/bar", "foo/bar", True, True),
    ("**/foo/bar", "dir/foo/bar", True, True),
    ("**/foo/bar", "dir/dir2/foo/bar", True, True),
    ("abc/**", "abc/def", True, True),
    ("abc/**", "abc/def/ghi", True, True),
    ("**/.foo", ".foo", True, True),
    ("**/.foo", "bar.foo", False, False),
    ("a(b)c/def", "a(b)c/def", True, True),
    ("a(b)c/def", "a(b)c/xyz", False, False),
    ("a.|)$(}+{bc", "a.|)$(}+{bc", True, True),
    ("dist/proxy.py-2.4.0rc3.dev36+g08acad9-py3-none-any.whl",) * 2 + (True, True),
    ("dist/*.whl", "dist/proxy.py-2.4.0rc3.dev36+g08acad9-py3-none-any.whl", True, True),
    ("docs/", "docs/README.md", False, True),
    ("/docs", "docs/README.md", False, True),
    ("./docs//x/../", "docs/README.md", False, True),
    ("*/temp*", "a/temporary.txt", True, True),
    ("*/temp*", "temporary", False, False),
    ("*/*/temp*", "a/b/temp", True, True),
    ("temp?", "tempa", True, True),
    ("*", "a/b/c", False, True),
    ("na\udcffme", "na\udcffme", True, True),
]

SEVERAL = [
    (["**", "!util/docker/web"], "util/docker/web/foo", False),
    (["**", "!util/docker/web", "util/docker/web/foo"], "util/docker/web/foo", True),
    (["**", "!dist/*.whl"], "dist/a-1.0+g0-any.whl", False),
    (["!file.go", "*.go"], "file.go", True),
    (["*.go", "!file.go"], "file.go", False),
    (["docs", "!docs/README.md"], "docs/README.md", False),
    (["docs/", "!docs/README.md"], "docs/README.md", False),
    (["docs/*", "!docs/README.md"], "docs/README.md", False),
    (["docs", "!docs/README.md"], "docs/other.md", True),
    (["*.md", "!README*.md", "README-secret.md"], "README-secret.md", True),
    (["*.md", "README-secret.md", "!README*.md"], "README-secret.md", False),
    (["*", "!src", "src/*.tmp"], "src/a.c", False),
    (["*", "!src", "src/*.tmp"], "src/a.tmp", True),
    (["*", "!a/b/c"], "a/b/c/d", False),
    (["*", "!a/b/c"], "a/b/x", True),
    (["**/node_modules", "!app/node_modules/keep"], "app/node_modules/keep/x", False),
    (["a", "!a/b", "a/b/c"], "a/b/c/d", True),
    ([" padded ", "\t!padded/x\t"], "padded/x", False),
    (["# comment", "", "x"], "# comment", False),
    ([], "x", False),
]


def rules(*lines: str) -> IgnoreRules:
    return IgnoreRules.parse("\n".join(lines).encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("pattern", "path", "itself", "ignored"), SINGLE)
def test_b36_published_table(pattern: str, path: str, itself: bool, ignored: bool) -> None:
    parsed = rules(pattern)
    assert parsed.patterns[0].matches(path) is itself
    assert parsed.ignores(path) is ignored
    assert parsed.ignores(f"{path}/") is ignored
    assert parsed.ignores(f"./{path}") is ignored


@pytest.mark.parametrize(("lines", "path", "ignored"), SEVERAL)
def test_b36_exceptions(lines: list[str], path: str, ignored: bool) -> None:
    assert rules(*lines).ignores(path) is ignored


def test_b36_an_excluded_folder_with_an_exception_is_entered() -> None:
    parsed = rules("vendor", "!vendor/keep/this.txt", "build", "!other")
    ignored, _ = parsed.enter(parsed.root, "vendor")
    assert ignored
    assert parsed.may_keep_below("vendor")
    assert parsed.may_keep_below("vendor/keep")
    assert not parsed.may_keep_below("vendor/drop")
    assert not parsed.may_keep_below("build")
    assert rules("*", "!**/keep").may_keep_below("any/where")
    assert not rules("*").may_keep_below("a")


def test_the_context_itself_is_never_ignored() -> None:
    assert not rules("**", ".").ignores(".")
    assert not rules("*").ignores("./")


def test_file_form() -> None:
    """Line ends, a byte order mark, comments only in the first column, rooted patterns, blanks behind `!`."""
    parsed = IgnoreRules.parse(b"\xef\xbb\xbf/test\r\n# no\n # yes\n! /inverted/abs\r\n\r\nlast")
    assert [(pattern.negated, pattern.text, pattern.line) for pattern in parsed.patterns] == [
        (False, "test", 1),
        (False, "# yes", 3),
        (True, "inverted/abs", 4),
        (False, "last", 6),
    ]


@pytest.mark.parametrize(("data", "where"), [(b"a\n!\n", "x:2"), (b"[", "x:1"), (b"a\nb\n!c[", "x:3"), (b"a\\", "x:1")])
def test_malformed_lines_are_named(data: bytes, where: str) -> None:
    with pytest.raises(InputError) as caught:
        IgnoreRules.parse(data, "x")
    assert caught.value.where == where


def test_clean_path() -> None:
    for path, cleaned in [
        ("", "."),
        ("a/./b//c/..", "a/b"),
        ("../a", "../a"),
        ("/../a", "/a"),
        ("a/..", "."),
        ("//a", "/a"),
    ]:
        assert clean_path(path) == cleaned


def test_a_walk_agrees_with_single_answers() -> None:
    generator = random.Random(7)
    words = ["a", "b", "ab", "*", "**", "a*", "?", "[ab]", "*b"]
    for _ in range(400):
        lines = [
            generator.choice(["", "!"]) + "/".join(generator.choices(words, k=generator.randint(1, 3)))
            for _ in range(generator.randint(1, 5))
        ]
        parsed = rules(*lines)
        for _ in range(10):
            parts = generator.choices(["a", "b", "ab", "ba"], k=generator.randint(1, 4))
            state, kept_above = parsed.root, True
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                ignored, state = parsed.enter(state, folder)
                kept_above = kept_above and (not ignored or parsed.may_keep_below(folder))
            path = "/".join(parts)
            assert parsed.ignores_entry(state, path) is parsed.ignores(path), (lines, path)
            if not kept_above:
                assert parsed.ignores(path), (lines, path)


def test_a_hundred_thousand_files() -> None:
    parsed = rules(
        ".git", "**/__pycache__", "**/*.pyc", "node_modules", "dist/*.whl", "**/.DS_Store", "!dist/keep.whl", "*.log"
    )
    state = parsed.root
    begin = time.perf_counter()
    for folder in range(1000):
        _, inside = parsed.enter(state, f"src/package{folder}")
        for number in range(100):
            parsed.ignores_entry(inside, f"src/package{folder}/module{number}.py")
    assert time.perf_counter() - begin < 1.5


def reference_expression(pattern: str) -> str:
    """The pattern as moby translates it: one character after the other, without regard to time."""
    built, position = "", 0
    while position < len(pattern):
        if pattern.startswith("**", position):
            position += 2
            position += pattern.startswith("/", position)
            built += ".*" if position == len(pattern) else "(.*/)?"
        elif pattern[position] in "*?":
            built += "[^/]*" if pattern[position] == "*" else "[^/]"
            position += 1
        else:
            built += re.escape(pattern[position])
            position += 1
    return built


def reference_matches(pattern: str, path: str) -> bool:
    rest = pattern[2:]
    if pattern.startswith("**") and not set(rest) & set("*?"):
        return path.endswith(rest) or (rest.startswith("/") and path == rest[1:])
    return re.fullmatch(reference_expression(pattern), path) is not None


def test_patterns_agree_with_a_plain_translation() -> None:
    generator = random.Random(11)
    for _ in range(4000):
        pattern = "".join(generator.choices(["a", "b", "/", "*", "**", "**/", "?"], k=generator.randint(1, 7)))
        pattern = clean_path(pattern).removeprefix("/")
        if not pattern:
            continue
        parsed = rules(pattern)
        for _ in range(5):
            path = clean_path("".join(generator.choices("aabb/", k=generator.randint(1, 9)))).removeprefix("/")
            if path:
                assert parsed.patterns[0].matches(path) is reference_matches(pattern, path), (pattern, path)
