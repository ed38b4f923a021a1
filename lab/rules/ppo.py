"""PPO's own mathematics, for comparison with GRPO: token rewards, GAE, whitening, the clipped value loss.

A critic's values take the place of the group's mean. The policy term is GRPO's clipped one: pass the advantages (N, T)
from here to `grpo.grpo_loss` with loss_type "bnpo" and beta 0. Not here: the critic itself and its training loop.

    N completions · T tokens, right-padded · values and rewards are per token
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(
    rewards: Tensor, old_per_token_logps: Tensor, ref_per_token_logps: Tensor, completion_mask: Tensor, *, kl_coef: float
) -> Tensor:
    """−kl_coef · (log π_old − log π_ref) at each token, plus the completion's reward at its last one (N, T).

    This is where RLHF puts KL (InstructGPT, arXiv 2203.02155). A row with reward NaN must be masked out.
    """
    mask = completion_mask.bool()
    if (rewards.isnan() & mask.any(-1)).any():
        row = int((rewards.isnan() & mask.any(-1)).nonzero()[0])
        raise ValueError(f"Completion {row} has no reward (NaN): PPO needs one, or the row masked out.")
    kl = (old_per_token_logps - ref_per_token_logps).detach().where(mask, 0.0)
    is_last = mask & (mask.sum(-1, keepdim=True) - 1 == torch.arange(mask.shape[1], device=mask.device))
    return torch.where(is_last, rewards.unsqueeze(1), 0.0) - kl_coef * kl


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, completion_mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438): advantages and returns (N, T), 0 at padding.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γ λ A_{t+1}, with nothing after the last token; return = A + V.
    """
    mask = completion_mask.bool()
    values = values.where(mask, 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (error + gamma * lam * next_advantage).where(mask[:, t], 0.0)
        next_value = values[:, t]
        advantages[:, t] = next_advantage
    return advantages, (advantages + values).where(mask, 0.0)


def whiten(advantages: Tensor, completion_mask: Tensor) -> Tensor:
    """Mean 0 and variance 1 over all tokens of the optimiser batch (N, T), 0 at padding; PPO's usual last step."""
    mask = completion_mask.bool()
    kept = advantages[mask]
    if len(kept) < 2:
        return torch.zeros_like(advantages)
    return ((advantages - kept.mean()) / (kept.var() + 1e-8).sqrt()).where(mask, 0.0)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    completion_mask: Tensor,
    *,
    cliprange_value: float,
    num_tokens: int | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """½ · mean max((V − R)², (clip(V, V_old ± c) − R)²): the critic may not run away from its old self in one update.

    `num_tokens` counts the tokens of the whole optimiser batch, so that micro-batches add up; None: this is it.
    The stats are detached: (N, T) `value_error` = V − R and bool `value_clipped`.
    """
    mask = completion_mask.bool()
    near = torch.min(torch.max(values, old_values - cliprange_value), old_values + cliprange_value)
    free, clipped = (values - returns).square(), (near - returns).square()
    worst = torch.max(free, clipped).where(mask, 0.0)
    count = torch.as_tensor(mask.sum() if num_tokens is None else num_tokens, device=values.device).clamp(min=1)
    stats = {
        "value_error": (values - returns).detach().where(mask, 0.0),
        "value_clipped": (clipped > free).detach() & mask,
    }
    return 0.5 * worst.sum() / count, stats
