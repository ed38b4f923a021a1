"""One token for each row from its logits: greedy or at random, and the log-probability of what was drawn.

The random draw is an inverse CDF in two levels. A row's probabilities are summed in blocks; a uniform number picks a
block by its cumulated sum, then a token within the block. It is the same distribution as a draw over the whole
vocabulary, at the price of one pass over it instead of one random number for each of its words.
Uniform numbers come from outside, one per row and position, so that a row's text does not depend on its neighbours.

    N rows · V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256


@dataclass(frozen=True)
class DrawSettings:
    """How tokens are drawn. The last three cut the tail off, so the ratio to the full distribution is biased (`contradictions`)."""

    temperature: float = 1.0
    greedy: bool = False
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits: Tensor, settings: DrawSettings, uniforms: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Tokens (N,) and their log-probability (N,) float32 under the full softmax(logits / temperature), uncut.

    `logits` is (N, V), of any float type; `uniforms` (N,) in [0, 1), needed unless greedy. Equal logits go to the lower
    token id when greedy.
    """
    scaled = logits.float()
    if settings.temperature != 1.0:
        scaled = scaled / settings.temperature
    probs = scaled.softmax(-1)
    if settings.greedy:
        tokens = logits.argmax(-1)  # before any division, as `generate` does
    else:
        tokens = inverse_cdf(_cut(probs, settings), uniforms)
    return tokens, probs.gather(-1, tokens[:, None]).squeeze(-1).log()


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Row-wise: the token (N,) at which the cumulated weights (N, V) pass uniforms · total. Zero weights are never chosen."""
    blocks = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    block, left = _pass(blocks.sum(-1), uniforms)
    inside = blocks[torch.arange(len(weights), device=weights.device), block]
    token, _ = _pass(inside, left)
    return block * BLOCK + token


def _pass(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Index (N,) where the cumulated weights pass uniforms · total, and how far into that index's own weight, in [0, 1)."""
    # float32 would lose the small weights beside a long sum; Apple's GPUs have nothing wider.
    wide = torch.float32 if weights.device.type == "mps" else torch.float64
    cumulated = weights.cumsum(-1, dtype=wide)
    target = uniforms.to(wide)[:, None] * cumulated[:, -1:]
    index = torch.searchsorted(cumulated, target, right=True)
    # A target rounded up to the total lies past the end: the last token that has any weight takes it.
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).byte().argmax(-1, keepdim=True)
    index = torch.minimum(index, last)
    weight = weights.gather(-1, index).to(wide)
    left = (target - (cumulated.gather(-1, index) - weight)) / weight
    return index.squeeze(-1), left.squeeze(-1).clamp(0.0, 1.0)


def _cut(weights: Tensor, settings: DrawSettings) -> Tensor:
    """Weights (N, V) with zeros where top-k, top-p or min-p drop a token, in this order, as `generate` does."""
    if settings.top_k and settings.top_k < weights.shape[-1]:
        smallest = weights.topk(settings.top_k, -1).values[:, -1:]
        weights = weights.masked_fill(weights < smallest, 0.0)
    if settings.top_p < 1.0:
        ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # what is above a token; the likeliest always stays
        ordered = ordered.masked_fill(before >= settings.top_p * weights.sum(-1, keepdim=True), 0.0)
        weights = torch.zeros_like(weights).scatter(-1, ids, ordered)
    if settings.min_p:
        weights = weights.masked_fill(weights < settings.min_p * weights.amax(-1, keepdim=True), 0.0)
    return weights
