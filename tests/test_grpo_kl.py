"""KL to the reference: the estimators, their gradients and what extreme ratios do; expected values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lab.grpo import grpo_loss, kl_estimate
from tests.test_grpo import PAPER, loss_and_gradient, random_batch


def test_the_estimators_by_hand():
    # d = log ref − log π = ln 2: k1 = −0.6931, k2 = 0.2402, k3 = 2 − 0.6931 − 1 = 0.3069; ρ = 1.5: 0.4603
    logps, ref = torch.tensor([[-2.0]]), torch.tensor([[-2.0 + math.log(2)]])
    ratio = torch.tensor([[1.5]])
    for estimator, expected in (("k1", -0.6931), ("k2", 0.2402), ("k3", 0.3069), ("k3_corrected", 0.4603)):
        assert kl_estimate(logps, ref, ratio, estimator).item() == pytest.approx(expected, abs=5e-5)


def test_kl_to_oneself_is_exactly_zero():
    logps = torch.randn(4, 5)
    for estimator in ("k1", "k2", "k3", "k3_corrected"):
        assert (kl_estimate(logps, logps, torch.ones(4, 5), estimator) == 0).all()


@pytest.mark.parametrize("estimator", ["k1", "k3", "k3_corrected"])
def test_k1_and_k3_are_unbiased_over_a_toy_vocabulary(estimator):
    policy, reference = toy_policies()
    kl = (policy.exp() * (policy - reference)).sum()
    estimate = kl_estimate(policy, reference, torch.ones_like(policy), estimator)
    assert (policy.exp() * estimate).sum().item() == pytest.approx(kl.item(), abs=1e-12)


def toy_policies() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of every token of a six-word vocabulary under policy and reference."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    policy, reference = logits.log_softmax(-1)
    return policy.detach(), reference


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_corrected"])
def test_expected_gradient_of_each_estimator_over_a_toy_vocabulary(estimator):
    """The expectation is exact: every token, weighted with its probability. On-policy, through `grpo_loss` itself."""
    policy, reference = toy_policies()
    logits = policy.clone().requires_grad_()
    logps = logits.log_softmax(-1)
    # One completion of one token per word; weighting rows by N · π(word) makes their mean the expectation under π.
    weighted = logps.unsqueeze(1)
    terms = [
        grpo_loss(
            weighted[i : i + 1],
            None,
            reference[i : i + 1].unsqueeze(1),
            torch.zeros(1).double(),
            torch.ones(1, 1),
            **(PAPER | {"beta": 1.0, "kl_estimator": estimator}),
        )[0]
        for i in range(6)
    ]
    expected_loss = sum(p * term for p, term in zip(policy.exp().tolist(), terms, strict=True))
    (gradient,) = torch.autograd.grad(expected_loss, logits)

    reverse = gradient_of(lambda lp: (lp.exp() * (lp - reference)).sum(), policy)  # KL(π ‖ ref)
    forward = gradient_of(lambda lp: (reference.exp() * (reference - lp)).sum(), policy)  # KL(ref ‖ π)
    exact = {"k1": torch.zeros(6).double(), "k2": reverse, "k3": forward, "k3_corrected": reverse}[estimator]
    assert torch.allclose(gradient, exact, rtol=0, atol=1e-12)
    assert not torch.allclose(reverse, forward, rtol=0, atol=1e-2)


def gradient_of(function, policy: torch.Tensor) -> torch.Tensor:
    logits = policy.clone().requires_grad_()
    return torch.autograd.grad(function(logits.log_softmax(-1)), logits)[0]


def test_kl_is_computed_at_beta_zero_and_then_does_not_pull():
    batch = random_batch()
    _, stats = grpo_loss(**batch, **PAPER)
    assert (stats["per_token_kl"][batch["completion_mask"].bool()] > 0).all()
    _, without = loss_and_gradient(batch | {"ref_per_token_logps": None})
    assert torch.equal(loss_and_gradient(batch)[1], without)


def test_extreme_log_ratios_stay_finite_and_are_counted():
    """Users saw KL inf, then loss NaN. Clamping alone would hide it, so the clamped tokens are counted."""
    logps = torch.tensor([[-200.0, -1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -150.0, -1.0]])
    ref = torch.tensor([[-1.0, -1.0, -300.0]])
    changes = PAPER | {"beta": 0.1, "kl_estimator": "k3_corrected"}
    loss, stats = grpo_loss(logps, old, ref, torch.tensor([1.0]), torch.ones(1, 3), **changes)
    loss.backward()
    assert loss.isfinite() and logps.grad.isfinite().all()
    assert stats["log_ratio_clamped"] == 2  # −199 and +149
    assert stats["kl_clamped"] == 2  # +199 and −299
    _, calm = grpo_loss(old, old, old, torch.tensor([1.0]), torch.ones(1, 3), **changes)
    assert calm["log_ratio_clamped"] == 0 and calm["kl_clamped"] == 0


def test_clamped_padding_is_not_counted():
    logps = torch.tensor([[-1.0, -500.0]])
    old = ref = torch.tensor([[-1.0, -1.0]])
    _, stats = grpo_loss(logps, old, ref, torch.ones(1), torch.tensor([[1, 0]]), **PAPER)
    assert stats["log_ratio_clamped"] == 0 and stats["kl_clamped"] == 0
