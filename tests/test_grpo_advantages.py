"""GRPO's own rule: advantages of a group under its three scalings, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.grpo import group_advantages
from tests.test_grpo import NAN

TWO_GROUPS = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 1])


@pytest.mark.parametrize(
    "scale_rewards, expected",
    [
        # group std is 1/2 in both: 3/4 / 0.5001 = 1.4997 and −1/4 / 0.5001 = −0.4999
        ("group", [1.4997, -0.4999, -0.4999, -0.4999, 0.4999, 0.4999, -1.4997, 0.4999]),
        # batch: four ones of eight, 8 · (1/2)² / 7 = 2/7, root 0.53452: 3/4 / 0.53462 = 1.4029
        ("batch", [1.4029, -0.4676, -0.4676, -0.4676, 0.4676, 0.4676, -1.4029, 0.4676]),
        ("none", [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, -0.75, 0.25]),
    ],
)
def test_two_groups_of_four(scale_rewards, expected):
    advantages = group_advantages(TWO_GROUPS, num_generations=4, scale_rewards=scale_rewards)
    assert torch.allclose(advantages, torch.tensor(expected), rtol=0, atol=5e-5)


def test_the_debate_group_of_four_students():
    # 1, 0.9, 0, 1: mean 0.725; squares 0.0756 + 0.0306 + 0.5256 + 0.0756 = 0.7075, / 3, root 0.48563
    # 0.275 / 0.48573 = 0.5662;  0.175 / 0.48573 = 0.3603;  −0.725 / 0.48573 = −1.4926
    advantages = group_advantages(torch.tensor([1.0, 0.9, 0.0, 1.0]), num_generations=4, scale_rewards="group")
    assert advantages.tolist() == pytest.approx([0.5662, 0.3603, -1.4926, 0.5662], abs=5e-5)


def test_booleans_mean_what_they_mean_in_trl():
    for boolean, name in ((True, "group"), (False, "none")):
        by_name = group_advantages(TWO_GROUPS, num_generations=4, scale_rewards=name)
        assert torch.equal(group_advantages(TWO_GROUPS, num_generations=4, scale_rewards=boolean), by_name)


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1e6])
def test_all_equal_group_gets_zero_advantage(scale_rewards, reward):
    rewards = torch.tensor([reward] * 7 + [0.0, 1.0])
    group_ids = torch.tensor([0] * 7 + [1, 1])
    advantages = group_advantages(rewards, group_ids=group_ids, scale_rewards=scale_rewards)
    assert (advantages[:7] == 0).all() and (advantages[7:] != 0).all()


def test_a_group_tied_up_to_rounding_gets_exactly_zero():
    """0.7 + 0.1 + 0.2 and 1.0 differ by 6e-8 in float32; over std + 1e-4 that would be a push of 6e-4."""
    rewards = torch.tensor([1.0, 1.0 - 6e-8, 1.0, 1.0])
    assert rewards.unique().numel() == 2
    assert (group_advantages(rewards, num_generations=4, scale_rewards="group") == 0).all()


def test_a_row_without_a_reward_gets_zero_and_does_not_move_the_others():
    with_it = group_advantages(torch.tensor([1.0, NAN, 0.0, 0.0]), num_generations=4, scale_rewards="group")
    without = group_advantages(torch.tensor([1.0, 0.0, 0.0]), num_generations=3, scale_rewards="group")
    assert with_it[1] == 0
    assert torch.equal(with_it[[0, 2, 3]], without)


def test_groups_of_two_with_a_tiny_difference_stay_finite():
    """Users saw NaN after hundreds of steps with G = 2: the std went to zero under the advantage."""
    # differences 2e-5: std √2 · 1e-5, advantage 1e-5 / (1.41e-5 + 1e-4) = 0.0876
    advantages = group_advantages(torch.tensor([0.5, 0.50002]), num_generations=2, scale_rewards="group")
    assert advantages.abs().tolist() == pytest.approx([0.0876, 0.0876], abs=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_membership_is_data_not_position(data):
    sizes = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    rewards = torch.tensor(data.draw(st.lists(st.floats(-2, 2, width=32), min_size=sum(sizes), max_size=sum(sizes))))
    group_ids = torch.repeat_interleave(torch.tensor(data.draw(st.permutations([5, -3, 11, 0])))[: len(sizes)], torch.tensor(sizes))
    order = torch.tensor(data.draw(st.permutations(range(sum(sizes)))))
    for scale_rewards in ("group", "batch", "none"):
        straight = group_advantages(rewards, group_ids=group_ids, scale_rewards=scale_rewards)
        shuffled = group_advantages(rewards[order], group_ids=group_ids[order], scale_rewards=scale_rewards)
        assert torch.allclose(straight[order], shuffled, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12))
def test_advantages_of_a_group_add_up_to_zero(rewards):
    advantages = group_advantages(torch.tensor(rewards), num_generations=len(rewards), scale_rewards="group")
    assert advantages.sum().abs() < 1e-4 and advantages.isfinite().all()


def test_a_duplicate_prompt_is_a_group_of_its_own():
    """The same prompt twice in a batch: its two groups are told apart by id and not mixed."""
    one = group_advantages(TWO_GROUPS[:4], num_generations=4, scale_rewards="group")
    twice = group_advantages(TWO_GROUPS[:4].repeat(2), group_ids=torch.tensor([0, 1] * 4).sort().values, scale_rewards="group")
    assert torch.equal(twice, one.repeat(2))


def test_an_unknown_scaling_is_refused():
    with pytest.raises(ValueError, match="'group', 'batch' or 'none'"):
        group_advantages(TWO_GROUPS, num_generations=4, scale_rewards="std")
