"""A look before a run: a few groups of its first prompts, sampled and scored, and in words whether anything can be learned.

    preflight(RunConfig(…)).print()

Random numbers come from a stream of their own and nothing is kept, so the run that follows is the same with and without it.
Leaves out memory and time (`lab.planner`) and single prompts' pass rates (`difficulty`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lab.config import RunConfig
from lab.records import Completion, EvaluationProgress, Group, RewardAwaited
from lab.rewards import Reward, RewardError, resolve, scoring
from lab.rewards.by_hand import criteria_of
from lab.rollout import SamplingSettings
from lab.rules.dead_groups import DEAD_TOLERANCE
from lab.tasks import load_task
from lab.training.sampling import sample_groups, seeded

if TYPE_CHECKING:
    from lab.policy import Policy

STREAM = -3  # keeps the random numbers apart from those of rollouts, evaluations (−1) and scans (−2)
GROUPS = 4
EXAMPLE_CHARACTERS = 600


@dataclass
class Example:
    """One completion and what a reward function gave it."""

    prompt: str
    text: str
    value: float


@dataclass
class RewardSeen:
    """What one reward function gave. `best` and `worst` are None where it gave all the same."""

    name: str
    weight: float
    applied: int  # completions with a number
    lowest: float | None
    mean: float | None
    highest: float | None
    best: Example | None
    worst: Example | None

    @property
    def is_constant(self) -> bool:
        """It gave the same to every completion it applied to, up to float noise."""
        return self.applied > 0 and self.highest - self.lowest <= DEAD_TOLERANCE


@dataclass
class Preflight:
    """`stop`: sentences that say why nothing can be learned; `warnings`: what to look at; both empty is good."""

    groups: int
    live: int
    completions: int
    cut_off: int
    rewards: list[RewardSeen] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def can_learn(self) -> bool:
        """Nothing seen would keep the run from learning."""
        return not self.stop

    def summary(self) -> str:
        """Groups with signal and completions that ended, in one sentence."""
        ended = self.completions - self.cut_off
        if self.rewards and all(seen.mean is None for seen in self.rewards):  # scored by hand: nobody knows yet
            return f"{ended} of {self.completions} completions ended."
        return f"{self.live} of {self.groups} groups have signal, {ended} of {self.completions} completions ended."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for the page."""
        return {**asdict(self), "summary": self.summary(), "can_learn": self.can_learn}

    def print(self) -> None:
        """The summary, every function's range with its best and worst completion, and all sentences."""
        print(f"Pre-flight: {self.summary()}")
        for seen in self.rewards:
            print(f"  {seen.name}: " + ("applied to nothing" if seen.mean is None else
                                        f"{seen.lowest:g} to {seen.highest:g}, mean {seen.mean:.3f}"))
            for word, example in (("best", seen.best), ("worst", seen.worst)):
                if example:
                    print(f"    {word} {example.value:g}: {' '.join(example.text.split())[:100]}")
        for sentence in [*self.stop, *self.warnings]:
            print(f"  {sentence}")


def preflight(config: RunConfig, *, policy: Policy | None = None, groups: int = GROUPS) -> Preflight:
    """Samples `groups` groups of the run's first prompts from where the run would start. Raises what starting it would raise."""
    from lab.policy import Policy

    policy = policy or Policy.load(config.model, dtype=config.dtype, load_in_4bit=config.load_in_4bit, device=config.device,
                                   num_threads=config.num_threads)
    looking = look(policy, config, groups=groups)
    while True:
        try:
            next(looking)
        except StopIteration as stop:
            return stop.value


def look(policy: Policy, config: RunConfig, *, groups: int = GROUPS) -> Generator[EvaluationProgress | RewardAwaited, None, Preflight]:
    """The pre-flight as events, for the engine. An adapter that the run starts from is put on for the time being."""
    task = load_task(config.task, config.seed, held_out_share=config.held_out_share)
    rewards = resolve(config.rewards)
    rows = task.rows(0, min(groups, config.prompts_per_step))
    adapter = f"preflight-{id(rows)}" if config.adapter else None
    if adapter:
        policy.add_adapter(adapter, r=config.lora_r, alpha=config.lora_alpha, seed=config.seed, path=config.adapter)
    try:
        sampler = sample_groups(policy, config, rows, adapter, SamplingSettings.of(config), seeded(config.seed, STREAM), step=0)
        while True:
            try:
                next(sampler)
            except StopIteration as stop:
                _, sampled = stop.value
                break
            yield EvaluationProgress(0, 0.0)
    finally:
        if adapter:
            policy.remove_adapter(adapter)
    try:
        yield from scoring(rewards, config.weights, sampled, system_prompt=config.system_prompt)
    except RewardError as error:
        return Preflight(len(sampled), 0, *_counts(sampled), stop=[f"{error} The run would wait at its first step."])
    found = judge(sampled, [reward.name for reward in rewards], config)
    return _with_a_person(found, rewards, config) if criteria_of(rewards) else found


def judge(groups: Sequence[Group], names: Sequence[str], config: RunConfig) -> Preflight:
    """What scored groups promise."""
    live = sum(not group.dead for group in groups)
    seen = [_seen(name, weight, groups) for name, weight in zip(names, config.weights, strict=True)]
    found = Preflight(len(groups), live, *_counts(groups), seen)
    everything_cut = found.cut_off == found.completions
    if live == 0:
        found.stop.append(_why_dead(groups, found, config))
    elif live <= len(groups) / 4:
        found.warnings.append(f"Only {live} of {len(groups)} groups has signal: many steps will change little. A larger group, easier or "
                              f"harder prompts, or a reward with more steps between 0 and 1 would help.")
    if everything_cut:
        sentence = f"All {found.completions} completions were cut off at {config.max_completion_length} tokens: raise Max tokens."
        (found.stop if live == 0 else found.warnings).append(sentence)
    elif found.cut_off > found.completions / 2:
        found.warnings.append(f"{found.cut_off} of {found.completions} completions were cut off at {config.max_completion_length} tokens: "
                              f"raise Max tokens, or ask for short answers.")
    found.warnings += [sentence for each in seen if each.weight and (sentence := _about(each))]
    return found


def _with_a_person(found: Preflight, rewards: Sequence[Reward], config: RunConfig) -> Preflight:
    """Where a person gives scores nobody knows them yet, so nothing can be said against them."""
    by_hand = {reward.name for reward in rewards if criteria_of([reward])}
    found.stop = []
    found.warnings = [sentence for sentence in found.warnings if sentence.split()[0] not in by_hand]
    found.warnings.append(f"The run will wait for you in every step, with {config.completions_per_step} completions to score by hand.")
    return found


def _why_dead(groups: Sequence[Group], found: Preflight, config: RunConfig) -> str:
    none = f"None of {len(groups)} groups has signal, so nothing can be learned from them: "
    if all(completion.reward is None for group in groups for completion in group.completions):
        return none + "no reward function applies to any completion. Choose one that fits the task, or rows with answers."
    if all(len({completion.text for completion in group.completions}) == 1 for group in groups):
        return none + f"all completions of a group are the same text. Raise Temperature (it is {config.temperature:g})."
    judge = found.rewards[0]
    if judge.highest is not None and judge.highest < 0.5:
        return none + f"{judge.name} is never right. Try easier prompts, a better model, more tokens, or a cold start."
    if judge.lowest is not None and judge.lowest >= 0.5:
        return none + f"{judge.name} is always right already. Try harder prompts."
    return none + "within each group all completions got the same reward. Try a larger group, other prompts, or a finer reward."


def _about(seen: RewardSeen) -> str | None:
    """A warning about a reward function that cannot tell completions apart."""
    if seen.applied == 0:
        return f"{seen.name} applied to no completion: its weight goes to the others."
    if seen.is_constant and seen.name.startswith("format") and seen.highest == 0:
        return ("format is never right: completions do not have the tags it asks for. Ask for them in the system message, or begin with a "
                "cold start.")
    if seen.is_constant:
        return f"{seen.name} gave {seen.mean:g} to every completion: as it is, it teaches nothing."
    return None


def _seen(name: str, weight: float, groups: Sequence[Group]) -> RewardSeen:
    given = [(completion.rewards[name], group, completion) for group in groups for completion in group.completions
             if completion.rewards[name] is not None]
    if not given:
        return RewardSeen(name, weight, 0, None, None, None, None, None)
    values = [value for value, _, _ in given]
    best, worst = max(given, key=lambda entry: entry[0]), min(given, key=lambda entry: entry[0])
    mean = math.fsum(values) / len(values)
    seen = RewardSeen(name, weight, len(values), min(values), mean, max(values), None, None)
    if not seen.is_constant:
        seen.best, seen.worst = _example(*best), _example(*worst)
    return seen


def _example(value: float, group: Group, completion: Completion) -> Example:
    return Example(group.prompt[:EXAMPLE_CHARACTERS], completion.text[:EXAMPLE_CHARACTERS], value)


def _counts(groups: Sequence[Group]) -> tuple[int, int]:
    completions = [completion for group in groups for completion in group.completions]
    return len(completions), sum(not completion.finished for completion in completions)
