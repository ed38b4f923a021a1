"""Advantage rules beside GRPO's own: RLOO, MaxRL, OPO, rank; several rewards (GDPO); step rewards; KL in the reward.

Each rule takes totals (N,) with NaN for "no reward", names what else it uses, lets the rest pass, and returns (N,) with
exactly 0 for tied groups and rows without a reward. Not here: GRPO's rule and its three scalings, in `grpo.py`.

    N rows · F reward functions · T completion tokens · S steps of all completions together
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.grpo import STD_EPSILON, group_advantages, zero_without_signal
from lab.rules.dead_groups import DEAD_TOLERANCE
from lab.rules.groups import check_weights, combine_rewards, group_index, group_stats, is_scored, nanstd, sum_by_group, weight_left, wide


def advantages_of(
    rewards_per_func: Tensor,
    weights: Tensor,
    *,
    group_ids: Tensor,
    advantage_rule: str,
    scale_rewards: str,
    multi_objective_aggregation: str,
    lengths: Tensor | None = None,
    penalty: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Totals (N,) and advantages (N,) of rewards (N, F) by any rule; the one call a trainer needs.

    `multi_objective_aggregation` "normalize_then_sum" is GDPO and leaves no room for a rule, a scaling or a penalty.
    `lengths` (N,) in tokens are needed by "opo" only. `penalty` (N,) is taken off the totals: beta times `completion_kl`.
    """
    totals = combine_rewards(rewards_per_func, weights, group_ids=group_ids)
    if penalty is not None:
        totals = totals - penalty
    if multi_objective_aggregation == "normalize_then_sum":
        return totals, normalize_then_sum(rewards_per_func, weights, group_ids=group_ids)
    if multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation is {multi_objective_aggregation!r}; "
            "it must be 'sum_then_normalize' or 'normalize_then_sum'."
        )
    if advantage_rule not in ADVANTAGE_RULES:
        raise ValueError(f"advantage_rule is {advantage_rule!r}; it must be one of {', '.join(ADVANTAGE_RULES)}.")
    rule = ADVANTAGE_RULES[advantage_rule]
    return totals, rule(totals, group_ids=group_ids, scale_rewards=scale_rewards, lengths=lengths)


# ---------------------------------------------------------------- rules for one total per completion


class NegativeReward(ValueError):
    """A rule that divides by the mean reward was given one below 0."""


def grpo_advantages(rewards: Tensor, *, group_ids: Tensor, scale_rewards: str, **_) -> Tensor:
    """(r − mean) / (std + 1e-4), see `grpo.group_advantages`."""
    return group_advantages(rewards, group_ids=group_ids, scale_rewards=scale_rewards)


def rloo_advantages(rewards: Tensor, *, group_ids: Tensor, **_) -> Tensor:
    """r − mean of the *others* (leave one out, arXiv 2402.14740), which is n/(n − 1) · (r − mean).

    >>> rloo_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), group_ids=torch.zeros(4, dtype=torch.long))
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    groups = group_stats(rewards, group_ids=group_ids)
    n = groups.count.clamp(min=2)  # a group of one is dead anyway
    centred = wide(rewards) - groups.mean[groups.index]
    return zero_without_signal(centred * (n / (n - 1))[groups.index], groups).to(rewards.dtype)


def maxrl_advantages(rewards: Tensor, *, group_ids: Tensor, **_) -> Tensor:
    """(r − mean) / mean (MaxRL, arXiv 2602.02710): the rarer success is, the more it counts. Rewards must be ≥ 0.

    >>> maxrl_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), group_ids=torch.zeros(4, dtype=torch.long))
    tensor([ 3., -1., -1., -1.])
    """
    if (rewards < 0).any():
        row = int((rewards < 0).nonzero()[0])
        raise NegativeReward(f"MaxRL divides by the mean reward and needs rewards of at least 0; row {row} has {rewards[row]:g}.")
    groups = group_stats(rewards, group_ids=group_ids)
    mean = groups.mean[groups.index]
    return zero_without_signal((wide(rewards) - mean) / mean, groups).to(rewards.dtype)


def opo_advantages(rewards: Tensor, *, group_ids: Tensor, lengths: Tensor | None, **_) -> Tensor:
    """r − Σ L r / Σ L: a baseline weighted by length, which has the least variance for a token sum (OPO, arXiv 2505.23585).

    >>> lengths = torch.tensor([1, 3])
    >>> opo_advantages(torch.tensor([1.0, 0.0]), group_ids=torch.tensor([0, 0]), lengths=lengths)
    tensor([ 0.7500, -0.2500])
    """
    if lengths is None or lengths.shape != rewards.shape:
        raise ValueError("OPO weights its baseline by completion length: pass lengths (N,) in tokens.")
    groups = group_stats(rewards, group_ids=group_ids)
    length = wide(lengths).where(~rewards.isnan(), 0.0)
    weighted = sum_by_group(length * wide(rewards).nan_to_num(nan=0.0), groups.index)
    baseline = weighted / sum_by_group(length, groups.index)
    return zero_without_signal(wide(rewards) - baseline[groups.index], groups).to(rewards.dtype)


def rank_advantages(rewards: Tensor, *, group_ids: Tensor, **_) -> Tensor:
    """Share of the group beaten minus share lost to, in [−1, 1]: only the order of rewards counts, not their size.

    Mann-Whitney's statistic of one row against the others of its group; an outlier cannot outweigh the rest.

    >>> rank_advantages(torch.tensor([9.0, 0.2, 0.1, 0.1]), group_ids=torch.zeros(4, dtype=torch.long))
    tensor([ 1.0000,  0.3333, -0.6667, -0.6667])
    """
    groups = group_stats(rewards, group_ids=group_ids)
    together = groups.index[:, None] == groups.index[None, :]
    difference = wide(rewards)[:, None] - wide(rewards)[None, :]
    apart = difference.abs() > DEAD_TOLERANCE  # 0.1 + 0.2 does not beat 0.3, and a NaN nobody
    wins = (torch.sign(difference).where(apart & together, 0.0)).sum(-1)  # wins − losses
    others = (groups.count[groups.index] - 1).clamp(min=1)
    return zero_without_signal(wins / others, groups).to(rewards.dtype)


ADVANTAGE_RULES = {
    "grpo": grpo_advantages,
    "rloo": rloo_advantages,
    "maxrl": maxrl_advantages,
    "opo": opo_advantages,
    "rank": rank_advantages,
}


# ---------------------------------------------------------------- several rewards, kept apart until normalised


def normalize_then_sum(rewards_per_func: Tensor, weights: Tensor, *, group_ids: Tensor) -> Tensor:
    """GDPO (arXiv 2601.05242): each function's reward is normalised in its group, then they are summed, then the batch
    is normalised once more. A small reward is not drowned by a large one. Returns (N,)."""
    check_weights(rewards_per_func, weights)
    index = group_index(rewards_per_func, num_generations=None, group_ids=group_ids)
    weights = wide(weights.to(rewards_per_func.device))
    columns = wide(rewards_per_func).unbind(1)
    scores = [group_advantages(column, group_ids=group_ids, scale_rewards="group") for column in columns]
    available = sum_by_group(wide(~rewards_per_func.isnan()), index) > 0
    summed = (torch.stack(scores, dim=1) * weights).sum(-1) * weight_left(available, weights)[index]

    summed = summed.where(is_scored(rewards_per_func, weights), torch.nan)
    normalised = (summed - summed.nanmean()) / (nanstd(summed) + STD_EPSILON)
    alive = [~group_stats(column, group_ids=group_ids).dead & bool(weight) for column, weight in zip(columns, weights, strict=True)]
    has_signal = torch.stack(alive).any(0)[index]
    return normalised.where(has_signal, 0.0).nan_to_num(nan=0.0).to(rewards_per_func.dtype)


# ---------------------------------------------------------------- step rewards (process supervision)


def process_advantages(
    step_rewards: Tensor,
    step_rows: Tensor,
    step_ends: Tensor,
    *,
    group_ids: Tensor,
    completion_mask: Tensor,
    scale_rewards: str,
) -> Tensor:
    """Per-token advantages (N, T) from rewards of single steps (DeepSeekMath §4.1.3).

    Steps are given flat: reward (S,), the row it belongs to (S,), and the index (S,) of the token that ends it. All
    steps of a group are normalised as one set; each token gets the sum of the steps that end at it or later.
    Add `outcome_advantages[:, None]` to mix in rewards of whole completions.
    """
    check_steps(step_rewards, step_rows, step_ends, completion_mask)
    normalised = group_advantages(step_rewards, group_ids=group_ids[step_rows], scale_rewards=scale_rewards)
    at_step_ends = normalised.new_zeros(completion_mask.shape)
    at_step_ends = at_step_ends.index_put((step_rows, step_ends), normalised, accumulate=True)
    still_to_come = at_step_ends.flip(-1).cumsum(-1).flip(-1)
    return still_to_come * completion_mask.bool()


def step_end_tokens(step_ends: Tensor, token_ends: Tensor) -> Tensor:
    """The token (S,) in which each step of one completion ends, both given as character positions in its text.

    `token_ends` (L,) says where the text of each token ends; tokens without text repeat the position before them.
    """
    if len(step_ends) and len(token_ends) and step_ends.max() > token_ends[-1]:
        raise ValueError(f"A step ends at character {int(step_ends.max())}, after the end of the text, {int(token_ends[-1])}.")
    return torch.searchsorted(token_ends.contiguous(), step_ends.contiguous())


def check_steps(step_rewards: Tensor, step_rows: Tensor, step_ends: Tensor, completion_mask: Tensor) -> None:
    if not step_rewards.shape == step_rows.shape == step_ends.shape:
        raise ValueError("step_rewards, step_rows and step_ends must have one entry per step each.")
    lengths = completion_mask.bool().sum(-1)
    outside = (step_ends < 0) | (step_ends >= lengths[step_rows])
    if outside.any():
        step = int(outside.nonzero()[0])
        row = int(step_rows[step])
        raise ValueError(f"Step {step} ends at token {int(step_ends[step])}, but completion {row} has {int(lengths[row])} tokens.")


# ---------------------------------------------------------------- KL in the reward


def completion_kl(old_per_token_logps: Tensor, ref_per_token_logps: Tensor, completion_mask: Tensor) -> Tensor:
    """Σ_t (log π_old − log π_ref) (N,), in nats: beta times it is what RLHF before GRPO took off a reward (arXiv 2203.02155, RLOO).

    The sum of k1 over the completion is an unbiased estimate of its KL. As part of the reward it needs no gradient.
    """
    return (old_per_token_logps - ref_per_token_logps).detach().where(completion_mask.bool(), 0.0).sum(-1)
