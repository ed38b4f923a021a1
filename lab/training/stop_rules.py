"""A run that has gone wrong ends by itself, with a sentence that says what was seen and what to try.

Reward, entropy, KL and the share of cut-off completions are watched as means over the last `stop_window` steps; every
rule is off until its threshold is set. Plain numbers, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.config import RunConfig

WATCHED = ("reward", "entropy", "kl", "completions/clipped_ratio")


@dataclass
class StopRules:
    """What the rules remember from step to step; a checkpoint keeps it."""

    recent: list[dict[str, float]] = field(default_factory=list)  # the watched metrics of the last steps
    best_reward: float | None = None  # highest mean reward of any window

    def look(self, metrics: Mapping[str, float], config: RunConfig) -> str | None:
        """Take in a step's metrics. Returns why the run should end, or None; after an end a new window begins."""
        self.recent.append({name: metrics[name] for name in WATCHED if not math.isnan(metrics.get(name, math.nan))})
        self.recent = self.recent[-config.stop_window :]
        if len(self.recent) < config.stop_window:
            return None
        means = {name: self._mean(name) for name in WATCHED}
        sentence = _first_broken_rule(means, self.best_reward, config)
        if means["reward"] is not None:
            self.best_reward = max(means["reward"], means["reward"] if self.best_reward is None else self.best_reward)
        if sentence:
            self.recent, self.best_reward = [], None
        return sentence

    def _mean(self, name: str) -> float | None:
        values = [step[name] for step in self.recent if name in step]
        return sum(values) / len(values) if values else None


def _first_broken_rule(means: Mapping[str, float | None], best_reward: float | None, c: RunConfig) -> str | None:
    reward, entropy, kl, clipped = (means[name] for name in WATCHED)
    over = f"over the last {c.stop_window} steps" if c.stop_window > 1 else "in the last step"
    if _all_known(c.stop_reward_drop, reward, best_reward) and reward < best_reward - c.stop_reward_drop:
        return (f"Stopped: the mean reward {over} is {reward:.3g}, down from {best_reward:.3g}. Go back to a checkpoint before "
                f"the fall and lower the learning rate or raise beta.")
    if _all_known(c.stop_entropy_below, entropy) and entropy < c.stop_entropy_below:
        return (f"Stopped: the mean entropy {over} is {entropy:.3g} nats per token, so groups say the same again and again. Try a "
                f"higher temperature, an entropy bonus or epsilon_high above epsilon.")
    if _all_known(c.stop_kl_above, kl) and kl > c.stop_kl_above:
        return (f"Stopped: the mean KL {over} is {kl:.3g} nats per token, so the policy has left the reference. Lower the learning "
                f"rate or raise beta.")
    if _all_known(c.stop_clipped_above, clipped) and clipped > c.stop_clipped_above:
        return (f"Stopped: {over} {clipped:.0%} of the completions were cut off. Raise max_completion_length, or reward shorter "
                f"answers.")
    return None


def _all_known(*values: float | None) -> bool:
    return all(value is not None for value in values)
