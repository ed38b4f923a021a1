"""Groups of one step → the metrics TRL logs about completions and rewards, by TRL's names.

Leaves out what comes from the loss (`loss_stats`) and the optimiser (`updating`). No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.records import Completion, Group
from lab.rewards.extract import extract


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Lengths in tokens (stop token included), rewards, and how many groups can teach.

    `reward_std` is the sample standard deviation over the whole batch, as TRL's. A reward of None is left out of every
    mean; what applied to nothing is nan, as TRL logs such a function (TRL's total is then 0, which nobody gave). Ours:
    `groups/live`, `groups/total`, `groups/distinct_…`.
    """
    completions = [c for group in groups for c in group.completions]
    metrics = _length_metrics(completions)
    for name in completions[0].rewards:
        given = [c.rewards[name] for c in completions if c.rewards[name] is not None]
        metrics |= {f"rewards/{name}/mean": _mean(given), f"rewards/{name}/std": _std(given)}
    totals = [c.reward for c in completions if c.reward is not None]
    metrics |= {"reward": _mean(totals), "reward_std": _std(totals)}
    dead = sum(len(group.completions) for group in groups if group.dead)
    metrics["frac_reward_zero_std"] = dead / len(completions)
    metrics["groups/live"] = sum(not group.dead for group in groups)
    metrics["groups/total"] = len(groups)
    return metrics | _diversity(groups)


def _length_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    lengths = [len(c.token_ids) for c in completions]
    ended = [len(c.token_ids) for c in completions if c.finished] or [0]
    return {
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": sum(not c.finished for c in completions) / len(completions),
        "completions/mean_terminated_length": _mean(ended),
        "completions/min_terminated_length": min(ended),
        "completions/max_terminated_length": max(ended),
    }


def _diversity(groups: Sequence[Group]) -> dict[str, float]:
    """Share of different texts and of different answers in a group, mean over groups. Answers that grow alike are a warning."""
    metrics = {"groups/distinct_completions": _mean([_distinct([c.text.strip() for c in g.completions]) for g in groups])}
    answers = [[extract(c.text, "any") for c in group.completions] for group in groups]
    shares = [_distinct([answer for answer in given if answer is not None]) for given in answers if any(a is not None for a in given)]
    return metrics | ({"groups/distinct_answers": _mean(shares)} if shares else {})


def _distinct(values: Sequence[str]) -> float:
    return len(set(values)) / len(values)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation (n − 1); 0 for a single value, nan for none."""
    if not values:
        return math.nan
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
