"""Rewards of a rollout → its advantages: one per completion, or one per token where steps are rewarded.

The page's Sample button and the trainer both come through here. Leaves out the rules themselves (`advantages`), totals
for people to read (`rewards.scoring`) and what is done with dead groups (`collecting`).

    N completions · F reward functions · T completion tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lab.config import RunConfig
from lab.records import Completion, Group
from lab.rewards import RewardError, summarise
from lab.rollout import Rollout
from lab.rules.advantages import NegativeReward, advantages_of, process_advantages, step_end_tokens


def weigh(groups: Sequence[Group], rollout: Rollout, config: RunConfig, *, decode: Callable[[list[int]], str],
          kl: Tensor | None = None) -> Tensor:
    """Advantages (N,), or (N, T) with step rewards, on the rollout's device; also written into the completions.

    Functions that rewarded whole completions and functions that rewarded steps each give their part, and the parts are
    added, a step function's times its weight. `kl` (N,) in nats is taken off the rewards times beta. A completion's own
    `advantage` is then the mean over its tokens, and the array `advantages` has every token's. A group is dead if no
    token of it has an advantage. Raises RewardError for rewards that the advantage rule cannot take, such as rewards of
    steps under another rule than GRPO's.
    """
    completions = [c for group in groups for c in group.completions]
    rows = torch.arange(len(groups)).repeat_interleave(torch.tensor([len(group.completions) for group in groups]))
    stepwise = [name for name in completions[0].rewards if any(name in c.steps for c in completions)]
    if kl is not None:
        take_off(groups, kl * config.beta)
    advantages = _of_whole_completions(completions, rows, stepwise, config, None if kl is None else (kl * config.beta).cpu())
    if stepwise:
        mask = rollout.completion_mask.cpu()
        weights = dict(zip(completions[0].rewards, config.weights, strict=True))
        parts = [weights[name] * _of_steps(name, completions, rows, mask, config, decode) for name in stepwise]
        advantages = (advantages[:, None] + sum(parts)) * mask.bool()
        for row, completion in enumerate(completions):
            completion.arrays["advantages"] = advantages[row, : len(completion.token_ids)].float().numpy().copy()
    per_completion = advantages if not stepwise else advantages.sum(1) / mask.sum(1).clamp(min=1)
    for completion, advantage in zip(completions, per_completion.tolist(), strict=True):
        completion.advantage = advantage
    for index, group in enumerate(groups):
        group.dead = not bool(advantages[rows == index].any())
    return advantages.float().to(rollout.completion_ids.device)


def take_off(groups: Sequence[Group], penalties: Tensor) -> None:
    """Lower each completion's reward by its KL penalty (N,), which its `extra` then names; mean and std follow."""
    completions = [c for group in groups for c in group.completions]
    for completion, penalty in zip(completions, penalties.tolist(), strict=True):
        completion.extra["kl_penalty"] = penalty
        if completion.reward is not None:
            completion.reward -= penalty
    for group in groups:
        summarise(group)


def _of_whole_completions(completions: Sequence[Completion], rows: Tensor, stepwise: Sequence[str], config: RunConfig,
                          penalty: Tensor | None) -> Tensor:
    names = [name for name in completions[0].rewards if name not in stepwise]
    if not names:
        return torch.zeros(len(completions), dtype=torch.float64)
    rewards = torch.tensor([[float("nan") if c.rewards[name] is None else c.rewards[name] for name in names] for c in completions],
                           dtype=torch.float64)
    weight_of = dict(zip(completions[0].rewards, config.weights, strict=True))
    weights = torch.tensor([weight_of[name] for name in names], dtype=torch.float64)
    lengths = torch.tensor([len(c.token_ids) for c in completions])
    try:
        return advantages_of(
            rewards, weights, group_ids=rows, advantage_rule=config.advantage_rule, scale_rewards=config.scale_rewards,
            multi_objective_aggregation=config.multi_objective_aggregation, lengths=lengths, penalty=penalty,
        )[1]
    except NegativeReward as error:
        raise RewardError("", None, f"{error} Choose rewards and weights that never fall below 0, or another advantage_rule.") from error


def _of_steps(name: str, completions: Sequence[Completion], rows: Tensor, mask: Tensor, config: RunConfig,
              decode: Callable[[list[int]], str]) -> Tensor:
    """(N, T) from one function's step rewards."""
    if config.advantage_rule != "grpo":
        raise RewardError(name, None, f"it rewarded single steps, which are compared by GRPO's own rule, and advantage_rule is "
                                      f"{config.advantage_rule}. Set it to grpo, or reward whole completions.")
    values, step_rows, ends = [], [], []
    for row, completion in enumerate(completions):
        steps = completion.steps.get(name) or []
        if steps:
            positions = torch.tensor(token_ends(decode, completion.token_ids))
            ends += step_end_tokens(torch.tensor([end for end, _ in steps]), positions).tolist()
        values += [value for _, value in steps]
        step_rows += [row] * len(steps)
    if not values:
        return torch.zeros(mask.shape, dtype=torch.float64)
    return process_advantages(
        torch.tensor(values, dtype=torch.float64), torch.tensor(step_rows), torch.tensor(ends), group_ids=rows,
        completion_mask=mask, scale_rewards=config.scale_rewards,
    )


def token_ends(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[int]:
    """Where in the text of `ids` each token's text ends, in characters; tokens without text repeat the position before.

    Each token is decoded with the piece before it, as some tokenizers treat a first word specially; a character of
    several tokens belongs to the last of them.
    """
    ids, ends, length, begin, read = list(ids), [], 0, 0, 0
    for i in range(len(ids)):
        before, after = decode(ids[begin:read]), decode(ids[begin : i + 1])
        if not after.endswith("\ufffd"):
            length += len(after) - len(before)
            begin, read = read, i + 1
        ends.append(length)
    if ids:
        ends[-1] = max(ends[-1], len(decode(ids)))
    return ends
