"""Entropy of the policy: learn at the undecided tokens only, or pay for staying undecided.

    N completions · T tokens · entropies (N, T) in nats
"""

from __future__ import annotations

import torch
from torch import Tensor

TIED = 1e-5  # nats; rounding that depends on the micro-batch stays below it


@torch.no_grad()
def top_entropy_mask(entropies: Tensor, completion_mask: Tensor, *, top_entropy_quantile: float) -> Tensor:
    """The `top_entropy_quantile` share of tokens with the highest entropy, as 1 and 0 (N, T); the "80/20 rule" keeps 0.2.

    Call it once with the whole optimiser batch, as the threshold depends on all its tokens (arXiv 2506.01939). Tokens after the same
    context have the same entropy up to rounding; where the threshold falls among them, all are kept.
    """
    mask = completion_mask.bool()
    if not mask.any():
        return torch.zeros_like(entropies)
    threshold = torch.quantile(entropies[mask].float(), 1 - top_entropy_quantile)
    return ((entropies >= threshold - TIED) & mask).to(entropies.dtype)


def entropy_bonus(entropies: Tensor, completion_mask: Tensor, *, num_tokens: int | Tensor | None = None) -> Tensor:
    """Mean entropy, to be subtracted from the loss times `entropy_coef`; carries the gradient.

    `num_tokens` counts the masked tokens of the whole optimiser batch, so that micro-batches add up; None: this is it.
    Multiply `completion_mask` by the top-entropy mask where one is used.
    """
    mask = completion_mask.bool()
    count = torch.as_tensor(mask.sum() if num_tokens is None else num_tokens, device=entropies.device)
    return entropies.where(mask, 0.0).sum() / count.clamp(min=1)


def adapt_entropy_coef(
    entropy_coef: float,
    entropy: float,
    *,
    entropy_target: float,
    entropy_coef_delta: float,
    entropy_coef_min: float,
    entropy_coef_max: float,
) -> tuple[float, float]:
    """The coefficient to remember and the one to apply at the next step, from this step's mean entropy.

    Skywork-OR1 (arXiv 2505.22312): below the target the coefficient grows and is applied; above it shrinks and rests.
    """
    if entropy <= entropy_target:
        grown = min(entropy_coef + entropy_coef_delta, entropy_coef_max)
        return grown, grown
    return max(entropy_coef - entropy_coef_delta, entropy_coef_min), 0.0
