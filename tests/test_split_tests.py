"""Tests of a program, split into the call that it answers and the value that is expected."""

# ruff: noqa: E501  (tables of source text)

import ast

import pytest

from lab.rewards.sandbox.split_tests import split_tests


@pytest.mark.parametrize("test, call, comparison, expected", [
    ("assert f(1) == 2", "f(1)", "==", "2"),
    ("assert 2 == f(1)", "f(1)", "==", "2"),
    ("assert f(1) == 2, 'message'", "f(1)", "==", "2"),
    ("assert f(1) != 2", "f(1)", "!=", "2"),
    ("assert f(1) is None", "f(1)", "is", "None"),
    ("assert f(1) is not True", "f(1)", "is not", "True"),
    ("assert f(1) in (1, 2)", "f(1)", "in", "(1, 2)"),
    ("assert f(1) not in [1]", "f(1)", "not in", "[1]"),
    ("assert f(1) < 3", "f(1)", "<", "3"),
    ("assert 3 < f(1)", "f(1)", ">", "3"),
    ("assert 3 >= f(1)", "f(1)", "<=", "3"),
    ("assert f(1)", "f(1)", "truth", "True"),
    ("assert not f(1)", "f(1)", "truth", "False"),
    ("assert set(f([1, 2])) == {1, 2}", "set(f([1, 2]))", "==", "{1, 2}"),
    ("assert len(f(3)) == 3", "len(f(3))", "==", "3"),
    ("assert [f(x) for x in range(3)] == [0, 1, 4]", "[f(x) for x in range(3)]", "==", "[0, 1, 4]"),
    ("assert Solution().solve(2) == [1]", "Solution().solve(2)", "==", "[1]"),
    ("assert f(1)[0] == 'a'", "f(1)[0]", "==", "'a'"),
    ("assert f(1) == sorted([3, 1])", "f(1)", "==", "sorted([3, 1])"),
    ("assert abs(f(1) - 0.5) < 0.01", "f(1)", "==", "0.5"),
    ("assert abs(0.5 - f(1)) <= 0.01", "f(1)", "==", "0.5"),
    ("import math\nassert math.isclose(f(1), 0.5, rel_tol=0.1)", "f(1)", "==", "0.5"),
    ("from pytest import approx\nassert f(1) == approx(0.5)", "f(1)", "==", "0.5"),
])
def test_an_assert_is_split_into_call_and_expected(test, call, comparison, expected):
    split = split_tests(test)
    [check] = split.checks
    assert (check.call, check.comparison, check.expected) == (call, comparison, expected) and split.unused == ()


@pytest.mark.parametrize("test", [
    "assert f(1) == g(1)", "assert 1 == 1", "assert True", "assert is_sorted(f(1)) and f(2)", "assert all(f(x) for x in range(3))",
    "assert isinstance(f(1), int)", "assert 1 < f(1) < 3", "for x in range(3):\n    assert f(x) == x", "assert f(1) == f(2)",
    "def test():\n    assert f(1) == 1", "with x: assert f(1) == 1", "assert 3 in f(1)",
])
def test_an_assert_that_would_take_the_programs_word_is_not_used(test):
    split = split_tests(test)
    assert split.checks == () and split.unused == (ast.unparse(ast.parse(test)),)


def test_a_helper_of_the_tests_is_not_mistaken_for_the_program():
    split = split_tests("def is_even(x): return x % 2 == 0\nassert is_even(f(2))\nassert is_even(f(2)) == True")
    assert split.unused == ("assert is_even(f(2))",)
    assert split.checks[0].setup.startswith("def is_even")


def test_setup_goes_only_to_the_side_that_uses_it():
    [check] = split_tests("import random\nseed = 3\nanswers = {3: 'secret'}\nrandom.seed(seed)\nx = random.random()\nassert f(x, seed) == answers[3]").checks
    assert check.setup == "import random\nseed = 3\nrandom.seed(seed)\nx = random.random()"
    assert check.expected_setup == "answers = {3: 'secret'}"


@pytest.mark.parametrize("tests", ["assert f( == 1", "assert f(1) == 1\0", "(" * 5000, "assert f() == '\ud800'", "x" * 300_000])
def test_tests_that_are_not_python_are_refused_with_a_sentence(tests):
    with pytest.raises(ValueError, match="the tests"):
        split_tests(tests)
