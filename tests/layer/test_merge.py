"""merge, diff and apply: laws over random edit scripts, the fault rows, and real overlay mounts as the judge."""

from __future__ import annotations

import random
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerkit.errors import InputError
from layerkit.layer.compare import differences, tree_digest, trees_equal
from layerkit.layer.merge import apply, diff, is_empty_difference, merge
from layerkit.layer.scan import scan_directory
from layerkit.layer.tree import Inode, find, walk
from layerkit.layer.whiteouts import is_opaque, is_whiteout, make_whiteout, set_opaque
from tests.layer.layer_trees import (
    clone,
    directory,
    edit,
    edit_on_disk,
    file,
    materialise,
    mounted_overlay,
    random_layer,
    read_view,
    read_whole,
    scripts,
    symlink,
)


def assert_equal(one: Inode, other: Inode) -> None:
    assert [(d.path, d.kind, d.fields) for d in differences(one, other)] == []


def paths_of(root: Inode) -> list[bytes]:
    return [path for path, _ in walk(root)][1:]


# Laws


@given(scripts, scripts, scripts)
@settings(max_examples=150, deadline=None)
def test_b22_a_difference_turns_one_tree_into_the_other(first: list, second: list, third: list) -> None:
    base = edit(directory(), first)
    middle = edit(base, second)
    top = edit(middle, third)
    below, above = diff(base, middle), diff(middle, top)
    assert_equal(apply(base, below), middle)
    assert_equal(merge([base, below, above]), top)
    assert_equal(merge([merge([base, below]), above]), top)
    assert_equal(apply(base, diff(base, top)), top)
    for layer in (below, above):
        assert not any(is_opaque(inode) for _, inode in walk(layer))


@given(scripts, scripts)
@settings(max_examples=150, deadline=None)
def test_b22_no_entry_of_a_difference_can_be_left_out(first: list, second: list) -> None:
    base = edit(directory(), first)
    top = edit(base, second)
    layer = diff(base, top)
    for path in paths_of(layer):
        less = clone(layer)
        head, _, name = path.rpartition(b"/")
        parent = find(less, head)
        assert parent is not None
        del parent.entries[name]
        assert not trees_equal(apply(base, less), top), path


@given(scripts)
@settings(max_examples=50, deadline=None)
def test_b21_no_change_is_an_empty_difference(script: list) -> None:
    tree = edit(directory(), script)
    layer = diff(tree, clone(tree))
    assert layer.entries == {}
    assert is_empty_difference(tree, layer)
    assert_equal(merge([tree]), tree)


def test_merge_does_not_change_its_inputs() -> None:
    layers = [random_layer(random.Random(seed)) for seed in range(4)]
    before = [tree_digest(layer) for layer in layers]
    merged = merge(layers)
    for _, inode in walk(merged):
        if inode.is_dir:
            inode.xattrs[b"user.mine"] = b""
            inode.entries[b"mine"] = file()
    assert [tree_digest(layer) for layer in layers] == before


# Fault rows


def test_l18_b18_recreated_directory_hides_what_it_held() -> None:
    with_file = directory({b"d": directory({b"a": file(b"old")})})
    without = directory()
    again = directory({b"d": directory({b"b": file(b"new")})})
    steps = [with_file, diff(with_file, without), diff(without, again)]
    assert_equal(merge(steps), again)
    assert_equal(apply(with_file, diff(with_file, merge(steps))), again)
    assert sorted(diff(with_file, again).entries[b"d"].entries) == [b"a", b"b"]


def test_l18_opaque_directory_and_opaque_root_hide_lower_layers() -> None:
    lower = directory({b"d": directory({b"a": file()}), b"x": file()})
    upper = directory({b"d": directory({b"b": file()})})
    set_opaque(upper.entries[b"d"])
    merged = merge([lower, upper])
    assert paths_of(merged) == [b"d", b"d/b", b"x"]
    assert not any(is_opaque(inode) for _, inode in walk(merged))
    set_opaque(upper)
    assert paths_of(merge([lower, upper])) == [b"d", b"d/b"]


def test_l18_something_between_parts_directories_for_good() -> None:
    lower = directory({b"d": directory({b"a": file()})})
    for between in (file(), symlink(b"x"), make_whiteout()):
        merged = merge([lower, directory({b"d": between}), directory({b"d": directory({b"b": file()})})])
        assert paths_of(merged) == [b"d", b"d/b"]


def test_b19_directory_replaced_by_symlink_is_one_entry() -> None:
    lower = directory({b"d": directory({b"a": file(), b"s": directory({b"t": file()})})})
    layer = diff(lower, directory({b"d": symlink(b"/else")}))
    assert paths_of(layer) == [b"d"]
    assert layer.entries[b"d"].is_symlink


def test_b18_symlink_or_file_replaced_by_directory_needs_no_whiteout() -> None:
    for old in (file(), symlink(b"x")):
        layer = diff(directory({b"d": old}), directory({b"d": directory({b"a": file()})}))
        assert paths_of(layer) == [b"d", b"d/a"]
        assert not any(is_whiteout(inode) for _, inode in walk(layer))


def test_b03_changed_directory_alone_and_unchanged_parents_keep_their_attributes() -> None:
    lower = directory({b"tmp": directory({b"d": directory({b"a": file()})}, 0o1777, mtime_ns=5)}, uid=3)
    upper = clone(lower)
    upper.entries[b"tmp"].entries[b"d"].mode = stat.S_IFDIR | 0o700
    layer = diff(lower, upper)
    assert paths_of(layer) == [b"tmp", b"tmp/d"]
    assert (layer.entries[b"tmp"].mode, layer.entries[b"tmp"].mtime_ns, layer.uid) == (stat.S_IFDIR | 0o1777, 5, 3)


def test_deleted_directory_is_one_whiteout() -> None:
    lower = directory({b"d": directory({b"a": file(), b"e": directory({b"b": file()})})})
    layer = diff(lower, directory())
    assert paths_of(layer) == [b"d"]
    assert is_whiteout(layer.entries[b"d"])


@pytest.mark.parametrize("mode", [stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_l19_l20_hard_links_of_every_type_stay_one_inode(mode: int) -> None:
    body = b"x" if mode in (stat.S_IFREG, stat.S_IFLNK) else None
    rdev = 259 if mode in (stat.S_IFCHR, stat.S_IFBLK) else 0
    linked = Inode(mode | 0o600, rdev=rdev, body=body)
    tree = directory({b"a": linked, b"d": directory({b"b": linked, b"e": directory({b"c": linked})})})
    layer = diff(directory(), tree)
    assert find(layer, b"a") is find(layer, b"d/b") is find(layer, b"d/e/c") is not None
    assert_equal(merge([directory(), layer]), tree)


def test_b29_changed_link_group_is_written_with_all_its_names() -> None:
    linked = file(b"old")
    lower = directory({b"a": linked, b"b": linked, b"c": file()})
    upper = clone(lower)
    upper.entries[b"a"].body = b"new"
    layer = diff(lower, upper)
    assert sorted(layer.entries) == [b"a", b"b"]
    assert layer.entries[b"a"] is layer.entries[b"b"]


def test_b29_new_name_of_an_old_inode_brings_the_group() -> None:
    lower = directory({b"a": file(b"1")})
    upper = clone(lower)
    upper.entries[b"b"] = upper.entries[b"a"]
    layer = diff(lower, upper)
    assert sorted(layer.entries) == [b"a", b"b"]
    assert layer.entries[b"a"] is layer.entries[b"b"]


def test_b29_removed_name_of_a_link_is_a_whiteout_alone() -> None:
    linked = file(b"1")
    lower = directory({b"a": linked, b"b": linked})
    layer = diff(lower, directory({b"a": file(b"1")}))
    assert sorted(layer.entries) == [b"b"]
    assert is_whiteout(layer.entries[b"b"])


def test_b29_links_that_came_apart_are_written_but_one() -> None:
    linked = file(b"1")
    lower = directory({b"a": linked, b"b": linked, b"c": linked})
    pair = file(b"1")
    upper = directory({b"a": file(b"1"), b"b": pair, b"c": pair})
    layer = diff(lower, upper)
    assert sorted(layer.entries) == [b"a"]
    assert_equal(apply(lower, layer), upper)


def test_b24_a_whiteout_in_a_merged_tree_is_refused() -> None:
    with pytest.raises(InputError, match="d/w: a whiteout"):
        diff(directory(), directory({b"d": directory({b"w": make_whiteout()})}))


def test_deep_trees_need_no_recursion() -> None:
    deep = directory()
    at = deep
    for _ in range(5000):
        at.entries[b"d"] = directory()
        at = at.entries[b"d"]
    at.entries[b"f"] = file()
    layer = diff(directory(), deep)
    assert len(paths_of(merge([directory(), layer]))) == 5001
    assert trees_equal(layer, deep)


# The kernel's overlayfs as the judge


@pytest.mark.privileged
@given(st.lists(st.integers(0, 1 << 30), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_b22_any_stack_of_layers_is_what_overlayfs_shows(tmp_path_factory: pytest.TempPathFactory, seeds: list) -> None:
    base = tmp_path_factory.mktemp("stack")
    layers = [random_layer(random.Random(seed)) for seed in seeds]
    for number, layer in enumerate(layers):
        (base / str(number)).mkdir()
        materialise(layer, base / str(number))
    lowers = [base / str(number) for number in reversed(range(len(layers)))]
    with mounted_overlay(lowers, base / "m") as view:
        assert_equal(merge(layers), read_view(view))


@pytest.mark.privileged
@given(scripts, scripts, scripts)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_b22_b23_edits_through_overlayfs_become_the_difference(
    tmp_path_factory: pytest.TempPathFactory, first: list, second: list, third: list
) -> None:
    """Two sessions write through overlays; their upper directories are read as layers; explicit whiteouts suffice."""
    base = tmp_path_factory.mktemp("edits")
    for name in ("lower", "upper1", "work1", "upper2", "work2"):
        (base / name).mkdir()
    edit_on_disk(base / "lower", first)
    layers = [scan_directory(base / "lower", read_content=read_whole)]
    lowers = [base / "lower"]
    for number, script in ((1, second), (2, third)):
        upper = base / f"upper{number}"
        with mounted_overlay(lowers, base / "m", upper=upper, work=base / f"work{number}") as view:
            edit_on_disk(view, script)
            shown = read_view(view)
        found = scan_directory(upper, read_content=read_whole, overlay_upper=True)
        assert_equal(merge([*layers, found]), shown)
        layers.append(diff(merge(layers), shown))
        assert_equal(merge(layers), shown)
        lowers.insert(0, upper)
    explicit = []
    for number, layer in enumerate(layers):
        (base / f"e{number}").mkdir()
        materialise(layer, base / f"e{number}")
        explicit.insert(0, base / f"e{number}")
    with mounted_overlay(explicit, base / "m") as view:
        assert_equal(read_view(view), shown)


@pytest.mark.privileged
def test_b23_the_same_view_in_a_user_namespace(tmp_path: Path) -> None:
    """Outputs hold explicit whiteouts only, which userxattr mounts honour as well as root's do."""

    lower = directory({b"d": directory({b"old": file(b"1")}), b"gone": file(b"2")})
    upper = directory({b"d": directory({b"new": file(b"3")})})
    for name, layer in (("lower", lower), ("upper", diff(lower, upper))):
        (tmp_path / name).mkdir()
        materialise(layer, tmp_path / name)
    with mounted_overlay([tmp_path / "upper", tmp_path / "lower"], tmp_path / "m") as view:
        shown = [str(path.relative_to(view)) for path in sorted(view.rglob("*"))]
    command = (
        f"mount -t overlay overlay -o userxattr,lowerdir={tmp_path}/upper:{tmp_path}/lower {tmp_path}/m"
        f" && cd {tmp_path}/m && find . -mindepth 1 | sed 's,^./,,' | LC_ALL=C sort"
    )
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == shown == ["d", "d/new"]
