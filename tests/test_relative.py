"""Rewards seen from their group, without torch: the same numbers as training gets with it."""

from __future__ import annotations

import random

import pytest
import torch

from lab.grpo import group_advantages
from lab.rewards import relative
from lab.rules import advantages as rules
from lab.rules.groups import combine_rewards


def made_groups(seed: int, functions: int = 3) -> list[list[list[float | None]]]:
    """Groups of different sizes with ties, missing values, and functions that apply to nobody."""
    rng = random.Random(seed)
    groups = []
    for _ in range(6):
        values = [[rng.choice([0.0, 0.5, 1.0, rng.random()]) for _ in range(functions)] for _ in range(rng.randint(2, 9))]
        for row in values:
            if rng.random() < 0.2:
                row[rng.randrange(functions)] = None
        if rng.random() < 0.3:
            for row in values:
                row[0] = None
        groups.append(values)
    groups.append([[1.0] * functions for _ in range(4)])  # tied
    groups.append([[None] * functions for _ in range(3)])  # nothing applies
    return groups


def as_tensors(groups):
    rows = [row for group in groups for row in group]
    ids = torch.tensor([k for k, group in enumerate(groups) for _ in group])
    return torch.tensor([[float("nan") if v is None else v for v in row] for row in rows], dtype=torch.float64), ids


def flat(groups):
    return [value for group in groups for value in group]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.7, 0.0, 0.3), (1.0, -0.5, 2.0)])
def test_totals_and_advantages_equal_those_of_training(seed, weights):
    groups = made_groups(seed)
    rewards, ids = as_tensors(groups)
    tensor = torch.tensor(weights, dtype=torch.float64)
    totals = relative.totals_of(groups, weights)
    expected = combine_rewards(rewards, tensor, group_ids=ids).tolist()
    assert [None if e != e else e for e in expected] == pytest.approx(flat(totals), abs=1e-9)
    for scale in ("group", "batch", "none"):
        as_training = group_advantages(torch.tensor(expected, dtype=torch.float64), group_ids=ids, scale_rewards=scale).tolist()
        assert flat(relative.sum_then_normalize(totals, scale)) == pytest.approx(as_training, abs=1e-9)
    apart = rules.normalize_then_sum(rewards, tensor, group_ids=ids).tolist()
    assert flat(relative.normalize_then_sum(groups, weights)) == pytest.approx(apart, abs=1e-9)


def test_a_scaling_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'group', 'batch' or 'none'"):
        relative.sum_then_normalize([[1.0, 0.0]], "std")


def test_statistics_tell_dead_groups_by_what_they_are_equal_at():
    # groups: all 0 (lowest), all 1 (highest), all 0.5 (between), one that differs: std of 0 and 1 is √0.5
    values = [[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [0.0, 1.0], [None, None]]
    found = relative.describe(values, [[1, 1]] * 5)
    assert (found.groups, found.dead, found.dead_low, found.dead_high) == (4, 3, 1, 1)
    assert found.scored == 8 and found.mean == pytest.approx(0.5) and found.within == pytest.approx(0.5**0.5 / 4)
    assert found.length_correlation is None  # all are of one length


def test_groups_that_are_all_alike_everywhere_are_neither_lowest_nor_highest():
    found = relative.describe([[1.0, 1.0], [1.0, 1.0]], [[1, 2], [3, 4]])
    assert (found.dead, found.dead_low, found.dead_high) == (2, 0, 0)


def test_correlation_with_length_has_the_sign_of_what_is_paid_for():
    assert relative.correlation([(1, 0.1), (2, 0.2), (3, 0.3)]) == pytest.approx(1.0)
    assert relative.correlation([(1, 0.3), (2, 0.2), (3, 0.1)]) == pytest.approx(-1.0)


def test_shares_of_the_variance_add_up_and_show_what_works_against_the_rest():
    # one group; the total is 2a − b with a = 0, 1 and b = 0, 1: parts vary by 2 and −1, the total by 1, so 2 / 1 and −1 / 1
    assert relative.variance_shares([[[0.0, 0.0], [1.0, 1.0]]], [2.0, -1.0]) == pytest.approx([2.0, -1.0])
    assert relative.variance_shares([[[1.0, 1.0], [1.0, 1.0]]], [1.0, 1.0]) == [None, None]
    shares = relative.variance_shares(made_groups(3), [0.5, 0.3, 0.2])
    assert sum(shares) == pytest.approx(1.0)


def test_equal_totals_share_a_rank():
    assert relative.ranks([[1.0, 0.5, 1.0, None, 0.0]]) == [[1, 3, 1, None, 4]]
