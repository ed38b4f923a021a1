"""A difficulty scan: K samples of each prompt, scored, nothing learned. Progress as events, so that others can take turns.

    scan(RunConfig(model="tiny"), "add2", samples=8, prompts=64)        # → lab.tasks.difficulty.Scan

What is right is what the first reward function gives 0.5 or more. Random numbers come from a stream of their own: neither a
run nor an evaluation changes when a scan was made before it. Leaves out what the counts mean (`lab.tasks.difficulty`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from lab.config import RunConfig
from lab.records import EvaluationProgress, Group, RewardAwaited
from lab.rewards import resolve, scoring
from lab.rollout import SamplingSettings
from lab.tasks import load_task, prompt_text
from lab.tasks.difficulty import RIGHT, Difficulty, Scan
from lab.training.sampling import sample_groups, seeded

if TYPE_CHECKING:
    from lab.policy import Policy

STREAM = -2  # keeps the random numbers apart from those of rollouts (from 0) and evaluations (−1)
TOGETHER = 32  # completions sampled at a time

Scanning = Generator[EvaluationProgress | RewardAwaited | list[Difficulty], None, Scan]


def scan(config: RunConfig, task: Any = None, *, samples: int = 8, prompts: int = 64, policy: Policy | None = None) -> Scan:
    """Samples each of the first `prompts` prompts of the task (default: the config's) `samples` times from the base.

    Raises ModelError, TaskError, or RewardError where a reward function breaks.
    """
    from lab.policy import Policy

    task = load_task(config.task if task is None else task, config.seed)
    policy = policy or Policy.load(config.model, dtype=config.dtype, load_in_4bit=config.load_in_4bit, device=config.device,
                                   num_threads=config.num_threads)
    scanning = scan_rows(policy, config, task.rows(0, min(prompts, task.size or prompts)), samples)
    while True:
        try:
            next(scanning)
        except StopIteration as stop:
            return stop.value


def scan_rows(policy: Policy, config: RunConfig, rows: Sequence[dict[str, Any]], samples: int) -> Scanning:
    """The scan as events: progress while texts are written, and what was found after each few prompts."""
    rewards, found = resolve(config.rewards), []
    settings = SamplingSettings.of(config, num_generations=samples)
    together = max(1, TOGETHER // samples)
    for start in range(0, len(rows), together):
        part = rows[start:start + together]
        sampler = sample_groups(policy, config, part, None, settings, seeded(config.seed, STREAM, start), step=0)
        while True:
            try:
                next(sampler)
            except StopIteration as stop:
                _, groups = stop.value
                break
            yield EvaluationProgress(0, start / len(rows))
        yield from scoring(rewards, config.weights, groups, system_prompt=config.system_prompt)
        news = [_difficulty(start + place, group, rewards[0].name) for place, group in enumerate(groups)]
        found += news
        yield news
    return Scan(found)


def _difficulty(row: int, group: Group, judge: str) -> Difficulty:
    values = [completion.rewards[judge] for completion in group.completions if completion.rewards[judge] is not None]
    return Difficulty(row, prompt_text(group.row["prompt"])[:300], sum(value >= RIGHT for value in values), len(values), group.mean,
                      sum(not completion.finished for completion in group.completions))
