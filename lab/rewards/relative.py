"""Rewards seen from their group, in plain Python: advantages, spread, dead groups, ranks, each function's share.

The page, notebooks and `grpo-lab rewards test` need these without torch; `lab.grpo` and `lab.rules` hold the same rules for
training, and a test compares both. None is "not applicable" everywhere, never 0.

    groups are lists of lists: values[k][i] is completion i of group k; rows[k][i] holds one value per reward function
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from lab.rewards.scoring import group_totals
from lab.rules.dead_groups import DEAD_TOLERANCE

STD_EPSILON = 1e-4  # as in lab.grpo
Values = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Statistics:
    """What one function, or the total, did over all groups. `within`: mean sample std inside a group. `dead` groups are split
    by what they are equal at: `dead_low` the lowest value seen anywhere, `dead_high` the highest, the rest in between."""

    scored: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    groups: int
    within: float | None
    dead: int
    dead_low: int
    dead_high: int
    length_correlation: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Plain JSON values by name, for the page."""
        return asdict(self)


def sum_then_normalize(totals: Values, scale_rewards: str = "group") -> list[list[float]]:
    """(r − mean) / (std + 1e-4) of each total in its group (DeepSeekMath §4.1.2, arXiv 2402.03300). `scale_rewards` "batch"
    divides by the std over all groups, "none" by nothing. A tied group, and a row without a total, gets exactly 0.

    >>> [round(a, 4) for a in sum_then_normalize([[1.0, 0.0, 0.0, 0.0]])[0]]
    [1.4997, -0.4999, -0.4999, -0.4999]
    """
    if scale_rewards not in ("group", "batch", "none"):
        raise ValueError(f"scale_rewards is {scale_rewards!r}; it must be 'group', 'batch' or 'none'.")
    over_all = sample_std(_given(chain.from_iterable(totals)))
    result = []
    for group in totals:
        given = _given(group)
        std = sample_std(given)
        divisor = {"group": std + STD_EPSILON, "batch": over_all + STD_EPSILON, "none": 1.0}[scale_rewards]
        dead, mean = std <= DEAD_TOLERANCE, _mean(given)
        result.append([0.0 if dead or total is None else (total - mean) / divisor for total in group])
    return result


def normalize_then_sum(rows: Sequence[Sequence[Sequence[float | None]]], weights: Sequence[float]) -> list[list[float]]:
    """GDPO (arXiv 2601.05242): each function normalised in its group, then summed with `weights`, then the batch normalised."""
    summed, signal = [], []
    for group in rows:
        columns = [list(column) for column in zip(*group, strict=True)]
        scores = [sum_then_normalize([column])[0] for column in columns]
        available = math.fsum(abs(w) for w, column in zip(weights, columns, strict=True) if _given(column))
        left = math.fsum(map(abs, weights)) / available if available else 0.0
        added = [left * math.fsum(w * score for w, score in zip(weights, row, strict=True)) for row in zip(*scores, strict=True)]
        summed.append([value if _is_scored(row, weights) else None for value, row in zip(added, group, strict=True)])
        signal.append(any(w and sample_std(_given(column)) > DEAD_TOLERANCE for w, column in zip(weights, columns, strict=True)))
    given = _given(chain.from_iterable(summed))
    mean, std = _mean(given), sample_std(given)
    return [[0.0 if value is None or not alive else (value - mean) / (std + STD_EPSILON) for value in group]
            for group, alive in zip(summed, signal, strict=True)]


def describe(values: Values, lengths: Sequence[Sequence[float]]) -> Statistics:
    """Statistics of one function's values, or of the totals; `lengths` has the length of every completion."""
    given = _given(chain.from_iterable(values))
    low, high = (min(given), max(given)) if given else (None, None)
    scored = [_given(group) for group in values]
    scored = [group for group in scored if group]
    dead = [group for group in scored if sample_std(group) <= DEAD_TOLERANCE]
    spread = [sample_std(group) for group in scored if len(group) > 1]
    at = [_mean(group) for group in dead]
    differ = low is not None and high - low > DEAD_TOLERANCE
    pairs = [(length, value) for group, sizes in zip(values, lengths, strict=True)
             for value, length in zip(group, sizes, strict=True) if value is not None]
    return Statistics(
        scored=len(given), mean=_mean(given) if given else None, std=sample_std(given) if given else None, low=low, high=high,
        groups=len(scored), within=_mean(spread) if spread else None, dead=len(dead),
        dead_low=sum(differ and mean - low <= DEAD_TOLERANCE for mean in at),
        dead_high=sum(differ and high - mean <= DEAD_TOLERANCE for mean in at), length_correlation=correlation(pairs))


def variance_shares(rows: Sequence[Sequence[Sequence[float | None]]], weights: Sequence[float]) -> list[float | None]:
    """Each function's share of the variance of the total within groups: Σ c·t / Σ t², with c the function's weighted part and t
    the total, both less their group's mean. The shares add up to 1; one below 0 works against the others. None: no variance."""
    parts_times_total, total_squared = [0.0] * len(weights), 0.0
    for group in rows:
        parts = list(zip(*(_parts(group, place, weights) for place in range(len(weights))), strict=True))
        kept = [row for row, original in zip(parts, group, strict=True) if _is_scored(original, weights)]
        if len(kept) < 2:
            continue
        centres = [_mean(column) for column in zip(*kept, strict=True)]
        for row in kept:
            centred = [value - centre for value, centre in zip(row, centres, strict=True)]
            total = math.fsum(centred)
            total_squared += total * total
            parts_times_total = [share + value * total for share, value in zip(parts_times_total, centred, strict=True)]
    return [share / total_squared if total_squared > DEAD_TOLERANCE**2 else None for share in parts_times_total]


def totals_of(rows: Sequence[Sequence[Sequence[float | None]]], weights: Sequence[float]) -> list[list[float | None]]:
    """[group][completion] totals from [group][completion][function] values; see `group_totals` for what None does."""
    return [group_totals(group, weights) for group in rows]


def ranks(totals: Values) -> list[list[int | None]]:
    """The place of each completion in its group, 1 for the best; equal totals share a place."""
    return [[None if total is None else 1 + sum(other > total + DEAD_TOLERANCE for other in _given(group)) for total in group]
            for group in totals]


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's, or None where one side does not vary."""
    if len(pairs) < 2:
        return None
    xs, ys = zip(*pairs, strict=True)
    x_mean, y_mean = _mean(xs), _mean(ys)
    x_std, y_std = sample_std(xs), sample_std(ys)
    if x_std <= DEAD_TOLERANCE or y_std <= DEAD_TOLERANCE:
        return None
    return math.fsum((x - x_mean) * (y - y_mean) for x, y in pairs) / (len(pairs) - 1) / (x_std * y_std)


def sample_std(values: Sequence[float]) -> float:
    """n − 1 in the divisor; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _parts(group: Sequence[Sequence[float | None]], place: int, weights: Sequence[float]) -> list[float]:
    """What one function adds to each total of the group, missing values filled as in `scoring.group_totals`."""
    columns = list(zip(*group, strict=True))
    available = math.fsum(abs(w) for w, column in zip(weights, columns, strict=True) if _given(column))
    given = _given(columns[place])
    if not available or not given:
        return [0.0] * len(group)
    factor = weights[place] * math.fsum(map(abs, weights)) / available
    mean = _mean(given)
    return [factor * (mean if value is None else value) for value in columns[place]]


def _is_scored(row: Sequence[float | None], weights: Sequence[float]) -> bool:
    return any(weight and value is not None for weight, value in zip(weights, row, strict=True))


def _given(values) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
