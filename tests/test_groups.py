"""Group statistics and totals of several rewards."""

from __future__ import annotations

import pytest
import torch

from lab.rules.groups import combine_rewards, group_stats

NAN = float("nan")


def test_statistics_of_two_groups_by_hand():
    # [1, 0, 0, 0]: mean 1/4; squares (3/4)² + 3 (1/4)² = 12/16, / 3 = 1/4, root 1/2
    # [1, 1]: mean 1, no spread
    groups = group_stats(torch.tensor([1.0, 0, 0, 0, 1, 1]), group_ids=torch.tensor([7, 7, 7, 7, 2, 2]))
    assert groups.index.tolist() == [1, 1, 1, 1, 0, 0]  # ascending by id: 2 comes first
    assert groups.count.tolist() == [2, 4]
    assert groups.mean.tolist() == [1.0, 0.25]
    assert groups.std.tolist() == [0.0, 0.5]
    assert groups.dead.tolist() == [True, False]


def test_a_group_tied_up_to_float32_rounding_is_dead():
    tied = torch.tensor([0.8 * 1 + 0.2 * 1, 1.0, 0.1 * 3 + 0.7])  # 1.0 by three routes
    rounding = torch.tensor([0.0, 6e-8, -6e-8])
    assert group_stats(tied + rounding, num_generations=3).dead.all()
    assert not group_stats(torch.tensor([0.1, 0.1, 0.1001]), num_generations=3).dead.any()
    assert group_stats(torch.tensor([0.1, 0.1, 0.1001]), num_generations=3, tolerance=1e-3).dead.all()


def test_a_reward_that_is_nan_takes_no_part_in_mean_and_std():
    # 1 and 0 remain: mean 1/2, squares 1/4 + 1/4, / 1, root 0.7071
    groups = group_stats(torch.tensor([1.0, NAN, 0.0]), num_generations=3)
    assert groups.count.tolist() == [2]
    assert groups.mean.tolist() == [0.5]
    assert groups.std.item() == pytest.approx(0.5**0.5)


def test_a_group_nobody_scored_has_no_mean_and_is_dead():
    groups = group_stats(torch.tensor([NAN, NAN]), num_generations=2)
    assert groups.mean.isnan().all() and groups.dead.all()


def test_total_is_the_weighted_sum():
    # 0.8 · 1 + 0.2 · 0.5 = 0.9;  0.8 · 0 + 0.2 · 1 = 0.2
    totals = combine_rewards(torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.tensor([0.8, 0.2]), num_generations=2)
    assert totals.tolist() == pytest.approx([0.9, 0.2])


def test_a_function_that_applies_to_nobody_in_a_group_leaves_its_weight_to_the_others():
    # Σ|w| = 4, available 1: the first reward counts four times
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN]])
    assert combine_rewards(rewards, torch.tensor([1.0, 3.0]), num_generations=2).tolist() == [4.0, 0.0]


def test_none_for_some_of_a_group_makes_nobody_better_or_worse():
    """Two equally good answers; the second function is silent on one. Counted as 0 it would lose to the other."""
    rewards = torch.tensor([[0.5, 1.0], [0.5, NAN], [0.5, 1.0]])
    totals = combine_rewards(rewards, torch.tensor([1.0, 1.0]), num_generations=3)
    assert totals.tolist() == [1.5, 1.5, 1.5]
    assert group_stats(totals, num_generations=3).dead.all()


def test_a_row_without_any_reward_is_left_out():
    rewards = torch.tensor([[1.0, 0.0], [NAN, NAN], [0.0, 1.0]])
    totals = combine_rewards(rewards, torch.tensor([1.0, 1.0]), num_generations=3)
    assert totals.isnan().tolist() == [False, True, False]


def test_a_row_scored_only_by_a_function_of_weight_zero_is_left_out():
    totals = combine_rewards(torch.tensor([[1.0, 0.3], [NAN, 0.9]]), torch.tensor([1.0, 0.0]), num_generations=2)
    assert totals[0] == 1.0 and totals[1].isnan()


def test_a_penalty_may_have_a_negative_weight():
    # 2 − 1 = 1 for the sum of weights |1| + |−1| = 2, all available
    assert combine_rewards(torch.tensor([[2.0, 1.0]]), torch.tensor([1.0, -1.0]), num_generations=1).tolist() == [1.0]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: group_stats(torch.ones(4)), "exactly one"),
        (lambda: group_stats(torch.ones(4), num_generations=3), "cannot be cut"),
        (lambda: group_stats(torch.ones(4), group_ids=torch.zeros(3)), "there are 4 rows"),
        (lambda: group_stats(torch.tensor([1.0, float("inf")]), num_generations=2), "row 1 is infinite"),
        (lambda: group_stats(torch.tensor([1, 0]), num_generations=2), "float tensor"),
        (lambda: combine_rewards(torch.ones(2, 3), torch.ones(2), num_generations=2), r"\(N, F\) and \(F,\)"),
        (lambda: combine_rewards(torch.tensor([[1.0, float("inf")]]), torch.ones(2), num_generations=1), "function 1"),
    ],
)
def test_what_cannot_be_grouped_is_refused_with_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
