"""From reward functions to the numbers of a group: each function's reward, the weighted total, mean, std, dead or not.

Leaves out advantages (`lab.grpo`). Plain Python floats throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lab.records import Completion, Group
from lab.rewards.contract import Batch, RewardError, TrainerState, call
from lab.rewards.resolve import Reward

DEAD_TOLERANCE = 1e-8  # rewards closer than this (relative above 1) are equal: float noise is not a difference


def score(rewards: Sequence[Reward], weights: Sequence[float] | None, groups: Sequence[Group], *,
          trainer_state: TrainerState | None = None, system_prompt: str | None = None) -> dict[str, float]:
    """Scores every completion of `groups` in place and returns what functions logged with `log_metric`.

    Each function is called once with all completions. Fills `rewards`, `reward` and `extra` of each completion and
    `mean`, `std`, `dead` of each group. Nothing is filled in unless every function gave valid values, so the same groups
    can be scored again after a RewardError.
    """
    weights = [1.0] * len(rewards) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(rewards):
        raise ValueError(f"There are {len(weights)} weights for {len(rewards)} reward functions: give one each.")
    completions = [completion for group in groups for completion in group.completions]
    batch = _batch(groups, trainer_state or TrainerState(), system_prompt)
    outcomes = {reward.name: _call_and_locate(reward, batch, groups) for reward in rewards} if completions else {}

    metrics: dict[str, float] = {}
    for completion in completions:
        completion.rewards, completion.extra = {}, {}
    for name, outcome in outcomes.items():
        metrics.update(outcome.metrics)
        for row, completion in enumerate(completions):
            completion.rewards[name] = outcome.values[row]
            completion.extra.update({column: values[row] for column, values in outcome.extra.items()})
    for completion in completions:
        completion.reward = total(list(completion.rewards.values()), weights)
    for group in groups:
        summarise(group)
    return metrics


def total(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Σ w·r over the functions that apply, times Σ|w| of all over Σ|w| of those; None if none applies.

    So a function that says None neither raises nor lowers the total: the others speak for it. With no None the factor
    is 1 and this is TRL's weighted sum; TRL counts None as 0 instead.
    """
    applicable = [(weight, value) for weight, value in zip(weights, values, strict=True) if value is not None]
    if not applicable:
        return None
    plain_sum = math.fsum(weight * value for weight, value in applicable)
    if len(applicable) == len(weights):
        return plain_sum
    available = math.fsum(abs(weight) for weight, _ in applicable)
    return plain_sum * math.fsum(abs(weight) for weight in weights) / available if available else 0.0


def summarise(group: Group) -> None:
    """Fills mean, sample standard deviation (n − 1) and `dead` from the completions that have a reward."""
    scored = [completion.reward for completion in group.completions if completion.reward is not None]
    if not scored:
        group.mean, group.std, group.dead = None, None, True
        return
    group.mean = math.fsum(scored) / len(scored)
    squares = math.fsum((reward - group.mean) ** 2 for reward in scored)
    group.std = math.sqrt(squares / (len(scored) - 1)) if len(scored) > 1 else 0.0
    group.dead = max(scored) - min(scored) <= DEAD_TOLERANCE * max(1.0, abs(group.mean))


def _batch(groups: Sequence[Group], trainer_state: TrainerState, system_prompt: str | None) -> Batch:
    pairs: list[tuple[Group, Completion]] = [(group, completion) for group in groups for completion in group.completions]
    names = dict.fromkeys(name for group in groups for name in group.row)
    columns = {name: [group.row.get(name) for group, _ in pairs] for name in names if name not in _NOT_COLUMNS}
    return Batch(prompts=[_messages(group, system_prompt) for group, _ in pairs],
                 texts=[completion.text for _, completion in pairs],
                 completion_ids=[list(completion.token_ids) for _, completion in pairs],
                 columns=columns, trainer_state=trainer_state)


# the row's own prompt is passed as `prompts`; the others are names of the call itself
_NOT_COLUMNS = {"prompt", "completion", "completion_ids", "prompts", "completions", "trainer_state", "log_extra", "log_metric"}


def _messages(group: Group, system_prompt: str | None) -> list[dict[str, Any]]:
    if isinstance(group.row.get("prompt"), list):
        return group.row["prompt"]
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": group.prompt}]


def _call_and_locate(reward: Reward, batch: Batch, groups: Sequence[Group]):
    try:
        return call(reward.name, reward.function, batch)
    except RewardError as error:
        error.function = reward.name
        if error.row is not None:
            group, completion = _place(groups, error.row)
            error.place = f"prompt {group + 1}, completion {completion + 1}"
        raise


def _place(groups: Sequence[Group], row: int) -> tuple[int, int]:
    for index, group in enumerate(groups):
        if row < len(group.completions):
            return index, row
        row -= len(group.completions)
    raise IndexError(row)
