"""The second half of a step: from a batch with advantages to one optimiser step and the metrics of its loss.

A mixin of `Trainer`, as `Collecting` is of the first half. Micro-batches add up to the batch's own loss and gradient, however
they are cut. Leaves out what the loss is made of (`objective`, `grpo`) and when a step begins and ends (`trainer`).

    N completions · T completion tokens
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lab.config import RunConfig
from lab.policy import Policy
from lab.rollout import Rollout
from lab.rules import loss_stats
from lab.rules.entropy import adapt_entropy_coef
from lab.training.collecting import Batch
from lab.training.objective import Objective, rows_of_dead_groups
from lab.training.sampling import attach


class TrainingError(RuntimeError):
    """The run cannot go on: the message says why and what to change. The adapter is as it was before the step."""


class Updating:
    """What `Trainer` does with a collected batch; the attributes are the trainer's."""

    config: RunConfig
    policy: Policy
    adapter: str
    batch: Batch | None
    step: int
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.AdamW
    entropy_coefs: tuple[float, float]

    def _update(self) -> dict[str, float]:
        """One optimiser step on the batch; fills the batch's per-token arrays and returns the metrics of the loss."""
        config, batch = self.config, self.batch
        objective = self._objective()
        logps, entropy = self._backward(objective)
        if batch.old_logps is None:
            batch.old_logps = objective.old_logps = logps
        loss, stats = objective.loss(logps, entropy)
        learning_rate = self._learning_rate()
        metrics = {"loss": float(loss), "grad_norm": self._optimise(learning_rate), "learning_rate": learning_rate}
        token_metrics = loss_stats.metrics(
            [stats], loss_type=config.loss_type, importance_sampling_level=config.importance_sampling_level
        )
        attach(batch.groups, batch.rollout, logps=logps, old_logps=batch.old_logps, ref_logps=batch.ref_logps, entropy=entropy)
        metrics |= {name: float(value) for name, value in token_metrics.items()} | self._sampler_gap()
        if config.entropy_coef or config.use_adaptive_entropy:
            metrics |= {"entropy_coef": objective.entropy_coef, "policy_loss": float(stats.get("policy_loss_sum", loss))}
        self._adapt_entropy_coef(metrics["entropy"])
        return metrics

    def _objective(self) -> Objective:
        config, batch = self.config, self.batch
        entropies = None
        if config.top_entropy_quantile < 1:
            _, entropies = self.policy.frozen_logps(batch.rollout, self.adapter, max_tokens=config.micro_batch_tokens)
        return Objective(
            config, batch.rollout, batch.advantages, batch.old_logps, self._ref_logps(),
            rows_of_dead_groups([bool(group.dead) for group in batch.groups], batch.rollout), entropies,
            self.entropy_coefs[1] if config.use_adaptive_entropy else config.entropy_coef,
        )

    def _adapt_entropy_coef(self, entropy: float) -> None:
        config = self.config
        if config.use_adaptive_entropy:
            self.entropy_coefs = adapt_entropy_coef(
                self.entropy_coefs[0], entropy, entropy_target=config.entropy_target, entropy_coef_delta=config.entropy_coef_delta,
                entropy_coef_min=config.entropy_coef_min, entropy_coef_max=config.entropy_coef_max,
            )

    def _backward(self, objective: Objective) -> tuple[Tensor, Tensor]:
        """Gradients of the batch's loss; returns the policy's log-probs and entropies (N, T), detached.

        Rows that give exactly no gradient (no advantage, no KL term) go through the forward alone.
        """
        rollout, teaching = objective.rollout, objective.teaching()
        logps, entropy = torch.zeros_like(rollout.sampling_logps), torch.zeros_like(rollout.sampling_logps)
        self.optimizer.zero_grad(set_to_none=True)
        for learns in (True, False):
            chosen = (teaching == learns).nonzero().squeeze(1)
            for part in self._micro_batches(rollout, chosen):
                piece = rollout.rows(part)
                width = piece.completion_ids.shape[1]
                with torch.set_grad_enabled(learns):
                    part_logps, part_entropy = self.policy.logps(piece, self.adapter, entropy_gradient=bool(objective.entropy_coef))
                logps[part, :width], entropy[part, :width] = part_logps.detach(), part_entropy.detach()
                if learns:
                    objective.loss(part_logps, part_entropy, part)[0].backward()
        return logps, entropy

    def _micro_batches(self, rollout: Rollout, chosen: Tensor) -> Iterator[Tensor]:
        if len(chosen):
            for part in self.policy.micro_batches(rollout.rows(chosen), self.config.micro_batch_tokens):
                yield chosen[part]

    def _optimise(self, learning_rate: float) -> float:
        """Clip and apply the gradient; returns its norm before clipping. Without any gradient nothing moves at all."""
        if all(p.grad is None for p in self.parameters):
            return 0.0
        limit = self.config.max_grad_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(f"The gradient of step {self.step + 1} is not finite, so the adapter was left as it was. "
                                f"Lower the learning rate or raise beta.")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _sampler_gap(self) -> dict[str, float]:
        """How far the sampler's log-probs are from the trainer's, per token: rounding only, or something is wrong."""
        batch = self.batch
        mask = batch.rollout.completion_mask.bool()
        gap = (batch.old_logps - batch.rollout.sampling_logps).abs()[mask]
        return {"sampling/sampling_logp_difference/mean": float(gap.mean()),
                "sampling/sampling_logp_difference/max": float(gap.max())}

    def _learning_rate(self) -> float:
        return self.config.learning_rate * schedule(self.step, self.config)


def schedule(step: int, config: RunConfig) -> float:
    """Share of the learning rate in the step after `step` finished ones.

    The warm-up rises in equal parts and wastes no step at 0. Linear and cosine then fall to `lr_end_ratio`, which the
    last of `max_steps` steps reaches.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.lr_scheduler_type == "constant":
        return 1.0
    remaining = max(1, config.max_steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / remaining)
    fall = progress if config.lr_scheduler_type == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return 1.0 - (1.0 - config.lr_end_ratio) * fall
