"""Group Relative Policy Optimization: rewards in, loss out. This file is the algorithm.

Read it top to bottom: advantages of a group, probability ratio, KL to the reference, the clipped term, the loss.
Tensors in, tensors out; nothing is written into an argument, and no number has a default (`RunConfig` holds them).

    N completions (rows), some of which form a group · T completion tokens, right-padded

Sources: DeepSeekMath (arXiv 2402.03300) for the method; TRL 1.16 for the names and for the losses of later papers,
to which `tests/test_trl_parity.py` compares values and gradients. Departures, all on purpose: normalisers span the
whole optimiser batch, so splitting it into micro-batches changes nothing; a tied group gets exactly zero; log-ratios
are clamped to ±20 and the clamped tokens are counted; a reward that is not applicable never counts as 0.

Beside it, in `rules/`: `groups.py` (statistics of groups, totals of several rewards), `advantages.py` (other advantage rules, step
rewards), `losses.py` (the policy terms of later papers), `masks.py` and `entropy.py` (which tokens count), `ppo.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lab.rules.groups import GroupStats, combine_rewards, group_stats, nanstd, wide
from lab.rules.losses import LATER_SETTINGS, LATER_TERMS, PolicyTerm, Tokens

__all__ = [
    "BatchTotals",
    "GroupStats",
    "POLICY_TERMS",
    "batch_totals",
    "combine_rewards",
    "group_advantages",
    "group_stats",
    "grpo_loss",
    "kl_estimate",
]

STD_EPSILON = 1e-4  # keeps a nearly tied group from blowing up; TRL's value
MAX_LOG_RATIO = 20.0  # e^20 ≈ 5e8; beyond it a float32 loss overflows


# ---------------------------------------------------------------- rewards → advantages


def group_advantages(
    rewards: Tensor,
    *,
    num_generations: int | None = None,
    group_ids: Tensor | None = None,
    scale_rewards: str | bool,
) -> Tensor:
    """How much better each completion was than the rest of its group: (r − mean) / (std + 1e-4).

    `rewards` is (N,), NaN where no reward applied. Groups are named by `group_ids` (N,), any integers in any order, or
    are `num_generations` neighbours each. `scale_rewards` says which sample standard deviation divides: "group"
    (DeepSeekMath §4.1.2, arXiv 2402.03300), "batch" (Lite PPO, arXiv 2508.08221) or "none" (Dr. GRPO, arXiv
    2503.20783). Returns (N,). A tied group gets exactly 0, and so does a row whose reward is NaN.

    >>> group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), num_generations=4, scale_rewards="group")
    tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    groups = group_stats(rewards, num_generations=num_generations, group_ids=group_ids)
    centred = wide(rewards) - groups.mean[groups.index]
    std = scaling_std(rewards, groups, scale_rewards)
    return zero_without_signal(centred / std, groups).to(rewards.dtype)


def scaling_std(rewards: Tensor, groups: GroupStats, scale_rewards: str | bool) -> Tensor:
    """What the centred rewards are divided by, one value per row (N,)."""
    if scale_rewards in ("group", True):
        return groups.std[groups.index] + STD_EPSILON
    if scale_rewards == "batch":
        return (nanstd(wide(rewards)) + STD_EPSILON).expand(len(rewards))
    if scale_rewards in ("none", False):
        return torch.ones_like(wide(rewards))
    raise ValueError(f"scale_rewards is {scale_rewards!r}; it must be 'group', 'batch' or 'none'.")


def zero_without_signal(advantages: Tensor, groups: GroupStats) -> Tensor:
    """Exactly 0 for rows without a reward and rows of tied groups, so that rounding never becomes a gradient."""
    return advantages.where(~groups.dead[groups.index], 0.0).nan_to_num(nan=0.0)


# ---------------------------------------------------------------- ratio and KL


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Within ±20, any shape, in nats; whoever clamps counts what was cut."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance_log_ratio(log_ratio: Tensor, mask: Tensor, importance_sampling_level: str) -> Tensor:
    """log ρ from log π − log π_old: per "token" (N, T), or the "sequence" mean (N, 1) of GSPO (arXiv 2507.18071).

    The mean and not the sum: e^sum explodes with length.
    """
    if importance_sampling_level == "token":
        return log_ratio
    if importance_sampling_level == "sequence":
        return (log_ratio * mask).sum(-1, keepdim=True) / lengths_of(mask)
    raise ValueError(f"importance_sampling_level is {importance_sampling_level!r}; it must be 'token' or 'sequence'.")


def kl_estimate(per_token_logps: Tensor, ref_per_token_logps: Tensor, ratio: Tensor, kl_estimator: str) -> Tensor:
    """Per-token estimate (N, T) of KL(policy ‖ reference) from the sampled token alone (Schulman 2020).

    With d = log π_ref − log π: k1 = −d, k2 = d²/2, k3 = e^d − d − 1 (DeepSeekMath eq. 4), and k3_corrected = ρ · k3
    (DeepSeek-V3.2, arXiv 2512.02556; TRL's default). All measure the same thing, their gradients differ. On-policy and
    in expectation k1 gives none at all, k3 that of KL(ref ‖ π), k2 and k3_corrected that of KL(π ‖ ref).
    """
    d = clamp_log_ratio(ref_per_token_logps - per_token_logps)
    if kl_estimator == "k1":
        return -d
    if kl_estimator == "k2":
        return d.square() / 2
    if kl_estimator == "k3":
        return torch.expm1(d) - d
    if kl_estimator == "k3_corrected":
        return ratio * (torch.expm1(d) - d)
    raise ValueError(f"kl_estimator is {kl_estimator!r}; it must be 'k1', 'k2', 'k3' or 'k3_corrected'.")


# ---------------------------------------------------------------- the clipped term


def clipped_term(
    tokens: Tokens, *, epsilon: float, epsilon_high: float, delta: float | None = None, **_
) -> PolicyTerm:
    """−min(ρ A, clip(ρ, 1 − ε, 1 + ε_high) A), the surrogate of PPO (arXiv 1707.06347) that GRPO kept.

    `epsilon_high` above `epsilon` lets unlikely tokens rise (DAPO, arXiv 2503.14476). `delta` caps ρ for A < 0 too,
    where plain clipping has no limit (INTELLECT-2, arXiv 2505.07291).
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    inside = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    capped = ratio if delta is None else ratio.clamp(max=delta)
    return PolicyTerm(
        loss=-torch.min(capped * advantages, inside * advantages),
        clipped_low=(ratio < 1 - epsilon) & (advantages < 0),
        clipped_high=(ratio > 1 + epsilon_high) & (advantages > 0),
    )


POLICY_TERMS = dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "luspo"), clipped_term) | LATER_TERMS
"""loss_type → the function that gives each token's policy term."""


# ---------------------------------------------------------------- the loss


class BatchTotals(NamedTuple):
    """Sizes of one whole optimiser batch: what losses are divided by, however it is split into micro-batches."""

    num_sequences: int | Tensor
    num_tokens: int | Tensor


def batch_totals(completion_mask: Tensor) -> BatchTotals:
    """Totals of the optimiser batch whose mask (N, T) this is. Rows masked as truncated stay in `num_sequences`."""
    return BatchTotals(num_sequences=len(completion_mask), num_tokens=completion_mask.bool().sum())


def token_weights(
    loss_type: str, mask: Tensor, totals: BatchTotals, max_completion_length: int | None
) -> Tensor:
    """The weight (N, T) of each token in the loss; 0 at padding. It is all in which grpo, bnpo, dr_grpo, dapo differ.

    Every sequence alike (grpo, sapo): 1 / (L_i · N). Every token alike (bnpo, dapo, cispo, vespo, dppo, dppo_kl): 1 / Σ L_i.
    A constant (dr_grpo): 1 / (N · max_completion_length), free of length bias. luspo (arXiv 2602.05261): 1 / N.
    """
    num_sequences = torch.as_tensor(totals.num_sequences, device=mask.device).clamp(min=1)
    num_tokens = torch.as_tensor(totals.num_tokens, device=mask.device).clamp(min=1)
    if loss_type in ("grpo", "sapo"):
        return mask / (lengths_of(mask) * num_sequences)
    if loss_type in ("bnpo", "dapo", "cispo", "vespo", "dppo", "dppo_kl"):
        return mask / num_tokens
    if loss_type == "luspo":
        return mask / num_sequences
    if loss_type == "dr_grpo":
        if max_completion_length is None:
            raise ValueError("loss_type 'dr_grpo' divides by max_completion_length: pass it.")
        return mask / (num_sequences * max_completion_length)
    raise ValueError(f"loss_type is {loss_type!r}; it must be one of {', '.join(POLICY_TERMS)}.")


def grpo_loss(
    per_token_logps: Tensor,
    old_per_token_logps: Tensor | None,
    ref_per_token_logps: Tensor | None,
    advantages: Tensor,
    completion_mask: Tensor,
    *,
    loss_type: str,
    epsilon: float,
    epsilon_high: float | None,
    delta: float | None,
    beta: float,
    kl_estimator: str,
    importance_sampling_level: str,
    max_completion_length: int | None = None,
    totals: BatchTotals | None = None,
    policy_mask: Tensor | None = None,
    **settings: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The GRPO objective with its sign turned, to be minimised. Returns the scalar loss and what it was made of.

    Log-probs are (N, T), of the sampled tokens, from logits / temperature. `old_per_token_logps` None means on-policy
    (the current ones, detached). `ref_per_token_logps` None means no KL is computed; `beta` must then be 0.
    `advantages` is (N,), or (N, T) for step rewards. `completion_mask` (N, T) is 1 up to and including EOS.
    `epsilon_high` None means `epsilon`; for cispo it is an absolute cap on ρ.
    `totals` are those of the whole optimiser batch: the losses of its micro-batches then add up to the loss of the
    batch, in value and gradient. None: this call is the whole batch.
    `policy_mask` (N, T) or (N, 1) drops tokens from the policy term but not from the KL or the normaliser (`masks.py`).
    `settings` are the numbers that only one `loss_type` knows, by TRL's names (`losses.py`).

    The stats are detached: (N, T) `ratio`, `clipped_low`, `clipped_high`, `per_token_kl` (with a reference),
    `policy_loss`, `mask` and `weight`, so that loss = Σ weight · (policy_loss + beta · per_token_kl); and 0-d counts
    `log_ratio_clamped`, `kl_clamped`. `loss_stats.metrics` turns them into TRL's metrics.
    """
    check_shapes(per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask)
    check_settings(loss_type, settings)
    if beta != 0 and ref_per_token_logps is None:
        raise ValueError(f"beta is {beta}, so the loss needs ref_per_token_logps; it is None.")
    mask = completion_mask.bool()
    logps = without_padding(per_token_logps, mask)
    old_logps = logps.detach() if old_per_token_logps is None else without_padding(old_per_token_logps, mask)
    if advantages.dim() == 1:
        advantages = advantages.unsqueeze(1)  # (N, 1): every token of a completion shares its advantage

    raw_log_ratio = importance_log_ratio(logps - old_logps, mask, importance_sampling_level)
    ratio = clamp_log_ratio(raw_log_ratio).exp()  # (N, T) or (N, 1)
    tokens = Tokens(logps=logps, old_logps=old_logps, ratio=ratio, advantages=advantages, mask=mask)
    term = POLICY_TERMS[loss_type](
        tokens,
        epsilon=epsilon,
        epsilon_high=epsilon if epsilon_high is None else epsilon_high,
        delta=delta,
        **settings,
    )
    per_token_loss = term.loss if policy_mask is None else term.loss * policy_mask
    stats = describe(tokens, term, policy_loss=per_token_loss, raw_log_ratio=raw_log_ratio)

    if ref_per_token_logps is not None:
        ref_logps = without_padding(ref_per_token_logps, mask)
        per_token_kl = kl_estimate(logps, ref_logps, ratio, kl_estimator)
        stats["per_token_kl"] = per_token_kl.detach() * mask
        stats["kl_clamped"] = ((ref_logps - logps).detach().abs() > MAX_LOG_RATIO).sum()
        if beta != 0:
            per_token_loss = per_token_loss + beta * per_token_kl

    weight = token_weights(loss_type, mask, totals or batch_totals(mask), max_completion_length)
    stats["weight"] = weight
    return (weight * per_token_loss).sum(), stats


def describe(tokens: Tokens, term: PolicyTerm, *, policy_loss: Tensor, raw_log_ratio: Tensor) -> dict[str, Tensor]:
    """The detached parts of the policy term, spread to (N, T) and 0 at padding."""
    mask = tokens.mask
    stats = {
        "ratio": tokens.ratio.detach() * mask,
        "policy_loss": policy_loss.detach() * mask,
        "clipped_low": term.clipped_low & mask,
        "clipped_high": term.clipped_high & mask,
        "mask": mask,
        "log_ratio_clamped": ((raw_log_ratio.detach().abs() > MAX_LOG_RATIO) & mask).sum(),
    }
    if term.sequence_weight is not None:
        stats["sequence_weight"] = term.sequence_weight.mean(-1)
    return stats


# ---------------------------------------------------------------- small helpers


def lengths_of(mask: Tensor) -> Tensor:
    """Tokens per completion (N, 1), at least 1 so that a fully masked row divides by something."""
    return mask.sum(-1, keepdim=True).clamp(min=1)


def without_padding(per_token: Tensor, mask: Tensor) -> Tensor:
    """0 at padding, before any arithmetic: −inf or NaN there would survive a multiplication by 0. At least float32."""
    per_token = per_token if per_token.dtype == torch.float64 else per_token.float()
    return per_token.where(mask, 0.0)


def check_shapes(logps: Tensor, old: Tensor | None, ref: Tensor | None, advantages: Tensor, mask: Tensor) -> None:
    """All (N, T), advantages (N,) or (N, T). Raises ValueError with the name and both shapes."""
    named = {"old_per_token_logps": old, "ref_per_token_logps": ref, "completion_mask": mask}
    for name, tensor in named.items():
        if tensor is not None and tensor.shape != logps.shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, but per_token_logps is {tuple(logps.shape)}.")
    if advantages.shape not in (logps.shape, logps.shape[:1]):
        raise ValueError(f"advantages is {tuple(advantages.shape)}; it must be (N,) or (N, T) = {tuple(logps.shape)}.")


def check_settings(loss_type: str, settings: dict[str, float]) -> None:
    """A loss type nobody knows and a setting nobody reads are mistakes, not things to pass over."""
    if loss_type not in POLICY_TERMS:
        raise ValueError(f"loss_type is {loss_type!r}; it must be one of {', '.join(POLICY_TERMS)}.")
    unknown = sorted(set(settings) - LATER_SETTINGS)
    if unknown:
        raise TypeError(f"grpo_loss has no setting named {', '.join(unknown)}.")
