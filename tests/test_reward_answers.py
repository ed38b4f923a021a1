"""Answers found in a completion and compared with the known one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.rewards.extract import as_number, last_boxed, last_number, same_answer, tagged


@pytest.mark.parametrize("text, found", [
    ("<answer>4</answer>", "4"), ("x <answer> 4\n</answer> y", "4"), ("<answer></answer>", ""),
    ("4", None), ("<answer>4", None), ("4</answer>", None), ("</answer>4<answer>", None),
    ("<answer>4</answer><answer>4</answer>", None), ("<answer><answer>4</answer>", None), ("<ANSWER>4</ANSWER>", None),
])
def test_the_tagged_answer_needs_exactly_one_pair(text, found):
    assert tagged(text) == found


@pytest.mark.parametrize("text, found", [
    (r"\boxed{4}", "4"), (r"\boxed{1} then \boxed{2}", "2"), (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{1} then \boxed{2", "1"), (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\boxed{a\}b}", r"a\}b"), (r"\boxed{}", ""),
    (r"\boxed 4", None), (r"boxed{4}", None), (r"\boxed{" * 5, None), (r"\boxed{\boxed{3}}", "3"),
])
def test_the_last_balanced_box_is_found(text, found):
    assert last_boxed(text) == found


@pytest.mark.parametrize("text, found", [
    ("It is 4.", "4"), ("1 + 2 = 3", "3"), ("from 7 to -3", "-3"), ("5-3", "3"), ("costs $1,234.50.", "1,234.50"),
    ("one half is 1/2", "1/2"), ("3.14", "3.14"), ("v2 and x3", None), ("none", None), ("= −5", "−5"), ("12,5", "12"),
    ("10 apples, 20 pears", "20"), ("(8)", "8"), ("**42**", "42"),
])
def test_the_last_number_is_found(text, found):
    assert last_number(text) == found


@pytest.mark.parametrize("text, value", [
    ("4", 4), ("-4", -4), ("+4", 4), ("4.0", 4), ("0.5", Fraction(1, 2)), ("1/2", Fraction(1, 2)), ("-1 / 2", Fraction(-1, 2)),
    ("1,234", 1234), ("1,234,567.5", Fraction(2469135, 2)), (r"\frac{3}{4}", Fraction(3, 4)), (r"-\dfrac{3}{4}", Fraction(-3, 4)),
    ("$5", 5), (r"\$5", 5), ("5.", 5), ("−5", -5), (" 007 ", 7),
    ("", None), ("four", None), ("4 apples", None), ("1/0", None), ("1e5", None), ("nan", None), ("inf", None), ("12,34", None),
    ("1.2.3", None), ("٣", None), ("9" * 201, None), ("--4", None), ("1/2/3", None),
])
def test_numbers_are_read_exactly(text, value):
    assert as_number(text) == value


@pytest.mark.parametrize("given_text, expected, same", [
    ("4", "4", True), ("4.0", "4", True), ("0.5", "1/2", True), (r"\frac{1}{2}", "0.5", True), ("1,000", "1000", True),
    ("0.1", "1/10", True), ("0.3333333333", "1/3", False), ("4", "5", False), ("even", "even", True), ("even ", " even", True),
    ("New  York", "New York", True), ("Even", "even", False), ("four", "4", False), ("", "", True), ("4 or 5", "4", False),
])
def test_answers_are_compared_exactly(given_text, expected, same):
    assert same_answer(given_text, expected) is same


@given(st.fractions(max_denominator=1000), st.sampled_from(["", " ", "  \n"]))
def test_every_fraction_equals_itself_however_it_is_padded(number, padding):
    assert as_number(f"{padding}{number}{padding}") == number
    assert same_answer(f"{padding}{number}", str(number))


@given(st.integers(-10**12, 10**12), st.text(alphabet=st.characters(exclude_categories=["N", "L"], exclude_characters="-+−_.,/\\")))
def test_the_last_number_is_found_behind_any_punctuation(number, noise):
    assert as_number(last_number(f"{noise} {number} ")) == number


@given(st.text())
def test_extraction_never_raises_and_finds_what_was_put_there(noise):
    tagged(noise), last_boxed(noise), last_number(noise), as_number(noise)
    assert last_boxed(noise + r" \boxed{42}") == "42"
