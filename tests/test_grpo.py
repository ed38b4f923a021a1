"""The algorithm: expected values are worked out by hand beside each test."""

from __future__ import annotations

import doctest
import importlib
import math
from pathlib import Path

import pytest
import torch

from lab.grpo import POLICY_TERMS, batch_totals, group_advantages, grpo_loss

NAN = float("nan")
PAPER = dict(
    loss_type="grpo",
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    beta=0.0,
    kl_estimator="k3",
    importance_sampling_level="token",
    max_completion_length=8,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
    dppo_ratio_cap=20.0,
)
LOSSES = tuple(POLICY_TERMS)
LEVELS = [(loss, level) for loss in LOSSES for level in ("token", "sequence") if (loss, level) != ("vespo", "sequence")]

ROOT = Path(__file__).resolve().parent.parent


def lengths_mask(*lengths: int) -> torch.Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def random_batch(lengths=(5, 2, 3, 1, 4, 5, 2, 3), seed=0, dtype=torch.float64) -> dict[str, torch.Tensor]:
    """Policy, old and reference log-probs far enough apart that every clip acts."""
    generator = torch.Generator().manual_seed(seed)
    mask = lengths_mask(*lengths)
    logps = -torch.rand(mask.shape, generator=generator, dtype=dtype) * 2 - 0.1
    return {
        "per_token_logps": logps.requires_grad_(),
        "old_per_token_logps": logps.detach() + 0.4 * torch.randn(mask.shape, generator=generator, dtype=dtype),
        "ref_per_token_logps": logps.detach() + 0.4 * torch.randn(mask.shape, generator=generator, dtype=dtype),
        "advantages": torch.randn(len(lengths), generator=generator, dtype=dtype),
        "completion_mask": mask,
    }


def loss_and_gradient(batch: dict[str, torch.Tensor], **changes) -> tuple[torch.Tensor, torch.Tensor]:
    loss, _ = grpo_loss(**batch, **(PAPER | changes))
    return loss.detach(), torch.autograd.grad(loss, batch["per_token_logps"])[0]


# ---------------------------------------------------------------- the clipped term


@pytest.mark.parametrize(
    "ratio, advantage, expected, gradient",
    [
        (1.0, 1.0, -1.0, -1.0),  # on-policy: −A, and d(−ρ A)/dlogπ = −ρ A
        (1.1, 1.0, -1.1, -1.1),  # inside the range
        (1.5, 1.0, -1.2, 0.0),  # above 1 + ε and A > 0: value held, gradient gone
        (0.5, 1.0, -0.5, -0.5),  # below, but A > 0 pushes back up: not clipped
        (0.5, -1.0, 0.8, 0.0),  # below 1 − ε and A < 0: held
        (1.5, -1.0, 1.5, 1.5),  # above, A < 0 pushes back down: not clipped
    ],
)
def test_one_token_of_the_clipped_objective(ratio, advantage, expected, gradient):
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    logps = (old + math.log(ratio)).requires_grad_()
    batch = dict(
        per_token_logps=logps,
        old_per_token_logps=old,
        ref_per_token_logps=None,
        advantages=torch.tensor([advantage], dtype=torch.float64),
        completion_mask=torch.ones(1, 1),
    )
    loss, grad = loss_and_gradient(batch)
    assert loss.item() == pytest.approx(expected)
    assert grad.item() == pytest.approx(gradient)
    _, stats = grpo_loss(**batch, **PAPER)
    assert stats["clipped_high"].item() == (ratio > 1.2 and advantage > 0)
    assert stats["clipped_low"].item() == (ratio < 0.8 and advantage < 0)


def one_token_loss(ratio: float, advantage: float, **changes) -> float:
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    loss, _ = grpo_loss(old + math.log(ratio), old, None, advantages, torch.ones(1, 1), **(PAPER | changes))
    return loss.item()


def test_epsilon_high_widens_the_upper_end_only():
    assert one_token_loss(1.5, 1.0, epsilon_high=0.28) == pytest.approx(-1.28)
    assert one_token_loss(0.5, -1.0, epsilon_high=0.28) == pytest.approx(0.8)


def test_delta_bounds_the_ratio_of_negative_advantages():
    assert one_token_loss(9.0, -1.0) == pytest.approx(9.0)
    assert one_token_loss(9.0, -1.0, delta=4.0) == pytest.approx(4.0)
    assert one_token_loss(9.0, 1.0, delta=4.0) == pytest.approx(-1.2)


def test_three_tokens_at_the_three_levels():
    """Ratio per token, ratio of the mean (GSPO), never the ratio of the sum: that one explodes with length."""
    # log-ratios 0.1, 0.2, 0.6: tokens e^0.1 = 1.1052, e^0.2 = 1.2214 → 1.2, e^0.6 → 1.2; mean 1.16839 with A = 1
    # sequence: mean log-ratio 0.3, e^0.3 = 1.3499 → clipped at 1.2; sum would be e^0.9 = 2.46
    log_ratio = torch.tensor([[0.1, 0.2, 0.6]], dtype=torch.float64)
    old = torch.full((1, 3), -1.0, dtype=torch.float64)
    call = lambda **changes: grpo_loss(old + log_ratio, old, None, torch.ones(1).double(), torch.ones(1, 3), **(PAPER | changes))  # noqa: E731
    loss, stats = call()
    assert loss.item() == pytest.approx(-(math.exp(0.1) + 1.2 + 1.2) / 3)
    loss, stats = call(importance_sampling_level="sequence")
    assert loss.item() == pytest.approx(-1.2)
    assert stats["ratio"].tolist() == [pytest.approx([math.exp(0.3)] * 3)]


def test_sequence_level_averages_over_the_tokens_that_are_there():
    log_ratio = torch.tensor([[0.1, 0.3, 99.0]], dtype=torch.float64)  # the third is padding
    old = torch.full((1, 3), -1.0, dtype=torch.float64)
    settings_ = PAPER | {"importance_sampling_level": "sequence"}
    _, stats = grpo_loss(old + log_ratio, old, None, torch.ones(1).double(), torch.tensor([[1, 1, 0]]), **settings_)
    assert stats["ratio"].tolist() == [pytest.approx([math.exp(0.2), math.exp(0.2), 0.0])]


# ---------------------------------------------------------------- how tokens are averaged


@pytest.mark.parametrize(
    "loss_type, expected",
    [
        # Two completions of 2 and 8 tokens, on-policy, A = +1 and −1, so each token's term is −1 or +1.
        ("grpo", 0.0),  # (−1 + 1) / 2
        ("bnpo", 0.6),  # (−2 + 8) / 10 tokens
        ("dapo", 0.6),
        ("dr_grpo", 0.375),  # (−2 + 8) / (2 · 8)
        ("luspo", 3.0),  # (−2 + 8) / 2
    ],
)
def test_two_and_eight_tokens_are_averaged_as_each_paper_says(loss_type, expected):
    mask = lengths_mask(2, 8)
    logps = torch.full((2, 8), -0.5)
    loss, stats = grpo_loss(logps, logps, None, torch.tensor([1.0, -1.0]), mask, **(PAPER | {"loss_type": loss_type}))
    assert loss.item() == pytest.approx(expected)
    assert (stats["weight"][0, 2:] == 0).all()


def test_the_loss_is_the_sum_of_its_stored_parts():
    batch = random_batch()
    loss, stats = grpo_loss(**batch, **(PAPER | {"beta": 0.1}))
    rebuilt = (stats["weight"] * (stats["policy_loss"] + 0.1 * stats["per_token_kl"])).sum()
    assert rebuilt.item() == pytest.approx(loss.item(), abs=1e-12)
    assert not any(value.requires_grad for value in stats.values())


def test_advantages_may_differ_between_the_tokens_of_a_completion():
    batch = random_batch()
    whole = loss_and_gradient(batch, beta=0.1)
    spread = loss_and_gradient(batch | {"advantages": batch["advantages"][:, None].expand(-1, 5)}, beta=0.1)
    assert torch.equal(whole[0], spread[0]) and torch.equal(whole[1], spread[1])
    stepwise = batch["advantages"][:, None] * torch.arange(5.0)
    assert not torch.allclose(loss_and_gradient(batch | {"advantages": stepwise})[1], whole[1])


# ---------------------------------------------------------------- nothing that should not matter matters


SPLITS = {"1x8": [8], "2x4": [4, 4], "8x1": [1] * 8, "uneven": [3, 1, 4]}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_micro_batches_add_up_to_the_batch(loss_type, level, split):
    """Users saw results that depended on gradient accumulation: every normaliser spans the optimiser batch."""
    batch = random_batch(dtype=torch.float32)
    changes = dict(loss_type=loss_type, importance_sampling_level=level, beta=0.1, delta=1.4, kl_estimator="k3_corrected")
    whole_loss, whole_gradient = loss_and_gradient(batch, **changes)
    totals = batch_totals(batch["completion_mask"])
    parts = zip(*(value.split(SPLITS[split]) for value in batch.values()), strict=True)
    losses = [grpo_loss(**dict(zip(batch, part, strict=True)), totals=totals, **(PAPER | changes))[0] for part in parts]
    gradient = torch.autograd.grad(sum(losses), batch["per_token_logps"])[0]
    assert sum(losses).item() == pytest.approx(whole_loss.item(), abs=1e-6)
    assert torch.allclose(gradient, whole_gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_padding_changes_nothing_whatever_it_holds(loss_type, level):
    batch = random_batch()
    changes = dict(loss_type=loss_type, importance_sampling_level=level, beta=0.1)
    loss, gradient = loss_and_gradient(batch, **changes)
    fillings = {"per_token_logps": -math.inf, "old_per_token_logps": NAN, "ref_per_token_logps": NAN, "completion_mask": 0}
    padded = batch | {name: pad_with(batch[name].detach(), filling) for name, filling in fillings.items()}
    padded["per_token_logps"].requires_grad_()
    padded_loss, padded_gradient = loss_and_gradient(padded, **changes)
    assert torch.allclose(padded_loss, loss, rtol=0, atol=1e-12)
    assert torch.allclose(padded_gradient[:, :5], gradient, rtol=0, atol=1e-12)
    assert (padded_gradient[:, 5:] == 0).all()


def pad_with(values: torch.Tensor, filling: float) -> torch.Tensor:
    return torch.cat([values, torch.full((len(values), 3), filling, dtype=values.dtype)], dim=1)


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_row_order_changes_nothing(loss_type, level):
    batch = random_batch()
    order = torch.tensor([3, 0, 7, 5, 1, 2, 6, 4])
    shuffled = {name: value.detach()[order] for name, value in batch.items()}
    shuffled["per_token_logps"].requires_grad_()
    changes = dict(loss_type=loss_type, importance_sampling_level=level, beta=0.1)
    loss, gradient = loss_and_gradient(batch, **changes)
    shuffled_loss, shuffled_gradient = loss_and_gradient(shuffled, **changes)
    assert torch.allclose(shuffled_loss, loss, rtol=0, atol=1e-12)
    assert torch.allclose(shuffled_gradient, gradient[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_batch_given_twice_has_the_same_loss(loss_type):
    batch = random_batch()
    twice = {name: torch.cat([value.detach()] * 2) for name, value in batch.items()}
    twice["per_token_logps"].requires_grad_()
    loss, gradient = loss_and_gradient(batch, loss_type=loss_type, beta=0.1)
    twice_loss, twice_gradient = loss_and_gradient(twice, loss_type=loss_type, beta=0.1)
    assert torch.allclose(twice_loss, loss, rtol=0, atol=1e-12)
    assert torch.allclose(2 * twice_gradient[:8], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_inputs_are_not_mutated(loss_type, level):
    batch = random_batch()
    policy_mask = torch.ones(8, 1, dtype=torch.float64)
    before = {name: value.detach().clone() for name, value in batch.items()}
    changes = dict(loss_type=loss_type, importance_sampling_level=level, beta=0.1, delta=1.4)
    grpo_loss(**batch, policy_mask=policy_mask, **(PAPER | changes))[0].backward()
    assert all(torch.equal(before[name], value) for name, value in batch.items())
    assert (policy_mask == 1).all()
    rewards = torch.tensor([1.0, NAN, 0.0, 0.5])
    group_advantages(rewards, num_generations=4, scale_rewards="group")
    assert torch.equal(rewards.nan_to_num(-1), torch.tensor([1.0, -1.0, 0.0, 0.5]))


# ---------------------------------------------------------------- what is trained


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_eos_is_trained_and_padding_is_not(loss_type, level):
    """The last unmasked token is EOS. Users whose mask was `id != pad` with pad = EOS never learned to stop."""
    batch = random_batch(lengths=(3, 5))
    batch["old_per_token_logps"] = batch["per_token_logps"].detach()
    batch["advantages"] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    _, gradient = loss_and_gradient(batch, loss_type=loss_type, importance_sampling_level=level)
    assert gradient[0, 2] < 0 < gradient[1, 4]  # minimising raises the one and lowers the other
    assert (gradient[0, 3:] == 0).all()


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_on_policy_the_loss_is_about_zero_but_its_gradient_is_not(loss_type, level):
    """Users took the loss for broken: advantages add up to 0. And a constant ratio once left only KL to train on."""
    batch = random_batch(lengths=(4, 4, 4, 4))
    rewards = torch.tensor([1.0, 0, 0, 1], dtype=torch.float64)
    batch["advantages"] = group_advantages(rewards, num_generations=4, scale_rewards="group")
    batch["old_per_token_logps"] = None  # on-policy
    loss, gradient = loss_and_gradient(batch, loss_type=loss_type, importance_sampling_level=level)
    if loss_type not in ("cispo", "vespo", "dppo", "dppo_kl", "sapo"):  # log π itself is in their value; sapo's is 2/τ by sign of A
        assert loss.abs() < 1e-12
    assert (gradient[[0, 3]] < 0).all() and (gradient[[1, 2]] > 0).all()


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_dead_groups_and_beta_zero_give_exactly_no_gradient(loss_type, level):
    batch = random_batch()
    rewards = torch.tensor([0.1] * 4 + [0.7] * 4, dtype=torch.float64)
    batch["advantages"] = group_advantages(rewards, num_generations=4, scale_rewards="group")
    loss, gradient = loss_and_gradient(batch, loss_type=loss_type, importance_sampling_level=level)
    assert loss == 0 and (gradient == 0).all()


def test_in_a_dead_group_only_the_kl_pulls():
    batch = random_batch()
    batch["advantages"] = torch.zeros(8, dtype=torch.float64)
    _, gradient = loss_and_gradient(batch, beta=0.1)
    assert (gradient[batch["completion_mask"].bool()] != 0).all()


@pytest.mark.parametrize("loss_type, level", LEVELS)
def test_a_fully_masked_batch_has_loss_zero_and_no_nan(loss_type, level):
    batch = random_batch()
    batch["completion_mask"] = torch.zeros_like(batch["completion_mask"])
    loss, gradient = loss_and_gradient(batch, loss_type=loss_type, importance_sampling_level=level, beta=0.1)
    assert loss == 0 and (gradient == 0).all()


def test_a_masked_completion_leaves_both_numerator_and_token_count():
    batch = random_batch()
    kept = [0, 1, 3, 4, 5, 6, 7]
    masked = batch["completion_mask"].clone()
    masked[2] = 0
    without = {name: value.detach()[kept] for name, value in batch.items()}
    without["per_token_logps"].requires_grad_()
    loss, gradient = loss_and_gradient(batch | {"completion_mask": masked}, loss_type="dapo", beta=0.1)
    expected_loss, expected_gradient = loss_and_gradient(without, loss_type="dapo", beta=0.1)
    assert torch.allclose(loss, expected_loss, rtol=0, atol=1e-12)
    assert torch.allclose(gradient[kept], expected_gradient, rtol=0, atol=1e-12)


def test_a_policy_mask_stops_the_policy_term_but_not_the_kl():
    batch = random_batch()
    policy_mask = torch.ones(8, 1, dtype=torch.float64)
    policy_mask[0] = 0
    _, gradient = loss_and_gradient(batch, policy_mask=policy_mask)
    assert (gradient[0] == 0).all() and (gradient[1:] != 0).any()
    only_kl = loss_and_gradient(batch | {"advantages": torch.zeros(8).double()}, beta=0.1)[1]
    assert torch.allclose(loss_and_gradient(batch, beta=0.1, policy_mask=policy_mask)[1][0], only_kl[0])


def test_ratio_and_old_logps_stay_frozen_over_several_iterations():
    """Old log-probs come from sampling; recomputing them each time would make every ratio 1 and the clip dead."""
    old = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    logps = old.clone().requires_grad_()
    ratios = []
    for _ in range(4):
        loss, stats = grpo_loss(logps, old, None, torch.ones(1).double(), torch.ones(1, 2), **PAPER)
        ratios.append(stats["ratio"][0, 0].item())
        (gradient,) = torch.autograd.grad(loss, logps)
        logps = (logps - 0.3 * gradient).detach().requires_grad_()
    # gradient −ρ/2: log-ratio 0 → 0.15 → 0.15 + 0.15 e^0.15 = 0.324 (e^0.324 = 1.383 > 1.2: clipped, stays)
    assert ratios == pytest.approx([1.0, math.exp(0.15), math.exp(0.15 + 0.15 * math.exp(0.15))] + [ratios[2]])


# ---------------------------------------------------------------- precision


def test_half_precision_logps_are_computed_in_float32():
    batch = random_batch(dtype=torch.float32)
    half = {name: value.detach().bfloat16() if value.dim() == 2 and name != "completion_mask" else value for name, value in batch.items()}
    loss, stats = grpo_loss(**half, **PAPER)
    assert loss.dtype == torch.float32 and stats["ratio"].dtype == torch.float32


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(loss_type="ppo"), ValueError, "loss_type is 'ppo'"),
        (dict(kl_estimator="k4"), ValueError, "kl_estimator is 'k4'"),
        (dict(importance_sampling_level="word"), ValueError, "'token' or 'sequence'"),
        (dict(loss_type="dr_grpo", max_completion_length=None), ValueError, "pass it"),
        (dict(sapo_temprature=1.0), TypeError, "no setting named sapo_temprature"),
        (dict(ref_per_token_logps=None, beta=0.1), ValueError, "needs ref_per_token_logps"),
        (dict(advantages=torch.zeros(3)), ValueError, r"advantages is \(3,\)"),
        (dict(completion_mask=torch.ones(8, 4)), ValueError, "completion_mask is"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_sentence(changes, error, message):
    with pytest.raises(error, match=message):
        grpo_loss(**(random_batch() | PAPER | changes))


def test_a_loss_that_misses_its_numbers_says_which():
    needed = {name: value for name, value in PAPER.items() if not name.startswith("sapo")}
    with pytest.raises(TypeError, match="sapo_temperature_pos"):
        grpo_loss(**random_batch(), **(needed | {"loss_type": "sapo"}))


@pytest.mark.parametrize("module", ["lab.grpo", *(f"lab.rules.{path.stem}" for path in sorted((ROOT / "lab" / "rules").glob("[a-z]*.py")))])
def test_examples_in_docstrings_are_true(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
