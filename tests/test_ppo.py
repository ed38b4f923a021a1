"""PPO's mathematics on three tokens, worked by hand."""

from __future__ import annotations

import pytest
import torch

from lab.rules.ppo import gae, token_rewards, value_loss, whiten

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def test_the_reward_sits_on_the_last_token_and_kl_on_every_one():
    # kl .5 per token, coefficient .1: −.05 each, plus the reward at token 2 and token 1
    old, ref = torch.zeros(2, 3), torch.full((2, 3), -0.5)
    rewards = token_rewards(torch.tensor([1.0, 2.0]), old, ref, MASK, kl_coef=0.1)
    assert torch.allclose(rewards, torch.tensor([[-0.05, -0.05, 0.95], [-0.05, 1.95, 0.0]]))


def test_gae_by_hand():
    # γ = .9, λ = .5, γλ = .45, values .5, .4, .2, reward 1 at the end.
    # δ2 = 1 − .2 = .8;  δ1 = .9 · .2 − .4 = −.22;  δ0 = .9 · .4 − .5 = −.14
    # A2 = .8;  A1 = −.22 + .45 · .8 = .14;  A0 = −.14 + .45 · .14 = −.077;  returns = A + V
    values = torch.tensor([[0.5, 0.4, 0.2]])
    advantages, returns = gae(torch.tensor([[0.0, 0.0, 1.0]]), values, torch.ones(1, 3), gamma=0.9, lam=0.5)
    assert advantages[0].tolist() == pytest.approx([-0.077, 0.14, 0.8])
    assert returns[0].tolist() == pytest.approx([0.423, 0.54, 1.0])


def test_gae_stops_at_the_end_of_each_completion():
    """Row 1 ends at token 1: neither value nor reward of padding leaks into it."""
    values = torch.tensor([[0.5, 0.4, 0.2], [0.5, 0.4, float("nan")]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 7.0]])
    advantages, returns = gae(rewards, values, MASK, gamma=1.0, lam=1.0)
    # λ = γ = 1: A = sum of rewards to come − V
    assert advantages[1].tolist() == pytest.approx([0.5, 0.6, 0.0])
    assert returns[1].tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_gae_with_lambda_zero_is_the_one_step_error():
    values = torch.tensor([[0.5, 0.4, 0.2]])
    advantages, _ = gae(torch.tensor([[0.0, 0.0, 1.0]]), values, torch.ones(1, 3), gamma=1.0, lam=0.0)
    assert advantages[0].tolist() == pytest.approx([-0.1, -0.2, 0.8])


def test_whitened_advantages_have_mean_zero_and_variance_one_over_tokens():
    white = whiten(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]]), MASK)
    kept = white[MASK.bool()]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6) and kept.var().item() == pytest.approx(1.0, abs=1e-5)
    assert white[1, 2] == 0


def test_value_loss_takes_the_worse_of_free_and_clipped():
    # token 0: V .9, V_old .5, R 1, c .2: near .7: max(.01, .09) = .09, clipped
    # token 1: V .6, V_old .5, R 1: inside: .16. Token 2: V .1, V_old .5, R 1: near .3: max(.81, .49) = .81
    # ½ · (.09 + .16 + .81) / 3 = .176667
    values = torch.tensor([[0.9, 0.6, 0.1]], requires_grad=True)
    loss, stats = value_loss(values, torch.full((1, 3), 0.5), torch.ones(1, 3), torch.ones(1, 3), cliprange_value=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.53 / 3)
    assert stats["value_clipped"].tolist() == [[True, False, False]]
    assert values.grad[0].tolist() == pytest.approx([0.0, -0.4 / 3, -0.9 / 3])


def test_value_loss_adds_up_over_micro_batches_and_ignores_padding():
    values, old, returns = torch.rand(2, 3), torch.rand(2, 3), torch.rand(2, 3)
    values[1, 2] = returns[1, 2] = float("nan")
    whole, _ = value_loss(values, old, returns, MASK, cliprange_value=0.2)
    rows = [value_loss(values[i : i + 1], old[i : i + 1], returns[i : i + 1], MASK[i : i + 1], cliprange_value=0.2, num_tokens=5)[0]
            for i in range(2)]
    assert sum(rows).item() == pytest.approx(whole.item())


def test_a_completion_without_a_reward_must_be_masked():
    rewards, zeros = torch.tensor([1.0, float("nan")]), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="Completion 1 has no reward"):
        token_rewards(rewards, zeros, zeros, MASK, kl_coef=0.1)
    masked = MASK * torch.tensor([[1], [0]])
    assert token_rewards(rewards, zeros, zeros, masked, kl_coef=0.1).tolist() == [[0, 0, 1], [0, 0, 0]]
