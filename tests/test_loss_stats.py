"""Metrics from token stats: exact over any split, padding never counts; TRL's own are compared in test_trl_parity."""

from __future__ import annotations

import pytest
import torch

from lab.grpo import batch_totals, grpo_loss
from lab.rules.loss_stats import metrics
from tests.test_grpo import PAPER, random_batch


def stats_of(batch, **changes):
    return grpo_loss(**batch, totals=batch_totals(batch["completion_mask"]), **(PAPER | changes))[1]


CASES = [("grpo", "token"), ("grpo", "sequence"), ("cispo", "token"), ("vespo", "token"), ("dppo", "token"), ("dppo_kl", "token")]


@pytest.mark.parametrize("loss_type, level", CASES)
def test_metrics_do_not_depend_on_the_split(loss_type, level):
    batch = random_batch()
    names = dict(loss_type=loss_type, importance_sampling_level=level)
    whole = metrics([stats_of(batch, **names)], **names)
    parts = zip(*(value.split([3, 1, 4]) for value in batch.values()), strict=True)
    split = metrics([stats_of(dict(zip(batch, part, strict=True)), **names) for part in parts], **names)
    assert whole.keys() == split.keys()
    assert all(split[name].item() == pytest.approx(whole[name].item(), abs=1e-9) for name in whole)


def test_kl_is_a_mean_over_tokens_where_padding_does_not_count():
    """One row twice as long as the other; a mean over padding would read too low."""
    # k1 makes it plain: row 0 has −d = 1 on 2 tokens, row 1 has 0.25 on 4: (2 + 1) / 6 = .5
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    logps = torch.zeros(2, 4)
    ref = torch.tensor([[-1.0] * 4, [-0.25] * 4])
    names = dict(loss_type="grpo", importance_sampling_level="token")
    _, stats = grpo_loss(logps, logps, ref, torch.zeros(2), mask, **(PAPER | {"kl_estimator": "k1"}))
    assert metrics([stats], **names)["kl"].item() == pytest.approx(0.5)


def test_clip_ratios_by_hand():
    # A > 0 with ratios e^1 (clipped high) and 1; A < 0 with e^−1 (clipped low): 1 of 3 tokens each
    old = torch.full((2, 2), -2.0)
    logps = old + torch.tensor([[1.0, 0.0], [-1.0, 5.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    _, stats = grpo_loss(logps, old, None, torch.tensor([1.0, -1.0]), mask, **PAPER)
    result = metrics([stats], loss_type="grpo", importance_sampling_level="token")
    expected = {"low_mean": 1 / 3, "high_mean": 1 / 3, "region_mean": 2 / 3, "low_min": 0.0, "high_max": 0.5}
    assert {name: result[f"clip_ratio/{name}"].item() for name in expected} == pytest.approx(expected)
    assert "kl" not in result  # no reference was given


def test_a_batch_without_tokens_has_metrics_without_nan():
    batch = random_batch()
    batch["completion_mask"] = torch.zeros_like(batch["completion_mask"])
    result = metrics([stats_of(batch)], loss_type="grpo", importance_sampling_level="token")
    assert all(value.isfinite() for value in result.values())
