"""What KL is measured against: the bare base, the run's start, or an adapter that follows the policy (iterative GRPO).

Every reference but the base is an adapter of its own beside the policy's, a few MB. It begins as a copy, so KL begins at
exactly 0. Leaves out where log-probabilities come from (`policy`) and checkpoints (`checkpoint`).
"""

from __future__ import annotations

import torch

from lab.config import RunConfig
from lab.forward.adapters import Adapters


def begins_as_copy(config: RunConfig) -> bool:
    """Whether the reference is an adapter. A new adapter changes nothing yet, so its start is the base with it off."""
    return config.reference in ("snapshot", "ema") or (config.reference == "start" and config.adapter is not None)


def renew(adapters: Adapters, policy: str, reference: str | None, config: RunConfig, step: int) -> None:
    """After `step` steps: bring a snapshot or ema reference up to date, if it is due.

    A snapshot takes the policy over (DeepSeekMath, arXiv 2402.03300, algorithm 1), an ema `ref_model_mixup_alpha` of it
    (TR-DPO, arXiv 2404.09656; TRL's `sync_ref_model`). A and B are mixed each by itself, so between two steps that lie far
    apart the mixture's product is not the mixture of the products; where both are the same it is.
    """
    if config.reference in ("snapshot", "ema") and step % config.ref_model_sync_steps == 0:
        mix(adapters, policy, reference, 1.0 if config.reference == "snapshot" else config.ref_model_mixup_alpha)


@torch.no_grad()
def mix(adapters: Adapters, source: str, target: str, share: float) -> None:
    """target ← share · source + (1 − share) · target, in place."""
    sources = adapters.parameters(source)
    for key, parameter in adapters.parameters(target).items():
        if share == 1.0:
            parameter.copy_(sources[key])
        else:
            parameter.lerp_(sources[key], share)
