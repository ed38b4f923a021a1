"""The sampler draws from exactly the distribution it says, whatever cuts are on."""

from __future__ import annotations

import math

import pytest
import torch

from lab.forward.draw import BLOCK, DrawSettings, draw, inverse_cdf


def uniforms(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


def test_draws_follow_the_softmax_by_a_chi_square_test():
    # 12 tokens over three blocks; 200,000 draws. χ² with 11 degrees of freedom exceeds 31.26 once in a thousand.
    vocabulary, n = 2 * BLOCK + 40, 200_000
    logits = torch.full((vocabulary,), -math.inf)
    live = torch.tensor([0, 1, 7, 200, 255, 256, 300, 511, 512, 520, 540, 551])
    logits[live] = torch.linspace(-2.0, 1.0, 12)
    tokens, _ = _many(logits, n)
    expected = torch.softmax(logits[live] / 0.8, 0) * n
    seen = torch.bincount(tokens, minlength=vocabulary)
    assert seen.sum() == seen[live].sum(), "a token of probability 0 was drawn"
    assert float(((seen[live] - expected) ** 2 / expected).sum()) < 31.26


def _many(logits, n):
    parts = [draw(logits.expand(len(u), -1), DrawSettings(temperature=0.8), u) for u in uniforms(n).split(10_000)]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logps for _, logps in parts])


def test_two_levels_pick_what_one_cumulative_sum_picks():
    weights = torch.rand(64, 3 * BLOCK + 17, generator=torch.Generator().manual_seed(1)).double()
    u = uniforms(64, 2)
    one_level = torch.searchsorted(weights.cumsum(-1), u.double()[:, None] * weights.sum(-1, keepdim=True), right=True)[:, 0]
    assert torch.equal(inverse_cdf(weights, u), one_level)


def test_the_largest_uniform_never_lands_past_the_last_token_with_weight():
    weights = torch.zeros(1, BLOCK + 5)
    weights[0, 3] = weights[0, 9] = 1.0
    assert inverse_cdf(weights, torch.tensor([1.0])).item() == 9
    assert inverse_cdf(weights, torch.tensor([0.0])).item() == 3  # not token 0, which has no weight


def test_log_probability_is_of_the_full_distribution_even_when_the_tail_is_cut():
    # softmax(0, ln 2, ln 5) = 1/8, 2/8, 5/8. top-k 1 always draws token 2; its log-probability stays ln 5/8.
    logits = torch.tensor([[0.0, math.log(2), math.log(5)]])
    tokens, logps = draw(logits, DrawSettings(top_k=1), torch.tensor([0.01]))
    assert tokens.item() == 2
    assert logps.item() == pytest.approx(math.log(5 / 8), abs=1e-6)


def test_temperature_divides_the_logits():
    # logits 0, ln 4 at temperature 2 are 0, ln 2: probabilities 1/3, 2/3.
    logits = torch.tensor([[0.0, math.log(4)]])
    tokens, logps = draw(logits, DrawSettings(temperature=2.0), torch.tensor([0.5]))
    assert (tokens.item(), logps.item()) == (1, pytest.approx(math.log(2 / 3), abs=1e-6))
    tokens, logps = draw(logits, DrawSettings(temperature=2.0), torch.tensor([0.3]))
    assert (tokens.item(), logps.item()) == (0, pytest.approx(math.log(1 / 3), abs=1e-6))


@pytest.mark.parametrize("settings,kept", [
    (DrawSettings(top_k=2), {1, 3}),
    (DrawSettings(top_p=0.6), {1, 3}),  # .4 < .6, so the second (.3) is still taken; .7 ≥ .6 stops
    (DrawSettings(top_p=0.4), {1}),
    (DrawSettings(min_p=0.4), {1, 2, 3}),  # .4 · .4 = .16
    (DrawSettings(top_k=3, min_p=0.6), {1, 3}),  # .24 keeps .4 and .3
])
def test_cuts_keep_exactly_the_tokens_they_promise(settings, kept):
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    u = torch.arange(0.0005, 1, 0.001)
    tokens, _ = draw(logits.expand(len(u), -1), settings, u)
    assert set(tokens.tolist()) == kept


def test_greedy_takes_the_largest_logit_and_needs_no_random_number():
    tokens, logps = draw(torch.tensor([[1.0, 3.0, 2.0]]), DrawSettings(greedy=True))
    assert tokens.item() == 1
    assert logps.item() == pytest.approx(3 - math.log(math.e + math.e**3 + math.e**2), abs=1e-6)
