"""A run's plan as it begins, and beside it what its first steps really took.

Leaves out the arithmetic (`planner`), the measuring of memory and machine (`memory`, `forward.speed`), and who stores and
shows the result.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch

from lab import memory
from lab.forward import speed
from lab.planner import Corrections, ModelShape, Plan, Written, compare, plan

if TYPE_CHECKING:
    from lab.config import RunConfig
    from lab.policy import Policy
    from lab.records import StepRecord

WATCHED_STEPS = 3  # after the first, which also warms up, the seconds are the median of these


class Planning:
    """The plan of one run on one policy. `report` changes as steps are watched; it is plain JSON, None for a model of
    unknown layout."""

    def __init__(self, policy: Policy, config: RunConfig, prompt_tokens: int, corrections: Corrections):
        self._policy, self._config, self.prompt_tokens = policy, config, prompt_tokens
        device, dtype = policy.device.type, str(policy.dtype).removeprefix("torch.")
        self._where = dict(prompt_tokens=prompt_tokens, device=device, dtype=dtype, load_in_4bit=policy.load_in_4bit,
                           memory=memory.within_reach(policy.device), speed=speed.measured(device, dtype, torch.get_num_threads()))
        self._seconds: list[float] = []
        self._waited: list[float] = []
        self.plan: Plan | None = None
        self.report: dict[str, Any] | None = None
        try:
            self._shape = ModelShape.of(policy.model.config.to_dict())
        except KeyError:
            return
        self.plan = plan(config, self._shape, corrections=corrections, **self._where)
        self.report = {"plan": self.plan.to_dict(), "measured": None, "prompt_tokens": prompt_tokens,
                       **{name: self._where[name] for name in ("device", "dtype", "load_in_4bit")}}
        memory.mark_peak(policy.device)

    def look(self, step: StepRecord, waited: float = 0.0) -> None:
        """Put a finished step beside the plan, as long as there is something to learn from it; `waited` seconds were for rewards."""
        if self.plan is None or len(self._seconds) == WATCHED_STEPS + 1:
            return
        self._seconds.append(step.metrics["step_time"])
        self._waited.append(waited)
        lengths = Written(step.metrics["completions/mean_length"], step.metrics["completions/max_length"])
        measured = compare(self.plan, self._config, self._shape, lengths, peak=memory.peak_since_mark(self._policy.device),
                           seconds=statistics.median(self._seconds[1:] or self._seconds),
                           waited=statistics.median(self._waited[1:] or self._waited), **self._where)
        self.report = {**self.report, "measured": measured}
