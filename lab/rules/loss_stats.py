"""From the token stats of `grpo_loss` to the metrics TRL logs, exact over any split into micro-batches.

Sums and counts are added up first and divided once, so the numbers do not depend on the split.

    N completions · T tokens · one dict of stats per micro-batch
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def metrics(stats: Sequence[dict[str, Tensor]], *, loss_type: str, importance_sampling_level: str) -> dict[str, Tensor]:
    """TRL's metric names → 0-d tensors, for the micro-batches of one optimiser batch.

    `kl`, with a reference; `entropy`, if the caller put its (N, T) entropies into the stats; `clip_ratio/*` for clipped
    losses, dppo and dppo_kl, `cispo_clip_ratio`, `vespo/phi_seq_mean`. Ours beside them: `log_ratio_clamped` and `kl_clamped`,
    the number of tokens whose log-ratio was cut at ±20. At sequence level a clip ratio counts completions, as in TRL.
    """
    result = {name: total(stats, name) for name in ("log_ratio_clamped", "kl_clamped") if name in stats[0]}
    if "per_token_kl" in stats[0]:
        result["kl"] = token_mean(stats, "per_token_kl")
    if "entropy" in stats[0]:
        result["entropy"] = token_mean(stats, "entropy")
    if loss_type == "vespo":
        result["vespo/phi_seq_mean"] = torch.cat([s["sequence_weight"] for s in stats]).mean()
    elif loss_type == "cispo":
        result["cispo_clip_ratio"] = clip_share(stats, "clipped_high", importance_sampling_level)
    elif loss_type != "sapo":
        result |= clip_ratios(stats, importance_sampling_level)
    return result


def clip_ratios(stats: Sequence[dict[str, Tensor]], level: str) -> dict[str, Tensor]:
    """TRL's five clip metrics, 0-d shares."""
    low, high = clip_share(stats, "clipped_low", level), clip_share(stats, "clipped_high", level)
    return {
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,  # no token is clipped at both ends
        "clip_ratio/low_min": clip_shares_by_row(stats, "clipped_low").min(),
        "clip_ratio/high_max": clip_shares_by_row(stats, "clipped_high").max(),
    }


def clip_share(stats: Sequence[dict[str, Tensor]], name: str, level: str) -> Tensor:
    """Share of clipped tokens, or at sequence level of completions with a clipped token."""
    if level == "sequence":
        return torch.cat([s[name].any(-1) for s in stats]).float().mean()
    return token_mean(stats, name)


def clip_shares_by_row(stats: Sequence[dict[str, Tensor]], name: str) -> Tensor:
    """Share of clipped tokens in each completion that has any; a fully masked one says nothing."""
    shares = torch.cat([s[name].sum(-1) / s["mask"].sum(-1) for s in stats])
    kept = shares[~shares.isnan()]
    return kept if len(kept) else shares.new_zeros(1)


def token_mean(stats: Sequence[dict[str, Tensor]], name: str) -> Tensor:
    """Mean over all unmasked tokens of all micro-batches; padding never counts."""
    summed = sum((s[name] * s["mask"]).sum() for s in stats)
    return summed / sum(s["mask"].sum() for s in stats).clamp(min=1)


def total(stats: Sequence[dict[str, Tensor]], name: str) -> Tensor:
    """A count summed over micro-batches."""
    return sum(s[name] for s in stats)
