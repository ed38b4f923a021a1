"""A reward that a person gives, completion by completion, on a small rubric of weighted criteria.

The trainer stops before the scores are needed (`records.AwaitingScores`) and goes on when `Trainer.give_scores` has them;
the page's panel ends there too. Leaves out the waiting (`training.collecting`), storing and doing it again after a
resume (`engine_work`), and the panel (assets/js/byhand.js).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lab.records import Group
from lab.rewards.common import RewardFunction, builtin
from lab.rewards.resolve import Reward

RUBRIC = {"clarity": 1, "correctness": 2, "relevance": 1}
Rating = dict[str, float]  # criterion → 0…1; empty: the person gave none


class ScoresAwaited(RuntimeError):
    """A loop over steps came to completions that a person must score first; `groups` and `criteria` say which and how."""

    def __init__(self, step: int, groups: list[Group], criteria: dict[str, float]):
        count = sum(len(group.completions) for group in groups)
        super().__init__(f"Step {step} waits for scores given by hand: call trainer.give_scores(…) with one number from 0 to 1, or one "
                         f"for each of {', '.join(criteria)}, for each of the {count} completions, then go on with next(trainer).")
        self.step, self.groups, self.criteria = step, groups, criteria


class ScoreError(ValueError):
    """Scores that cannot be used: the message says which, and what was expected."""


@builtin
def by_hand(criteria: dict[str, float] = RUBRIC) -> RewardFunction:
    """A person scores each completion: the weighted mean of the criteria, each from 0 to 1. The run waits for them.

    `criteria` maps what is judged to its weight. On the page each completion of a waiting group gets a slider for each;
    from Python the scores go to `Trainer.give_scores`. A completion that was not scored gets None. A Sample does not
    wait: there this reward does not apply.

    >>> by_hand()(completions=["Phones distract."], ratings=[{"clarity": 1, "correctness": 0.5, "relevance": 1}])
    [0.75]

    Source: ratings by people as the reward, as in InstructGPT (arXiv 2203.02155), without a model between them.
    """
    weights = _checked_criteria(criteria)

    def by_hand(completions: Sequence[Any], ratings: Sequence[Rating | None] | None = None, log_extra: Any = None,
                **columns: Any) -> list[float | None]:
        given = [rating or {} for rating in ratings or [None] * len(completions)]
        if log_extra and any(given):
            for name in weights:
                log_extra(name, [rating.get(name) for rating in given])
        return [total(rating, weights) for rating in given]

    by_hand.criteria = weights
    return by_hand


def total(rating: Rating, weights: dict[str, float]) -> float | None:
    """The weighted mean of a rating; None where a criterion has no number."""
    if not all(name in rating for name in weights):
        return None
    return math.fsum(weight * rating[name] for name, weight in weights.items()) / math.fsum(weights.values())


def criteria_of(rewards: Sequence[Reward]) -> dict[str, float]:
    """What a person is asked for by these functions, with its weight; empty where nobody is."""
    return {name: weight for reward in rewards for name, weight in getattr(reward.function, "criteria", {}).items()}


def checked_ratings(scores: Sequence[Any], groups: Sequence[Group], criteria: dict[str, float]) -> list[list[Rating]]:
    """`scores` as a rating for every completion of every group. Raises ScoreError.

    `scores` is a list for each group, or one flat list in their order; an entry is a number for every criterion alike, a
    dict with a number for each, or None for a completion that is left out.
    """
    sizes = [len(group.completions) for group in groups]
    flat = _flat(scores, sizes)
    places = [(g, i) for g, size in enumerate(sizes) for i in range(size)]
    ratings = [_rating(entry, criteria, f"prompt {g + 1}, completion {i + 1}") for (g, i), entry in zip(places, flat, strict=True)]
    if not any(ratings):
        raise ScoreError("No completion has a score: give at least one.")
    return [[rating for (g, _), rating in zip(places, ratings, strict=True) if g == group] for group in range(len(sizes))]


def digest(groups: Sequence[Group]) -> str:
    """Tells one set of completions from every other: scores are only ever given to the texts that the person saw."""
    told = [[group.prompt, [completion.text for completion in group.completions]] for group in groups]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _checked_criteria(criteria: Any) -> dict[str, float]:
    if not isinstance(criteria, Mapping) or not criteria:
        raise ValueError("criteria is empty: name at least one, with its weight, such as {'clarity': 1}.")
    for name, weight in criteria.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"criteria has {name!r}: a criterion is a word or two.")
        if not _is_number(weight) or weight <= 0:
            raise ValueError(f"the weight of {name} is {weight!r}: a number above 0 is needed.")
    return {name: float(weight) for name, weight in criteria.items()}


def _flat(scores: Any, sizes: list[int]) -> list[Any]:
    count = sum(sizes)
    if not isinstance(scores, Sequence) or isinstance(scores, str):
        raise ScoreError(f"Scores are a list with one entry for each of the {count} completions, not {type(scores).__name__}.")
    if scores and all(isinstance(entry, Sequence) and not isinstance(entry, str) for entry in scores):
        given = [len(entry) for entry in scores]
        if given != sizes:
            raise ScoreError(f"There are {_listed(given)} scores for groups of {_listed(sizes)} completions: give one each.")
        return [entry for group in scores for entry in group]
    if len(scores) != count:
        raise ScoreError(f"There are {len(scores)} scores for {count} completions: give one each.")
    return list(scores)


def _rating(entry: Any, criteria: dict[str, float], place: str) -> Rating:
    if entry is None or entry == {}:
        return {}
    if not isinstance(entry, Mapping):
        return {name: _score(entry, f"The score of {place}") for name in criteria}
    unknown = [name for name in entry if name not in criteria]
    missing = [name for name in criteria if entry.get(name) is None]
    if unknown or missing:
        wrong = f"has {unknown[0]!r}, which is no criterion" if unknown else f"has no number for {missing[0]}"
        raise ScoreError(f"The score of {place} {wrong}. Criteria: {', '.join(criteria)}.")
    return {name: _score(entry[name], f"{name} of {place}") for name in criteria}


def _score(value: Any, what: str) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise ScoreError(f"{what} is {value!r}: a number from 0 to 1 is needed.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
