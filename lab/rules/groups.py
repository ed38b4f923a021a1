"""Which rows belong together, and what their rewards add up to: group statistics and the total of several rewards.

Membership is data (`group_ids`), never position: rows may come in any order and groups may differ in size. NaN means
"not applicable" everywhere. Arithmetic is done in float64, so that rounding stays far below the tolerance that tells a tied group.
Not here: advantages (`lab/grpo.py`, `advantages.py`).

    N rows (completions) · K groups, in ascending order of their id · F reward functions
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lab.rules.dead_groups import DEAD_TOLERANCE


class GroupStats(NamedTuple):
    """One entry per group; `index` leads from a row to its group."""

    index: Tensor  # (N,) long
    count: Tensor  # (K,) rows that have a reward
    mean: Tensor  # (K,) float64, NaN where no row has a reward
    std: Tensor  # (K,) float64, sample standard deviation (n − 1), 0 for fewer than two rewards
    dead: Tensor  # (K,) bool: tied, so nothing can be learned from it


def group_stats(
    rewards: Tensor,
    *,
    num_generations: int | None = None,
    group_ids: Tensor | None = None,
    tolerance: float = DEAD_TOLERANCE,
) -> GroupStats:
    """Mean, spread and death of every group of `rewards` (N,). A group is dead when its std is at most `tolerance`."""
    check_rewards(rewards)
    index = group_index(rewards, num_generations=num_generations, group_ids=group_ids)
    scored = ~rewards.isnan()
    values = wide(rewards).nan_to_num(nan=0.0)
    count = sum_by_group(wide(scored), index)
    mean = sum_by_group(values, index) / count  # 0 / 0 = NaN: a group without any reward has no mean
    squares = ((values - mean[index]) ** 2).where(scored, 0.0)
    std = (sum_by_group(squares, index) / (count - 1).clamp(min=1)).sqrt()
    return GroupStats(index, count, mean, std, dead=std <= tolerance)


def combine_rewards(
    rewards_per_func: Tensor,
    weights: Tensor,
    *,
    num_generations: int | None = None,
    group_ids: Tensor | None = None,
) -> Tensor:
    """One total per completion (N,): the weighted sum of its rewards (N, F). `weights` is (F,).

    NaN is neither good nor bad. A function that applies to nobody in a group leaves its weight to the others. A row
    that alone lacks a function gets the group's mean of it: counted as 0, it would look worse than its neighbours. A
    row that no weighted function applies to is left out: its total is NaN.

    >>> nan = float("nan")
    >>> rewards = torch.tensor([[1.0, nan], [0.0, nan], [1.0, 0.5], [1.0, nan]])
    >>> combine_rewards(rewards, torch.tensor([1.0, 3.0]), num_generations=2)
    tensor([4.0000, 0.0000, 2.5000, 2.5000])
    """
    check_weights(rewards_per_func, weights)
    index = group_index(rewards_per_func, num_generations=num_generations, group_ids=group_ids)
    weights = wide(weights.to(rewards_per_func.device))
    applies = ~rewards_per_func.isnan()
    rewards = wide(rewards_per_func)
    count = sum_by_group(wide(applies), index)  # (K, F)
    mean = sum_by_group(rewards.nan_to_num(nan=0.0), index) / count.clamp(min=1)  # (K, F)
    filled = torch.where(applies, rewards, mean[index])
    totals = (filled * weights).sum(-1) * weight_left(count > 0, weights)[index]
    return totals.where(is_scored(rewards_per_func, weights), torch.nan).to(rewards_per_func.dtype)


def is_scored(rewards_per_func: Tensor, weights: Tensor) -> Tensor:
    """Rows (N,) to which at least one function with a weight applies."""
    return (~rewards_per_func.isnan() & (weights != 0)).any(-1)


def weight_left(available: Tensor, weights: Tensor) -> Tensor:
    """Σ|w| over Σ|w| of the functions `available` (K, F) in a group: what missing functions leave to the others (K,)."""
    return weights.abs().sum() / (available * weights.abs()).sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)


def group_index(rewards: Tensor, *, num_generations: int | None, group_ids: Tensor | None) -> Tensor:
    """The group of each row of `rewards` (N, …) as 0 … K−1 (N,): from ids, or from neighbours of `num_generations`."""
    num_rows = len(rewards)
    if (num_generations is None) == (group_ids is None):
        raise ValueError("Say which rows form a group by exactly one of num_generations and group_ids.")
    if group_ids is not None:
        if group_ids.shape != (num_rows,):
            raise ValueError(f"group_ids has shape {tuple(group_ids.shape)}, but there are {num_rows} rows of rewards.")
        return torch.unique(group_ids.to(rewards.device), return_inverse=True)[1]
    if num_generations < 1 or num_rows % num_generations:
        raise ValueError(f"{num_rows} rewards cannot be cut into groups of {num_generations}; use group_ids.")
    return torch.arange(num_rows, device=rewards.device) // num_generations


def sum_by_group(values: Tensor, index: Tensor) -> Tensor:
    """Σ of `values` (N, …) over the rows of each group: (K, …)."""
    num_groups = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(num_groups, *values.shape[1:]).index_add(0, index, values)


def wide(values: Tensor) -> Tensor:
    """In float64, or in float32 on Apple's GPU, which has nothing wider."""
    return values.float() if values.device.type == "mps" else values.double()


def nanstd(values: Tensor) -> Tensor:
    """Sample standard deviation of the values that are not NaN; 0 for fewer than two."""
    kept = values[~values.isnan()]
    return kept.std() if len(kept) > 1 else values.new_zeros(())


def check_rewards(rewards: Tensor) -> None:
    """(N,) floats, none infinite; NaN is "not applicable". Raises ValueError."""
    if rewards.dim() != 1 or not rewards.is_floating_point():
        raise ValueError(f"rewards must be a float tensor of shape (N,), not {rewards.dtype} {tuple(rewards.shape)}.")
    if rewards.isinf().any():
        row = int(rewards.isinf().nonzero()[0])
        raise ValueError(f"The reward in row {row} is infinite; a reward is a finite number, or NaN if not applicable.")


def check_weights(rewards_per_func: Tensor, weights: Tensor) -> None:
    """(N, F) and (F,), no infinite reward. Raises ValueError with row and function."""
    if rewards_per_func.dim() != 2 or weights.shape != rewards_per_func.shape[1:]:
        shapes = f"{tuple(rewards_per_func.shape)} and {tuple(weights.shape)}"
        raise ValueError(f"rewards_per_func and weights are {shapes}; they must be (N, F) and (F,).")
    if rewards_per_func.isinf().any():
        row, func = rewards_per_func.isinf().nonzero()[0].tolist()
        raise ValueError(f"Reward function {func} gave an infinite reward in row {row}.")
