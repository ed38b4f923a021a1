"""Answers to held-out prompts → numbers: greedy accuracy and pass@k.

A completion is right when the first of the evaluation's reward functions gives it at least 0.5. A function that does
not apply (None) leaves the prompt out of every mean. Leaves out how the answers come about (`evaluation`) and
base against tuned (`web.evaluations`). No torch.

    n completions sampled for a prompt · c of them right · k tries allowed
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.records import Completion, Group
from lab.training.metrics import group_metrics

RIGHT = 0.5


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k completions is right, unbiased from n of which c are: 1 − C(n−c, k) / C(n, k).

    Formula (1) of Chen et al. 2021, arXiv 2107.03374. The plug-in 1 − (1 − c/n)^k is too low. Raises ValueError
    unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {c} right of {n} completions: k must be from 1 to n.")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def evaluation_metrics(greedy: Sequence[Group], sampled: Sequence[Group], reward: str) -> dict[str, float]:
    """Metrics of one evaluation, with TRL's prefix `eval_`; `reward` names the function that says what is right.

    `eval_accuracy` is the share of prompts answered rightly without chance, `eval_pass@k` the mean over prompts for
    k = 1, 2, 4, … and the number sampled. The rest are `group_metrics` of the sampled groups, or of the greedy ones
    where none were sampled.
    """
    metrics = {}
    judged = [right for group in greedy for right in _judged(group, reward)]
    if judged:
        metrics["eval_accuracy"] = math.fsum(judged) / len(judged)
    tries = [rights for group in sampled if (rights := _judged(group, reward))]
    if tries:
        for k in _ks(min(map(len, tries))):
            metrics[f"eval_pass@{k}"] = math.fsum(pass_at_k(len(rights), sum(rights), k) for rights in tries) / len(tries)
    return metrics | {f"eval_{name}": value for name, value in group_metrics(sampled or greedy).items()}


def is_right(completion: Completion, reward: str) -> bool | None:
    """None where the function does not apply."""
    value = completion.rewards.get(reward)
    return None if value is None else value >= RIGHT


def _judged(group: Group, reward: str) -> list[bool]:
    return [right for c in group.completions if (right := is_right(c, reward)) is not None]


def _ks(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({most, *(2**i for i in range(most.bit_length()))})
