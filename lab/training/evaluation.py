"""Held-out prompts answered by an adapter or the base: its own reward functions, greedy accuracy, pass@k.

Apart from training in all that would mix the two up: prompts that training never sees, reward functions, temperature
and number of samples of its own, and random numbers that are the same in every evaluation, so that base and tuned meet
the same chances. Leaves out what the numbers mean (`evaluation_metrics`) and when to evaluate (`between_steps`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from lab.config import ConfigError, RunConfig, named
from lab.policy import Policy
from lab.records import EvaluationProgress, EvaluationRecord, Group, RewardAwaited
from lab.rewards import TrainerState, resolve, scoring
from lab.rollout import SamplingSettings
from lab.tasks import Task, load_task
from lab.training.evaluation_metrics import evaluation_metrics
from lab.training.sampling import sample_groups, seeded

STREAM = -1  # keeps the random numbers apart from those of rollouts, which count from 0
TOGETHER = 32  # completions sampled at a time

Evaluating = Generator[EvaluationProgress | RewardAwaited, None, EvaluationRecord]


def evaluate(policy: Policy, config: RunConfig, adapter: str | None, *, step: int = 0, task: Task | None = None) -> Evaluating:
    """Answer `config.eval_prompts` held-out prompts, once greedily and `config.eval_samples` times by chance.

    Adapter None is the base. Yields EvaluationProgress and RewardAwaited, returns the record. Raises ConfigError for a task that holds no
    prompts back, RewardError where a reward function breaks.
    """
    seconds, evaluating = 0.0, _evaluate(policy, config, adapter, step, task)
    while True:  # only what is spent in here counts: others may take their turn between two events
        started = time.perf_counter()
        try:
            event = next(evaluating)
        except StopIteration as stop:
            stop.value.metrics["eval_runtime"] = seconds + time.perf_counter() - started
            return stop.value
        seconds += time.perf_counter() - started
        yield event


def finished(evaluating: Evaluating) -> EvaluationRecord:
    """The record, for whoever does not want to watch."""
    while True:
        try:
            next(evaluating)
        except StopIteration as stop:
            return stop.value


def held_out_rows(task: Task, config: RunConfig) -> list[dict[str, Any]]:
    """The prompts every evaluation of this run answers. Raises ConfigError where there are none."""
    rows = task.held_out(config.eval_prompts)
    if not rows:
        raise ConfigError(f"Task {task.name} holds no prompts back, so there is nothing to evaluate on: set {named('held_out_share')}, "
                          f"for example to 0.1, or {named('eval_steps')} to 0.")
    return rows


def _evaluate(policy: Policy, config: RunConfig, adapter: str | None, step: int, task: Task | None) -> Evaluating:
    rows = held_out_rows(task or load_task(config.task, config.seed, held_out_share=config.held_out_share), config)
    rewards = resolve(config.eval_rewards)
    chances = SamplingSettings(num_generations=max(1, config.eval_samples), max_completion_length=config.max_completion_length,
                               temperature=config.eval_temperature)
    certain = SamplingSettings(num_generations=1, max_completion_length=config.max_completion_length, greedy=True)
    both = 1 + config.eval_samples
    greedy = yield from _answers(policy, config, rows, adapter, certain, step, span=(0.0, 1 / both))
    sampled: list[Group] = []
    if config.eval_samples:
        sampled = yield from _answers(policy, config, rows, adapter, chances, step, span=(1 / both, 1.0))
    yield from scoring(rewards, None, [*greedy, *sampled], trainer_state=TrainerState(global_step=step, max_steps=config.max_steps),
                       system_prompt=config.system_prompt)
    metrics = evaluation_metrics(greedy, sampled, rewards[0].name)
    return EvaluationRecord(step, "base" if adapter is None else "tuned", metrics, greedy, sampled)


def _answers(policy: Policy, config: RunConfig, rows: Sequence[dict[str, Any]], adapter: str | None, settings: SamplingSettings,
             step: int, span: tuple[float, float]) -> Generator[EvaluationProgress, None, list[Group]]:
    """A group for each row. How many rows are sampled at a time depends on nothing that belongs to training."""
    together = max(1, TOGETHER // settings.num_generations)
    groups: list[Group] = []
    for start in range(0, len(rows), together):
        generator = seeded(config.seed, STREAM, start)
        sampler = sample_groups(policy, config, rows[start : start + together], adapter, settings, generator, step)
        while True:
            yield EvaluationProgress(step, span[0] + (span[1] - span[0]) * start / len(rows))
            try:
                next(sampler)
            except StopIteration as stop:
                groups += stop.value[1]
                break
    for index, group in enumerate(groups):
        group.index = index
        for completion in group.completions:
            completion.arrays = {}  # log-probabilities serve training; an evaluation keeps texts and scores
    return groups
