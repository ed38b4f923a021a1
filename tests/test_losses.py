"""The policy terms of later papers on single tokens, worked by hand; TRL's own are compared in test_trl_parity."""

from __future__ import annotations

import math

import pytest
import torch

from lab.grpo import grpo_loss
from tests.test_grpo import PAPER

SETTINGS = PAPER | dict(sapo_temperature_neg=2.0, dppo_ratio_cap=3.0)


def one_completion(loss_type, old, log_ratio, advantage, **changes):
    """Loss, gradient and stats of one completion whose tokens have log-probs old + log_ratio."""
    old = torch.tensor([old], dtype=torch.float64)
    logps = (old + torch.tensor([log_ratio], dtype=torch.float64)).requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    loss, stats = grpo_loss(logps, old, None, advantages, torch.ones_like(old), **(SETTINGS | changes | {"loss_type": loss_type}))
    return loss.item(), torch.autograd.grad(loss, logps)[0].squeeze(0).tolist(), stats


def test_cispo_caps_the_weight_but_keeps_every_gradient():
    # ρ = 2 capped at 1.5: −1.5 · 1 · log π with log π = −1 + ln 2; gradient −1.5 although ρ is above the cap
    loss, gradient, stats = one_completion("cispo", [-1.0], [math.log(2)], 1.0, epsilon_high=1.5)
    assert loss == pytest.approx(-1.5 * (-1 + math.log(2)))
    assert gradient == pytest.approx([-1.5])
    assert stats["clipped_high"].all()


def test_cispos_weight_itself_carries_no_gradient():
    # ρ = 1.2, below the cap: −1.2 · d log π; with a gradient through ρ there would be −1.2 · log π besides
    assert one_completion("cispo", [-1.0], [math.log(1.2)], 1.0, epsilon_high=1.5)[1] == pytest.approx([-1.2])


def test_cispo_with_grpos_epsilon_throttles_every_token():
    """ε_high is an absolute cap here: with 0.2 the on-policy weight is 0.2, not 1."""
    assert one_completion("cispo", [-1.0], [0.0], 1.0)[1] == pytest.approx([-0.2])


@pytest.mark.parametrize("advantage, tau", [(1.0, 1.0), (-1.0, 2.0)])
def test_sapo_gates_softly_and_has_gradient_one_on_policy(advantage, tau):
    # −(4/τ) σ(0) A = −(2/τ) A; derivative of 4/τ · σ(τ(ρ − 1)) at ρ = 1 is 4 · 1/4 = 1
    loss, gradient, _ = one_completion("sapo", [-1.0], [0.0], advantage)
    assert loss == pytest.approx(-2 / tau * advantage)
    assert gradient == pytest.approx([-advantage])


def test_sapo_at_twice_the_probability():
    # σ(1) = .731059: −4 · .731059 = −2.92424; gradient −4 · .731059 · .268941 · ρ = −4 · .196612 · 2
    loss, gradient, _ = one_completion("sapo", [-1.0], [math.log(2)], 1.0)
    assert loss == pytest.approx(-2.924234, abs=1e-6)
    assert gradient == pytest.approx([-1.572895], abs=1e-6)


@pytest.mark.parametrize("advantage, phi", [(1.0, math.exp(3) * 4 * math.exp(-6)), (-1.0, math.exp(2) * 8 * math.exp(-4))])
def test_vespo_weighs_the_whole_sequence(advantage, phi):
    # log-ratios ln 4 and −ln 2: w = 2. φ = e^λ w^k e^(−λw): A ≥ 0 (2, 3): e³ · 4 · e⁻⁶;  A < 0 (3, 2): e² · 8 · e⁻⁴
    _, gradient, stats = one_completion("vespo", [-2.0, -1.0], [math.log(4), -math.log(2)], advantage)
    assert stats["sequence_weight"].tolist() == pytest.approx([phi])
    assert gradient == pytest.approx([-phi * advantage / 2] * 2)  # mean over two tokens


def test_vespo_weight_is_one_on_policy():
    assert one_completion("vespo", [-1.0, -1.0], [0.0, 0.0], 1.0)[2]["sequence_weight"].tolist() == pytest.approx([1.0])


def test_dppo_stops_a_common_token_and_lets_a_rare_one_go_on():
    """A ratio clip does the opposite: it stops the rare token at 1.2 and lets the common one move by .25."""
    # common: .5 → .75, moved .25 > .2: stopped. rare: .01 → .02, moved .01: weight ρ = 2, mean over 2 tokens
    old = [math.log(0.5), math.log(0.01)]
    _, gradient, stats = one_completion("dppo", old, [math.log(1.5), math.log(2)], 1.0)
    assert gradient == pytest.approx([0.0, -1.0])
    assert stats["clipped_high"].tolist() == [[True, False]]


def test_dppo_stops_downwards_only_for_negative_advantages():
    # .5 → .25: moved −.25
    old, log_ratio = [math.log(0.5)], [math.log(0.5)]
    assert one_completion("dppo", old, log_ratio, -1.0)[1] == [0.0]
    assert one_completion("dppo", old, log_ratio, 1.0)[1] == pytest.approx([-0.5])


def test_dppo_has_a_limit_for_each_direction():
    # .5 → .25 moved −.25: within ε = .3 although ε_high is .09; .5 → .6 moved .1: beyond ε_high
    limits = dict(epsilon=0.3, epsilon_high=0.09)
    assert one_completion("dppo", [math.log(0.5)], [math.log(0.5)], -1.0, **limits)[1] == pytest.approx([0.5])
    assert one_completion("dppo", [math.log(0.5)], [math.log(1.2)], 1.0, **limits)[1] == [0.0]


def test_dppo_caps_the_weight():
    assert one_completion("dppo", [math.log(0.001)], [math.log(10)], 1.0)[1] == pytest.approx([-3.0])


def test_dppo_by_kl_stops_a_common_token_and_lets_a_rare_one_go_on():
    # .5 → .75: D = .5 ln(.5/.75) + .5 ln(.5/.25) = .5 ln(4/3) = .1438 > .05: stopped
    # .01 → .02: D = .01 ln .5 + .99 ln(.99/.98) = .0031: weight ρ = 2, mean over 2 tokens
    old = [math.log(0.5), math.log(0.01)]
    limits = dict(epsilon=0.05, epsilon_high=0.05)
    _, gradient, stats = one_completion("dppo_kl", old, [math.log(1.5), math.log(2)], 1.0, **limits)
    assert gradient == pytest.approx([0.0, -1.0])
    assert stats["clipped_high"].tolist() == [[True, False]]


@pytest.mark.parametrize(("new", "advantage", "stops"), [
    (0.75, 1.0, True), (0.75, -1.0, False),  # it rose: only what wants it higher stops
    (0.25, -1.0, True), (0.25, 1.0, False),
    (0.5, 1.0, False), (0.5, -1.0, False),  # D = 0
])
def test_dppo_by_kl_stops_only_the_way_the_advantage_pushes(new, advantage, stops):
    gradient = one_completion("dppo_kl", [math.log(0.5)], [math.log(new / 0.5)], advantage, epsilon=0.05, epsilon_high=0.05)[1]
    assert gradient == pytest.approx([0.0 if stops else -advantage * new / 0.5])


@pytest.mark.parametrize(("limit", "stops"), [(0.1438, True), (0.1439, False)])
def test_dppo_by_kl_measures_kl_of_the_token_against_all_others(limit, stops):
    # ½ ln(4/3) = .14384 upwards for .5 → .75 and, as ½ ln(.5/.25) + ½ ln(.5/.75), downwards for .5 → .25
    for new, advantage in ((0.75, 1.0), (0.25, -1.0)):
        gradient = one_completion("dppo_kl", [math.log(0.5)], [math.log(new / 0.5)], advantage, epsilon=limit, epsilon_high=limit)[1]
        assert (gradient == [0.0]) == stops


def test_dppo_by_kl_has_a_limit_for_each_direction_and_caps_the_weight():
    far = dict(epsilon=1.0, epsilon_high=0.1)
    assert one_completion("dppo_kl", [math.log(0.5)], [math.log(0.5)], -1.0, **far)[1] == pytest.approx([0.5])
    assert one_completion("dppo_kl", [math.log(0.5)], [math.log(1.5)], 1.0, **far)[1] == [0.0]
    assert one_completion("dppo_kl", [math.log(0.001)], [math.log(10)], 1.0)[1] == pytest.approx([-3.0])


@pytest.mark.parametrize(("old", "log_ratio"), [(0.0, 0.0), (0.0, -1.0), (-1.0, 1.0), (-40.0, 40.0), (0.0, -40.0)])
def test_dppo_by_kl_stays_finite_where_a_token_is_certain(old, log_ratio):
    loss, gradient, _ = one_completion("dppo_kl", [old], [log_ratio], 1.0)
    assert math.isfinite(loss) and all(map(math.isfinite, gradient))
