"""Values of a program as they come back from its process, and when two are equal."""

# ruff: noqa: E501  (tables of source text)

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.rewards.sandbox.plain_values import SomethingElse, same, tagged, untagged

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(plain)
def test_values_come_back_as_they_were(value):
    import json

    assert same(untagged(json.loads(json.dumps(tagged(value)))), value)
    assert repr(untagged(tagged(value))) == repr(value)


@pytest.mark.parametrize("value, expected, equal", [
    (2, 2.0, True), (2.0, 2, True), (True, 1, False), (1, True, False), (True, True, True), (0, False, False), (0.1 + 0.2, 0.3, True),
    (1e-12, 0.0, True), (1.0, 1.001, False), (10**30, 10**30 + 1, False), (10**400, 10**400, True), (10**400, 1.5, False), (1.0, "1.0", False),
    ([1, 2], [1.0, 2.0], True), ([1, 2], (1, 2), False), ([1], [1, 2], False), ([True], [1], False), ({1, 2}, {2, 1}, True),
    ({1}, {True}, False), ({1: "a"}, {1: "a"}, True), ({1: "a"}, {True: "a"}, False), ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
    ({"a": 1}, {"a": 1, "b": 2}, False), (frozenset({1}), {1}, True), (None, None, True), (None, 0, False), ("a", "a", True),
    (b"a", "a", False), (float("nan"), float("nan"), True), (float("inf"), float("inf"), True), (float("inf"), float("-inf"), False),
    (1 + 2j, 1 + 2j, True), ([[1, [2]]], [[1, [2.0]]], True), ({(1, 2): 3}, {(1, 2): 3}, True), ("é", "e\u0301", False),
    (SomethingElse("E"), 3, False), ([SomethingElse("E")], [SomethingElse("E")], False),
])
def test_equality_is_pythons_but_for_floats_booleans_and_strangers(value, expected, equal):
    assert same(value, expected) is equal


def test_something_else_is_not_even_equal_to_itself():
    stranger = SomethingElse("E")
    assert same(stranger, stranger) is False
    assert isinstance(untagged(tagged(object())), SomethingElse)
    assert isinstance(untagged(tagged(10**6000)), SomethingElse)


@pytest.mark.parametrize("pair", [
    None, 3, "int", [], ["int"], ["int", 3], ["int", "x"], ["int", "9" * 5000], ["float", 1.0], ["bool", "True"], ["str", 3], ["bytes", "zz"],
    ["list", 3], ["list", "ab"], ["set", [["list", []]]], ["dict", [[["list", []], ["int", "1"]]]], ["dict", {"a": 1}], ["complex", ["1"]],
    ["object", "x"], ["NoneType", 1],
])
def test_a_pair_that_is_not_a_value_is_refused(pair):
    with pytest.raises(ValueError):
        untagged(pair)
