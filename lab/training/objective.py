"""The loss of one optimiser batch, for all of its rows or any of them: the config's settings put to the algorithm.

Decides which tokens take part, which rows can have a gradient at all, and what beside the policy term belongs to the loss.
Micro-batches of an objective add up to the loss of the batch. Leaves out the maths (`grpo`, `masks`, `entropy`), forward
and backward (`updating`).

    N completions of the batch · n rows of a micro-batch · T tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab import grpo
from lab.config import RunConfig
from lab.rollout import Rollout
from lab.rules.entropy import entropy_bonus, top_entropy_mask
from lab.rules.losses import LATER_SETTINGS
from lab.rules.masks import mask_truncated, off_policy_sequence_mask


@dataclass
class Objective:
    """`entropies` (N, T), of the policy before the update, are needed where `top_entropy_quantile` is below 1."""

    config: RunConfig
    rollout: Rollout
    advantages: Tensor  # (N,) or (N, T)
    old_logps: Tensor | None  # (N, T); None: on-policy
    ref_logps: Tensor  # (N, T)
    dead_rows: Tensor  # (N,) bool: rows of dead groups
    entropies: Tensor | None = None
    entropy_coef: float = 0.0

    def __post_init__(self):
        config = self.config
        self.mask = self.rollout.completion_mask  # (N, T)
        if config.mask_truncated_completions:
            self.mask = mask_truncated(self.mask, self.rollout.finished)
        if config.dead_groups == "skip":
            self.mask = self.mask * ~self.dead_rows[:, None]
        self.undecided = None  # (N, T)
        if config.top_entropy_quantile < 1:
            self.undecided = top_entropy_mask(self.entropies, self.mask, top_entropy_quantile=config.top_entropy_quantile)
        self.totals = grpo.batch_totals(self.mask)
        self.beta = 0.0 if config.kl_placement == "reward" else config.beta

    def teaching(self) -> Tensor:
        """(N,) bool: rows that may have a gradient. The others have exactly none and need no backward."""
        rewarded = self.advantages.reshape(len(self.mask), -1).any(1)
        return (rewarded | bool(self.beta) | bool(self.entropy_coef)) & self.mask.any(1)

    def loss(self, logps: Tensor, entropies: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and stats of `rows`, from their log-probs and entropies (n, T or fewer): see `grpo.grpo_loss`.

        With an entropy bonus the stats have `policy_loss_sum`, the loss without it.
        """
        config, width = self.config, logps.shape[1]

        def part(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows] if values.dim() == 1 else values[rows, :width]

        mask, undecided = part(self.mask), part(self.undecided)
        loss, stats = grpo.grpo_loss(
            logps, part(self.old_logps), part(self.ref_logps), part(self.advantages), mask, loss_type=config.loss_type,
            epsilon=config.epsilon, epsilon_high=config.epsilon_high, delta=config.delta, beta=self.beta,
            kl_estimator=config.kl_estimator, importance_sampling_level=config.importance_sampling_level,
            max_completion_length=config.max_completion_length, totals=self.totals,
            policy_mask=self._policy_mask(logps, part(self.advantages), part(self.rollout.sampling_logps), mask, undecided),
            **{name: getattr(config, name) for name in LATER_SETTINGS},
        )
        stats["entropy"] = entropies.detach()
        if self.entropy_coef:
            stats["policy_loss_sum"] = loss.detach()
            loss = loss - self.entropy_coef * entropy_bonus(entropies, _both(mask, undecided), num_tokens=self._bonus_tokens())
        return loss, stats

    def _policy_mask(self, logps: Tensor, advantages: Tensor, sampling_logps: Tensor, mask: Tensor, undecided: Tensor | None):
        threshold = self.config.off_policy_mask_threshold
        if threshold is None:
            return undecided
        stayed = off_policy_sequence_mask(logps.detach(), sampling_logps, advantages, mask, off_policy_mask_threshold=threshold)
        return _both(stayed, undecided)

    def _bonus_tokens(self) -> Tensor:
        return _both(self.mask, self.undecided).sum()


def _both(mask: Tensor, other: Tensor | None) -> Tensor:
    return mask if other is None else mask * other


def rows_of_dead_groups(dead: list[bool], rollout: Rollout) -> Tensor:
    """(N,) bool from one flag per group."""
    return torch.tensor(dead, device=rollout.group_ids.device)[rollout.group_ids]
