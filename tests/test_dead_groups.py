"""The probability that a group teaches nothing."""

from __future__ import annotations

import itertools

import pytest

from lab.rules.dead_groups import smallest_group, tied_probability


def test_the_published_table():
    table = {0.2: (0.68, 0.41, 0.17, 0.03), 0.05: (0.90, 0.81, 0.66, 0.44)}
    for p, expected in table.items():
        assert [round(tied_probability(p, size), 2) for size in (2, 4, 8, 16)] == list(expected)


def test_it_is_the_share_of_tied_outcomes_when_all_are_written_down():
    p, size = 0.3, 5
    outcomes = itertools.product((0, 1), repeat=size)
    tied = sum(p ** sum(o) * (1 - p) ** (size - sum(o)) for o in outcomes if len(set(o)) == 1)
    assert tied_probability(p, size) == pytest.approx(tied)


def test_certain_success_and_certain_failure_are_always_tied():
    assert tied_probability(0.0, 8) == tied_probability(1.0, 8) == 1.0


def test_the_smallest_group_is_just_large_enough():
    size = smallest_group(0.1, at_most=0.5)
    assert tied_probability(0.1, size) <= 0.5 < tied_probability(0.1, size - 1)
    assert smallest_group(0.0, at_most=0.5) is None


@pytest.mark.parametrize("p, size", [(-0.1, 8), (1.1, 8), (0.5, 0)])
def test_impossible_numbers_are_refused(p, size):
    with pytest.raises(ValueError):
        tied_probability(p, size)
