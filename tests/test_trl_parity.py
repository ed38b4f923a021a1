"""`lab.grpo` equals TRL's own GRPOTrainer: loss, gradient of every model parameter, advantages and metrics."""

from __future__ import annotations

import json

import pytest
import torch
import trl

from lab.grpo import batch_totals, grpo_loss
from tests import make_parity
from tests.make_parity import LATER_SETTINGS, LOSS_TYPES, MAX_LENGTH, SCALINGS, TOLERANCE, Oracle

SETTINGS = ("loss_type", "level", "mask", "delta", "entropy_coef", "scale_rewards", "aggregation", "beta", "bias_correction")


@pytest.fixture(scope="module")
def oracle():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Oracle()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def table(oracle):
    table = make_parity.parity_table(oracle)
    print(f"\nAgainst TRL {trl.__version__}:\n{make_parity.as_text(make_parity.summary(table))}")
    return table


@pytest.mark.parametrize("number", ["loss_diff", "grad_diff", "metric_diff"])
def test_every_combination_of_settings_equals_trl(table, number):
    assert {row["loss_type"] for row in table} == set(LOSS_TYPES)
    apart = [row for row in table if not row[number] <= TOLERANCE]
    assert not apart, f"{len(apart)} of {len(table)} cases differ, first: {apart[0]}"


def test_the_compared_losses_are_not_trivially_zero(table):
    assert all(abs(row["loss"]) > 1e-3 for row in table)


@pytest.mark.parametrize("setting", ["mask", "delta", "entropy_coef", "scale_rewards", "aggregation", "beta", "bias_correction", "level"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_setting_acts_in_the_comparison(table, loss_type, setting):
    """A setting that never bites would be equal on both sides for no reason."""
    values: dict = {}
    for row in table:
        others = tuple((name, row[name]) for name in SETTINGS if name != setting)
        values.setdefault(others, {})[row[setting]] = row["loss"]
    tried = [by_value for others, by_value in values.items() if dict(others)["loss_type"] == loss_type and len(by_value) > 1]
    assert not tried or any(len(set(by_value.values())) == len(by_value) for by_value in tried)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_advantages_equal_trl_with_an_unscorable_row(oracle, scaling):
    scale_rewards, aggregation = scaling
    oracle.configure(scale_rewards=scale_rewards, multi_objective_aggregation=aggregation, mask_truncated_completions=False)
    theirs = oracle.scored_batch()["advantages"]
    assert theirs[3] == 0  # nobody scored row 3
    assert torch.allclose(make_parity.our_advantages(scale_rewards, aggregation), theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("loss_type", [loss for loss in LOSS_TYPES if loss != "bnpo"])
def test_trl_with_two_accumulation_steps_equals_our_whole_batch(oracle, loss_type):
    """bnpo is left out on purpose: TRL's depends on the split, ours does not."""
    oracle.configure(scale_rewards="group", multi_objective_aggregation="sum_then_normalize", mask_truncated_completions=False)
    oracle.configure(loss_type=loss_type, importance_sampling_level="token", beta=0.1, use_bias_correction_kl=True, delta=None)
    oracle.configure(top_entropy_quantile=1.0, off_policy_mask_threshold=None, entropy_coef=0.0, _entropy_bonus_enabled=False)
    oracle.configure(epsilon_high=0.28)
    batch = oracle.scored_batch()
    rows = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # groups are split between the halves
    halves = [{name: value[half] if value.dim() else value for name, value in batch.items()} for half in (rows[:4], rows[4:])]
    try:
        oracle.configure(current_gradient_accumulation_steps=2, steps_per_generation=2)
        theirs = sum(oracle.loss(half) for half in halves)
    finally:
        oracle.configure(current_gradient_accumulation_steps=1, steps_per_generation=1)

    logps, _ = oracle.logps_and_entropies(batch)
    mine, _ = grpo_loss(
        logps,
        batch["old_per_token_logps"],
        batch["ref_per_token_logps"],
        batch["advantages"],
        batch["completion_mask"],
        loss_type=loss_type,
        epsilon=0.2,
        epsilon_high=0.28,
        delta=None,
        beta=0.1,
        kl_estimator="k3_corrected",
        importance_sampling_level="token",
        max_completion_length=MAX_LENGTH,
        totals=batch_totals(batch["completion_mask"]),
        **LATER_SETTINGS,
    )
    their_gradient, my_gradient = oracle.gradient(theirs), oracle.gradient(mine)
    assert abs(theirs - mine) <= TOLERANCE
    assert (their_gradient - my_gradient).norm() / their_gradient.norm() <= TOLERANCE


def test_the_table_shown_in_the_app_is_the_one_measured_here(table):
    shown = json.loads(make_parity.JSON_FILE.read_text(encoding="utf-8"))
    assert shown["trl"] == trl.__version__
    assert shown["differences"] == make_parity.DIFFERENCES
    rows = [dict(zip(shown["columns"], row, strict=True)) for row in shown["rows"]]
    settings = [[row[name] for name in SETTINGS] for row in rows]
    assert settings == [[row[name] for name in SETTINGS] for row in table], "run `python -m tests.make_parity` to write it again"
