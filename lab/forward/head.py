"""Hidden states → log-probability and entropy of given tokens, without ever keeping an (M, V) tensor for backward.

    M positions · D hidden size · V vocabulary

At a vocabulary of 150,000 the logits of one group would take gigabytes. They are made chunk by chunk, and made again
in the backward pass where they would be large. Leaves out the model body (`policy`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**24  # logits alive at once: 64 MiB in float32
CHUNK_CACHED = 2**22  # of the frozen head, where a chunk is read several times: small enough for a large cache


def token_logps(
    hidden: Tensor, tokens: Tensor, logits_of: Callable[[Tensor], Tensor], temperature: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """log π(token) and the entropy −Σ π log π, each (M,) float32, of the distribution softmax(logits / temperature).

    `hidden` is (M, D), `tokens` (M,), `logits_of` maps (m, D) to (m, V). Both results are differentiable in `hidden`.
    """
    rows = max(1, CHUNK_LOGITS // vocabulary)
    if len(hidden) <= rows:
        return _chunk_logps(hidden, tokens, logits_of, temperature)
    parts = [
        checkpoint(_chunk_logps, h, t, logits_of, temperature, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(hidden.split(rows), tokens.split(rows), strict=True)
    ]
    logps, entropies = zip(*parts, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _chunk_logps(hidden: Tensor, tokens: Tensor, logits_of, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(logits_of(hidden).float() / temperature, dim=-1)  # (m, V)
    chosen = log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # −inf logits (a model that forbids a token) have probability 0 and add nothing; 0 · −inf would be NaN.
    entropy = -(log_probs.exp() * log_probs.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    return chosen, entropy


def logit_rule(config) -> Callable[[Tensor], Tensor]:
    """What some families do to the head's output: Gemma caps it, Granite divides it, Cohere and Falcon-H1 multiply it."""
    cap = getattr(config, "final_logit_softcapping", None)
    divisor = getattr(config, "logits_scaling", None)
    factor = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None)

    def apply(logits: Tensor) -> Tensor:
        if divisor:
            logits = logits / divisor
        if factor:
            logits = logits * factor
        return torch.tanh(logits / cap) * cap if cap else logits

    return apply


def has_logit_rule(config) -> bool:
    names = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
    return any(getattr(config, name, None) for name in names)


def frozen_head_logps(hidden: Tensor, tokens: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`token_logps` for a plain head `weight` (V, D) that is not trained: two products with it instead of three.

    The gradient of log π(token) in `hidden` is (W[token] − Σ π W) / temperature times what comes from above, so it is
    made in the forward while a chunk's probabilities are at hand. The entropy carries no gradient.
    """
    return _FrozenHead.apply(hidden, tokens, weight, temperature)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, tokens, weight, temperature):
        rows = max(1, CHUNK_CACHED // weight.shape[0])
        wants_gradient = ctx.needs_input_grad[0]
        logps, entropy = hidden.new_empty(len(hidden), dtype=torch.float32), hidden.new_empty(len(hidden), dtype=torch.float32)
        slope = torch.empty_like(hidden) if wants_gradient else None
        for begin in range(0, len(hidden), rows):
            part = slice(begin, begin + rows)
            scores = (hidden[part] @ weight.mT).float()
            if temperature != 1.0:
                scores /= temperature
            # Softmax is the one fast pass over a large vocabulary on CPU; log Σ exp follows from its largest entry.
            probs = scores.softmax(-1)
            log_total = scores.amax(-1) - probs.amax(-1).log()
            logps[part] = scores.gather(-1, tokens[part, None]).squeeze(-1) - log_total
            entropy[part] = log_total - torch.linalg.vecdot(probs, scores)
            if wants_gradient:
                slope[part] = weight[tokens[part]] - probs.to(weight.dtype) @ weight
        if wants_gradient:
            ctx.save_for_backward(slope)
            ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx, grad_logps, _):
        slope, = ctx.saved_tensors
        return slope * (grad_logps / ctx.temperature).to(slope.dtype)[:, None], None, None, None
