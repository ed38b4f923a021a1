"""Which completions take part: truncated ones, and ones that the policy has moved away from.

Not here: the mask of padding, which comes with the rollout (from lengths, EOS included), and the mask of undecided
tokens, in `entropy.py`.

    N completions · T tokens
"""

from __future__ import annotations

import torch
from torch import Tensor


def mask_truncated(completion_mask: Tensor, finished: Tensor) -> Tensor:
    """`completion_mask` (N, T) with the rows that did not end by themselves set to 0 (DAPO §3.4, arXiv 2503.14476).

    Use it for loss, KL and token counts alike; the rewards of these rows still belong to their group's mean.
    """
    return completion_mask * finished.to(completion_mask.dtype).unsqueeze(1)


@torch.no_grad()
def off_policy_sequence_mask(
    per_token_logps: Tensor,
    sampling_per_token_logps: Tensor,
    advantages: Tensor,
    completion_mask: Tensor,
    *,
    off_policy_mask_threshold: float,
) -> Tensor:
    """Keep (1) or drop (0) from the policy term: (N, 1), or (N, T) for advantages (N, T).

    A completion is dropped if it is to be pushed down and its mean log π_sampling − log π exceeds the threshold:
    the policy has left it already (DeepSeek-V3.2, arXiv 2512.02556).
    """
    mask = completion_mask.bool()
    moved = (sampling_per_token_logps - per_token_logps).where(mask, 0.0)
    mean_moved = moved.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    pushed_up = (advantages if advantages.dim() == 2 else advantages.unsqueeze(1)) >= 0
    return (pushed_up | (mean_moved <= off_policy_mask_threshold)).to(per_token_logps.dtype)
