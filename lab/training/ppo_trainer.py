"""PPO beside GRPO: the same rollouts, rewards, update and records, with a critic in the place of the group's mean.

`Trainer(config)` with algorithm "ppo" is a PPOTrainer. The advantage of a token is GAE's, from the critic's values and
from rewards that have the KL to the reference taken off token by token (arXiv 1707.06347, as in InstructGPT, arXiv
2203.02155); then whitened over the batch. The policy term is the one the config names, without KL in the loss. Leaves
out the maths (`ppo`) and the critic itself (`critic`).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from lab.config import RunConfig
from lab.policy import Policy
from lab.rules import ppo
from lab.trainer import Trainer
from lab.training.critic import Critic
from lab.training.objective import Objective
from lab.training.sampling import attach
from lab.training.updating import TrainingError, schedule


class PPOTrainer(Trainer):
    """As Trainer. Each completion also has the token arrays `values` (before the update), `returns` and `advantages`."""

    critic: Critic

    def __init__(self, config: RunConfig, *, policy: Policy | None = None, adapter: str = "policy",
                 output_dir: str | Path | None = None):
        super().__init__(config, policy=policy, adapter=adapter, output_dir=output_dir)
        self.critic = Critic(self.policy, f"{adapter}-critic", config)

    def close(self) -> None:
        """Take the run's adapters, the critic's among them, off the policy."""
        super().close()
        self.critic.close()

    def _weigh(self) -> Tensor:
        """Advantages (N, T). A completion without a reward takes no part; its own `advantage` is the mean over its tokens."""
        batch, config = self.batch, self.config
        completions = [c for group in batch.groups for c in group.completions]
        rewards = torch.tensor([float("nan") if c.reward is None else c.reward for c in completions], device=self.policy.device)
        mask = self._judged()
        batch.old_logps, _ = self.policy.frozen_logps(batch.rollout, self.adapter, max_tokens=config.micro_batch_tokens)
        batch.values = self.critic.values(batch.rollout, max_tokens=config.micro_batch_tokens)
        per_token = ppo.token_rewards(rewards, batch.old_logps, self._ref_logps(), mask, kl_coef=config.beta)
        advantages, batch.returns = ppo.gae(per_token, batch.values, mask, gamma=config.gamma, lam=config.lam)
        advantages = ppo.whiten(advantages, mask)
        means = advantages.sum(1) / batch.rollout.lengths.clamp(min=1)
        for completion, mean in zip(completions, means.tolist(), strict=True):
            completion.advantage = mean
        return advantages

    def _objective(self) -> Objective:
        objective = super()._objective()
        objective.beta = 0.0  # KL is in the rewards
        return objective

    def _update(self) -> dict[str, float]:
        batch, config = self.batch, self.config
        of_critic = self._critic_backward()  # before the policy moves: what breaks here must leave both as they were
        metrics = super()._update() | of_critic
        rate = config.learning_rate if config.critic_learning_rate is None else config.critic_learning_rate
        self.critic.step(rate * schedule(self.step, config))
        judged = self._judged().bool()
        metrics |= _value_metrics(batch.values[judged], batch.returns[judged])
        metrics |= {"critic/seconds": self.critic.seconds, "critic/bytes": self.critic.bytes}
        self.critic.seconds = 0.0
        attach(batch.groups, batch.rollout, values=batch.values, returns=batch.returns, advantages=batch.advantages)
        return metrics

    def _critic_backward(self) -> dict[str, float]:
        batch, config = self.batch, self.config
        metrics = self.critic.backward(
            batch.rollout, batch.values, batch.returns, self._judged(), cliprange_value=config.cliprange_value,
            max_grad_norm=config.max_grad_norm, max_tokens=config.micro_batch_tokens,
        )
        if not math.isfinite(metrics["critic/grad_norm"]):
            raise TrainingError(f"The critic's gradient of step {self.step + 1} is not finite, so policy and critic were left as they "
                                f"were. Lower critic_learning_rate, or give smaller rewards.")
        return metrics

    def _judged(self) -> Tensor:
        """(N, T): the completion mask without rows that have no reward."""
        scored = [c.reward is not None for group in self.batch.groups for c in group.completions]
        return self.batch.rollout.completion_mask * torch.tensor(scored, device=self.policy.device)[:, None]


def _value_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    """How good the critic was before the update: an explained variance of 1 is perfect, 0 no better than a constant."""
    if not len(values):
        return {}
    spread = float(returns.var(correction=0))
    explained = 1.0 - float((returns - values).var(correction=0)) / spread if spread > 0 else 0.0
    return {"critic/value_mean": float(values.mean()), "critic/value_std": float(values.std(correction=0)),
            "critic/explained_variance": explained}
