"""From reward functions to the numbers of a group: each function's reward, the weighted total, mean, std, dead or not.

Leaves out advantages (`lab.grpo`). Plain Python floats throughout.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, wait
from typing import Any

from lab.records import Completion, Group, RewardAwaited
from lab.rewards.contract import Batch, Outcome, RewardError, TrainerState, call
from lab.rewards.resolve import Reward
from lab.rules.dead_groups import DEAD_TOLERANCE

LOOK_SECONDS = 0.02  # how long a function is waited for before it is told that it is awaited


def score(rewards: Sequence[Reward], weights: Sequence[float] | None, groups: Sequence[Group], *,
          trainer_state: TrainerState | None = None, system_prompt: str | None = None) -> dict[str, float]:
    """Scores every completion of `groups` in place and returns what functions logged with `log_metric`.

    Each function is called once with all completions. Fills `rewards`, `reward` and `extra` of each completion and
    `mean`, `std`, `dead` of each group. Nothing is filled in unless every function gave valid values, so the same groups
    can be scored again after a RewardError.
    """
    steps = scoring(rewards, weights, groups, trainer_state=trainer_state, system_prompt=system_prompt)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def scoring(rewards: Sequence[Reward], weights: Sequence[float] | None, groups: Sequence[Group], *,
            trainer_state: TrainerState | None = None, system_prompt: str | None = None
            ) -> Generator[RewardAwaited, None, dict[str, float]]:
    """`score` for whoever has something else to do while a function waits for something outside, as a judge does.

    Functions still run one after the other and in order. One that says with an attribute `waits_for` what it waits for
    runs in a thread, and RewardAwaited is told until it is done. Left in the middle, nothing is filled in; the thread
    ends by itself.
    """
    weights = [1.0] * len(rewards) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(rewards):
        raise ValueError(f"There are {len(weights)} weights for {len(rewards)} reward functions: give one each.")
    completions = [completion for group in groups for completion in group.completions]
    batch = batch_of(groups, trainer_state or TrainerState(), system_prompt)
    outcomes: dict[str, Outcome] = {}
    for reward in rewards if completions else ():
        outcomes[reward.name] = yield from _outcome(reward, batch, groups)

    metrics: dict[str, float] = {}
    for completion in completions:
        completion.rewards, completion.extra, completion.steps = {}, {}, {}
    for name, outcome in outcomes.items():
        metrics.update(outcome.metrics)
        for row, completion in enumerate(completions):
            completion.rewards[name] = outcome.values[row]
            completion.extra.update({column: values[row] for column, values in outcome.extra.items()})
            if outcome.steps[row] is not None:
                completion.steps[name] = outcome.steps[row]
    for group in groups:
        totals = group_totals([list(completion.rewards.values()) for completion in group.completions], weights)
        for completion, total in zip(group.completions, totals, strict=True):
            completion.reward = total
        summarise(group)
    return metrics


def group_totals(rows: Sequence[Sequence[float | None]], weights: Sequence[float]) -> list[float | None]:
    """One total for each completion of a group from its rewards, one row each: Σ w·r, where None is not applicable.

    A function that applies to nobody in the group leaves its weight to the others: times Σ|w| of all over Σ|w| of those
    that apply. A completion that alone lacks a function gets the group's mean of it. A completion to which no function
    with a weight applies has no total. Without any None this is TRL's weighted sum; TRL counts None as 0 instead. The
    same rule as `groups.combine_rewards`, in plain Python.

    >>> group_totals([[1.0, 0.5], [1.0, None]], [1.0, 3.0]), group_totals([[1.0, None], [0.0, None]], [1.0, 3.0])
    ([2.5, 2.5], [4.0, 0.0])
    """
    means = [_mean_of_given(column) for column in zip(*rows, strict=True)]
    available = math.fsum(abs(weight) for weight, mean in zip(weights, means, strict=True) if mean is not None)
    if not available:
        return [None] * len(rows)
    left = math.fsum(map(abs, weights)) / available
    return [_total(row, weights, means, left) for row in rows]


def _total(row: Sequence[float | None], weights: Sequence[float], means: Sequence[float | None], left: float) -> float | None:
    if not any(weight and value is not None for weight, value in zip(weights, row, strict=True)):
        return None
    filled = [mean if value is None else value for value, mean in zip(row, means, strict=True)]
    return left * math.fsum(weight * value for weight, value in zip(weights, filled, strict=True) if value is not None)


def _mean_of_given(column: Sequence[float | None]) -> float | None:
    given = [value for value in column if value is not None]
    return math.fsum(given) / len(given) if given else None


def summarise(group: Group) -> None:
    """Fills mean, sample standard deviation (n − 1) and `dead` from the completions that have a reward.

    A group is dead when its rewards are equal up to float noise, and so are the rewards of its steps, where there are any.
    """
    scored = [completion.reward for completion in group.completions if completion.reward is not None]
    steps: dict[str, list[float]] = {}
    for completion in group.completions:
        for name, found in completion.steps.items():
            steps.setdefault(name, []).extend(value for _, value in found)
    group.mean, group.std = (math.fsum(scored) / len(scored), _std(scored)) if scored else (None, None)
    group.dead = all(_std(values) <= DEAD_TOLERANCE for values in (scored, *steps.values()))


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def batch_of(groups: Sequence[Group], trainer_state: TrainerState, system_prompt: str | None) -> Batch:
    """The groups' completions as one scoring call sees them, group after group; the rows' own columns are repeated for each."""
    pairs: list[tuple[Group, Completion]] = [(group, completion) for group in groups for completion in group.completions]
    names = dict.fromkeys(name for group in groups for name in group.row)
    columns = {name: [group.row.get(name) for group, _ in pairs] for name in names if name not in _NOT_COLUMNS}
    return Batch(prompts=[_messages(group, system_prompt) for group, _ in pairs],
                 texts=[completion.text for _, completion in pairs],
                 completion_ids=[list(completion.token_ids) for _, completion in pairs],
                 columns=columns, trainer_state=trainer_state,
                 group_ids=[index for index, group in enumerate(groups) for _ in group.completions],
                 ratings=[completion.ratings for _, completion in pairs])


# the row's own prompt is passed as `prompts`; the others are names of the call itself
_NOT_COLUMNS = {"prompt", "completion", "completion_ids", "prompts", "completions", "trainer_state", "log_extra", "log_metric",
                "group_ids", "ratings"}


def _messages(group: Group, system_prompt: str | None) -> list[dict[str, Any]]:
    if isinstance(group.row.get("prompt"), list):
        return group.row["prompt"]
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": group.prompt}]


def _outcome(reward: Reward, batch: Batch, groups: Sequence[Group]) -> Generator[RewardAwaited, None, Outcome]:
    waits_for = getattr(reward.function, "waits_for", None)
    if waits_for is None:
        return _call_and_locate(reward, batch, groups)
    outcome: Future[Outcome] = Future()

    def work() -> None:
        try:
            outcome.set_result(_call_and_locate(reward, batch, groups))
        except Exception as error:  # raised again where the outcome is looked at
            outcome.set_exception(error)

    began = time.monotonic()
    threading.Thread(target=work, name=f"reward {reward.name}", daemon=True).start()
    while not wait([outcome], timeout=LOOK_SECONDS).done:
        yield RewardAwaited(reward.name, waits_for, time.monotonic() - began)
    return outcome.result()


def _call_and_locate(reward: Reward, batch: Batch, groups: Sequence[Group]) -> Outcome:
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
