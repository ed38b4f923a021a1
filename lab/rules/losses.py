"""Policy terms that came after GRPO's clipped one: CISPO, SAPO, VESPO, DPPO by either of its distances.

Each takes the same `Tokens`, names the settings it uses (TRL's names) and lets the rest pass. What they are divided by
is `grpo.token_weights`. Not here: the clipped term of grpo, bnpo, dr_grpo, dapo and luspo, which is in `grpo.py`.

    N completions · T tokens · ρ = π / π_old · A = advantage
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ALMOST_CERTAIN = -1e-6  # log-probability that stands for 0: of a token as good as certain the rest still has a logarithm


class Tokens(NamedTuple):
    """What a policy term may look at; log-probs are 0 at padding."""

    logps: Tensor  # (N, T), carries the gradient
    old_logps: Tensor  # (N, T), of the policy that sampled
    ratio: Tensor  # (N, T) or, at sequence level, (N, 1); carries the gradient
    advantages: Tensor  # (N, 1) or (N, T)
    mask: Tensor  # (N, T) bool


class PolicyTerm(NamedTuple):
    """A term to be minimised, and which tokens it stopped pushing (all broadcast to (N, T))."""

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    sequence_weight: Tensor | None = None  # (N, 1), vespo's φ


def cispo_term(tokens: Tokens, *, epsilon_high: float, **_) -> PolicyTerm:
    """−sg[min(ρ, ε_high)] · A · log π (MiniMax-M1, arXiv 2506.13585): the weight is capped, no token loses its gradient.

    ε_high is an absolute cap such as 5, not a distance from 1.
    """
    capped = tokens.ratio.detach().clamp(max=epsilon_high)
    above = (tokens.ratio > epsilon_high) & (tokens.advantages > 0)
    return PolicyTerm(-capped * tokens.advantages * tokens.logps, torch.zeros_like(above), above)


def sapo_term(tokens: Tokens, *, sapo_temperature_pos: float, sapo_temperature_neg: float, **_) -> PolicyTerm:
    """−(4/τ) · σ(τ(ρ − 1)) · A with τ by the sign of A (SAPO, arXiv 2511.20347): a soft gate instead of a clip."""
    tau = torch.where(tokens.advantages > 0, sapo_temperature_pos, sapo_temperature_neg)
    gate = torch.sigmoid(tau * (tokens.ratio - 1)) * 4 / tau
    none = torch.zeros_like(tokens.mask)
    return PolicyTerm(-gate * tokens.advantages, none, none)


def vespo_term(
    tokens: Tokens,
    *,
    vespo_k_pos: float,
    vespo_lambda_pos: float,
    vespo_k_neg: float,
    vespo_lambda_neg: float,
    **_,
) -> PolicyTerm:
    """−sg[φ(w)] · A · log π with φ(w) = e^λ w^k e^(−λw), so φ(1) = 1, and w the ratio of the whole sequence (VESPO).

    k and λ depend on the sign of A. As in TRL, log w is a sum over tokens clamped to [log 1e-8, 20].
    """
    log_ratio = (tokens.logps - tokens.old_logps).detach().clamp(-20.0, 20.0)
    log_w = (log_ratio * tokens.mask).sum(-1, keepdim=True).clamp(math.log(1e-8), 20.0)
    good = tokens.advantages >= 0
    k = torch.where(good, vespo_k_pos, vespo_k_neg)
    rate = torch.where(good, vespo_lambda_pos, vespo_lambda_neg).clamp(min=1e-4)
    phi = (rate + k * log_w - rate * log_w.exp()).exp()
    none = torch.zeros_like(tokens.mask)
    return PolicyTerm(-phi * tokens.advantages * tokens.logps, none, none, sequence_weight=phi)


def dppo_term(tokens: Tokens, *, epsilon: float, epsilon_high: float, dppo_ratio_cap: float, **_) -> PolicyTerm:
    """−sg[min(ρ, cap)] · A · log π, for tokens whose probability has not yet moved far the way A pushes.

    DPPO with total variation (arXiv 2602.04879): a token stops when π − π_old > ε_high (A > 0) or < −ε (A < 0).
    A ratio clip stops rare tokens at once and common ones hardly ever; a distance in probability treats both alike.
    """
    moved = tokens.logps.detach().exp() - tokens.old_logps.exp()
    return _stopped(tokens, moved < -epsilon, moved > epsilon_high, dppo_ratio_cap)


def dppo_kl_term(tokens: Tokens, *, epsilon: float, epsilon_high: float, dppo_ratio_cap: float, **_) -> PolicyTerm:
    """As `dppo_term`, with KL for the distance: a token stops when D > ε_high (A > 0, it has risen) or D > ε (A < 0, it has fallen).

    D = p log(p/q) + (1 − p) log((1 − p)/(1 − q)) with p = π_old and q = π: the KL that can be told from the sampled token alone,
    against everything else (DPPO's binary KL, arXiv 2602.04879).
    """
    new, old = (logp.detach().clamp(max=ALMOST_CERTAIN) for logp in (tokens.logps, tokens.old_logps))
    p, rest, new_rest = old.exp(), -torch.expm1(old), -torch.expm1(new)
    distance = p * (old - new) + rest * (rest / new_rest).log()
    return _stopped(tokens, (new < old) & (distance > epsilon), (new > old) & (distance > epsilon_high), dppo_ratio_cap)


def _stopped(tokens: Tokens, fallen_far: Tensor, risen_far: Tensor, cap: float) -> PolicyTerm:
    """−sg[min(ρ, cap)] · A · log π, 0 for a token that has gone far the way its advantage pushes."""
    too_low, too_high = fallen_far & (tokens.advantages < 0), risen_far & (tokens.advantages > 0)
    weight = tokens.ratio.detach().clamp(max=cap) * ~(too_high | too_low)
    return PolicyTerm(-weight * tokens.advantages * tokens.logps, too_low, too_high)


LATER_TERMS = {"cispo": cispo_term, "sapo": sapo_term, "vespo": vespo_term, "dppo": dppo_term, "dppo_kl": dppo_kl_term}
LATER_SETTINGS = {
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "dppo_ratio_cap",
}
