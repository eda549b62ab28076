"""Cache keys: two different inputs never spell the same bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from layerkit.build.keys import step_key

texts = st.one_of(st.sampled_from(["", "a", "b", "1", "ab", "1:a", "s1:a", "n", "l0:"]), st.text(max_size=3))
atoms = st.one_of(st.none(), texts, st.binary(max_size=3), st.integers(-20, 20))
fields = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def plain(value: object) -> object:
    """The value with what counts as equal made equal: types are told apart, lists are not tuples."""
    return [plain(item) for item in value] if isinstance(value, list | tuple) else (type(value), value)


@given(st.lists(fields, max_size=4), st.lists(fields, max_size=4))
def test_b05_different_fields_have_different_keys(one: list[object], other: list[object]) -> None:
    assert (step_key(*one) == step_key(*other)) == (plain(one) == plain(other))  # type: ignore[arg-type]


@given(st.dictionaries(texts, texts, max_size=4))
def test_b05_mappings_count_by_their_items_in_any_order(values: dict[str, str]) -> None:
    backwards = dict(reversed(values.items()))
    assert step_key(values) == step_key(backwards)


def test_neighbours_do_not_run_together() -> None:
    keys = [
        step_key("ab", "c"), step_key("a", "bc"), step_key("abc"), step_key(["ab", "c"]), step_key("ab", ["c"]),
        step_key(b"ab", "c"), step_key("ab", None, "c"), step_key("", "ab", "c"), step_key({"ab": "c"}),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


def test_text_that_is_no_utf8_has_a_key() -> None:
    assert step_key("caf\udce9") != step_key("café")
