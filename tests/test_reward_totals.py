"""Totals of a group: the weighted sum, what None means in it, its mean and spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.rewards import group_totals
from lab.rules.groups import combine_rewards
from tests.test_rewards import scored


def test_the_total_is_the_weighted_sum():
    # .8·1 + .2·½ and .8·½ + .2·1
    made = scored([lambda completions, **k: [1, 0.5], lambda completions, **k: [0.5, 1]], ["a", "b"], weights=(0.8, 0.2))
    assert [c.reward for c in made.completions] == pytest.approx([0.9, 0.6])


def test_none_is_not_a_zero():
    # the second function applies to nobody: its weight goes to the first, .8·.5·(.8 + .2)/.8 = .5, not .4
    assert group_totals([[0.5, None], [1.0, None]], [0.8, 0.2]) == pytest.approx([0.5, 1.0])
    # it applies to the first alone: the second gets the group's mean of it, .8·1 + .2·.5
    assert group_totals([[0.5, 0.5], [1.0, None]], [0.8, 0.2]) == pytest.approx([0.5, 0.9])
    assert group_totals([[None, None], [1.0, 1.0]], [0.8, 0.2]) == [None, 1.0]
    assert group_totals([[None, 1.0]], [1.0, 0.0]) == [None]  # what applies has no weight
    # a penalty's weight counts by its size: (2·1) · (2 + 1)/2 = 3
    assert group_totals([[1.0, None]], [2.0, -1.0]) == [3.0]

VALUES = st.one_of(st.none(), st.floats(-10, 10, width=32))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3).flatmap(lambda f: st.tuples(
    st.lists(st.floats(-3, 3, width=32).map(lambda w: 0.0 if abs(w) < 1e-3 else w), min_size=f, max_size=f),
    st.lists(st.lists(st.lists(VALUES, min_size=f, max_size=f), min_size=1, max_size=5), min_size=1, max_size=3))))
def test_the_page_and_the_algorithm_mean_the_same_by_none(drawn):
    weights, groups = drawn
    rows = [[math.nan if value is None else value for value in row] for group in groups for row in group]
    ids = [g for g, group in enumerate(groups) for _ in group]
    theirs = combine_rewards(torch.tensor(rows, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64),
                             group_ids=torch.tensor(ids)).tolist()
    ours = [total for group in groups for total in group_totals(group, weights)]
    assert [math.nan if value is None else value for value in ours] == pytest.approx(theirs, rel=1e-9, abs=1e-9, nan_ok=True)


def test_a_completion_without_any_reward_is_left_out_of_mean_and_std():
    made = scored([lambda completions, **k: [1.0, None, 3.0]], ["a", "b", "c"])
    assert [c.reward for c in made.completions] == [1.0, None, 3.0]
    assert made.mean == 2.0 and made.std == pytest.approx(math.sqrt(2)) and made.dead is False


def test_mean_and_sample_std_of_a_group():
    # rewards 1, 0, 0, 0: mean .25, Σ(r−m)² = .5625 + 3·.0625 = .75, std = √(.75/3) = .5
    made = scored([lambda completions, **k: [1, 0, 0, 0]], list("abcd"))
    assert (made.mean, made.std, made.dead) == (0.25, 0.5, False)


def test_equal_rewards_make_a_dead_group_despite_float_noise():
    made = scored([lambda completions, **k: [0.3, 0.1 + 0.2, 0.3]], list("abc"))
    assert made.dead is True
    assert scored([lambda completions, **k: [None, None]], list("ab")).dead is True
    assert scored([lambda completions, **k: [0.0, 1e-5]], list("ab")).dead is False


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_summary_agrees_with_numpy(rewards):
    made = scored([lambda completions, **k: rewards], ["x"] * len(rewards))
    assert made.mean == pytest.approx(np.mean(rewards), abs=1e-9)
    assert made.std == pytest.approx(np.std(rewards, ddof=1), abs=1e-9)
