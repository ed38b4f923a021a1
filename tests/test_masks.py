"""Truncated and off-policy completions."""

from __future__ import annotations

import torch

from lab.grpo import group_advantages
from lab.rules.masks import mask_truncated, off_policy_sequence_mask


def test_truncated_completions_leave_the_mask_but_not_the_group():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert mask_truncated(mask, torch.tensor([False, True])).tolist() == [[0, 0, 0], [1, 1, 0]]
    advantages = group_advantages(torch.tensor([0.0, 1.0]), num_generations=2, scale_rewards="none")
    assert advantages.tolist() == [-0.5, 0.5]


def test_a_completion_is_dropped_only_if_pushed_down_and_left_behind():
    # rows: moved away by 1 and A < 0 → drop; same but A > 0 → keep; A < 0 but near (.1) → keep; padding is ignored
    sampling = torch.zeros(3, 3)
    logps = torch.tensor([[-1.0, -1.0, 9.0], [-1.0, -1.0, 9.0], [-0.1, -0.1, -9.0]])
    mask = torch.tensor([[1, 1, 0]] * 3)
    kept = off_policy_sequence_mask(logps, sampling, torch.tensor([-1.0, 1.0, -1.0]), mask, off_policy_mask_threshold=0.5)
    assert kept.tolist() == [[0.0], [1.0], [1.0]]


def test_with_step_advantages_only_the_pushed_down_tokens_are_dropped():
    logps, sampling, mask = torch.full((1, 2), -1.0), torch.zeros(1, 2), torch.ones(1, 2)
    kept = off_policy_sequence_mask(logps, sampling, torch.tensor([[1.0, -1.0]]), mask, off_policy_mask_threshold=0.5)
    assert kept.tolist() == [[1.0, 0.0]]
