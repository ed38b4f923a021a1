"""Top-entropy mask, entropy bonus and its adaptive coefficient."""

from __future__ import annotations

import pytest
import torch

from lab.rules.entropy import adapt_entropy_coef, entropy_bonus, top_entropy_mask

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
ENTROPIES = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 99.0]])  # the last is padding


def test_the_most_undecided_share_of_tokens_is_kept():
    # five tokens, keep 40 %: the 60 % quantile of .1 … .5 is .34, so .4 and .5 stay
    assert top_entropy_mask(ENTROPIES, MASK, top_entropy_quantile=0.4).tolist() == [[0, 0, 0], [1, 1, 0]]


def test_tokens_that_only_rounding_tells_apart_are_kept_or_left_together():
    # the 50 % quantile of five is the third in order, which lies among the three equal ones
    for rounding in (torch.tensor([0.0, 1e-6, -1e-6]), torch.tensor([-1e-6, 0.0, 1e-6])):
        entropies = torch.tensor([[0.1, *(0.7 + rounding), 0.9]])
        assert top_entropy_mask(entropies, torch.ones(1, 5), top_entropy_quantile=0.5).tolist() == [[0, 1, 1, 1, 1]]


def test_all_tokens_are_kept_at_one_and_none_of_the_padding():
    assert torch.equal(top_entropy_mask(ENTROPIES, MASK, top_entropy_quantile=1.0), MASK.float())


def test_a_batch_without_tokens_keeps_nothing():
    assert (top_entropy_mask(ENTROPIES, torch.zeros(2, 3), top_entropy_quantile=0.2) == 0).all()


def test_the_bonus_is_the_mean_over_tokens_and_adds_up_over_micro_batches():
    assert entropy_bonus(ENTROPIES, MASK).item() == pytest.approx(0.3)  # 1.5 / 5
    parts = [entropy_bonus(ENTROPIES[i : i + 1], MASK[i : i + 1], num_tokens=5) for i in range(2)]
    assert sum(parts).item() == pytest.approx(0.3)


def test_the_bonus_carries_a_gradient_to_real_tokens_only():
    entropies = ENTROPIES.clone().requires_grad_()
    entropy_bonus(entropies, MASK).backward()
    assert torch.allclose(entropies.grad, MASK / 5)


def test_the_coefficient_grows_below_the_target_and_rests_above_it():
    limits = dict(entropy_target=0.2, entropy_coef_delta=0.005, entropy_coef_min=0.0, entropy_coef_max=0.012)
    assert adapt_entropy_coef(0.01, 0.1, **limits) == (0.012, 0.012)  # capped
    kept, applied = adapt_entropy_coef(0.012, 0.5, **limits)
    assert kept == pytest.approx(0.007) and applied == 0.0
    assert adapt_entropy_coef(0.003, 0.5, **limits) == (0.0, 0.0)
