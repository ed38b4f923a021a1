"""Plain data that crosses between stages and between processes: text, numbers and compact float32 arrays.

The trainer yields these; the store keeps them; page, notebooks and charts read them. No tensor ever gets past the
trainer. Comments say who fills a field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Completion:
    """One sampled answer. `arrays` holds one float32 value per token of `token_ids` (the stop token included)."""

    index: int  # order of sampling within the group, from 0
    text: str  # decoded, special tokens left out, tags kept
    token_ids: list[int]  # ends with the stop token when finished
    finished: bool  # False: cut off at max_completion_length
    rewards: dict[str, float | None] = field(default_factory=dict)  # scoring; None = not applicable
    reward: float | None = None  # scoring: weighted sum over the applicable functions
    advantage: float | None = None  # trainer
    extra: dict[str, Any] = field(default_factory=dict)  # scoring: what a reward function logged with log_extra
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # sampling_logps; old_logps, logps, ref_logps, entropy;
    # advantages where step rewards give each token its own
    steps: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # scoring: step rewards (character where it ends, value)
    ratings: dict[str, float] | None = None  # by hand: criterion → 0…1; {} where the person gave none, None where nobody was asked


@dataclass
class Group:
    """A prompt and its completions. `std` is the sample standard deviation (n − 1) of the rewards; it and the mean are None
    where no completion has one."""

    index: int  # within the rollout, from 0
    prompt: str  # what the user or the task said
    prompt_ids: list[int]  # the rendered chat, as the model saw it
    row: dict[str, Any]  # the task's row: answer and further columns
    completions: list[Completion]
    mean: float | None = None  # of the rewards; scoring
    std: float | None = None
    dead: bool | None = None  # all rewards equal, or none given: no completion is better than another, so nothing to learn


@dataclass
class StepRecord:
    """One optimiser step: TRL's metric names → numbers, and the groups it learned from."""

    step: int  # from 1
    metrics: dict[str, float]
    groups: list[Group]
    iteration: int = 0  # which use of the rollout this was, from 0 (num_iterations > 1)
    stopped: str | None = None  # why the run ends here by itself, in a sentence (the stop_… settings)


@dataclass
class EvaluationRecord:
    """Held-out prompts answered and scored, nothing learned from them. Same prompts and seed each time, so records compare."""

    step: int  # optimiser steps the adapter had done
    adapter: str  # "base" or "tuned"
    metrics: dict[str, float]  # eval_accuracy, eval_pass@k, and TRL's names with TRL's prefix eval_
    greedy: list[Group]  # one completion per prompt, without chance
    sampled: list[Group]  # `eval_samples` per prompt; empty if that is 0


# -- events: what `Trainer.events()` and `sample_group()` yield; StepRecord and EvaluationRecord are two of them


@dataclass
class TokensSampled:
    """Partial texts of the completions being written, several times a second."""

    step: int
    partial: list[tuple[int, int, str, int, bool]]  # (group index, completion index, text so far, tokens so far, ended)
    prompts: list[str]  # one per group index


@dataclass
class GroupSampled:
    """A group is complete but not yet scored."""

    step: int
    group: Group


@dataclass
class GroupScored:
    """A group with rewards, mean, std and advantages."""

    step: int
    group: Group


@dataclass
class AwaitingScores:
    """The run waits for scores that a person gives by hand. The trainer waits: without them the next `next()` asks again."""

    step: int
    groups: list[Group]  # those without scores
    criteria: dict[str, float]  # what is to be judged, each from 0 to 1 → its weight


@dataclass
class ScoringFailed:
    """A reward function broke. The trainer waits: the next `next()` scores the same completions again."""

    step: int
    error: Exception  # lab.rewards.RewardError: names the function, the row and what was expected


@dataclass
class RewardAwaited:
    """A reward function waits for something outside: a judge's answers, a locked process. Told many times a second until it has them."""

    reward: str  # name of the function
    waits_for: str  # what, in words
    seconds: float  # since it was called


@dataclass
class CheckpointSaved:
    step: int
    path: str


@dataclass
class EvaluationProgress:
    """Held-out prompts are being answered: a share from 0 to 1 is done."""

    step: int
    share: float


@dataclass
class EvaluationFailed:
    """A reward function broke on the answers of an evaluation, which is left out; the run goes on."""

    step: int
    message: str  # names the function, the row and what was expected


@dataclass
class ColdStartStep:
    """One supervised step on given examples, before the first step of reinforcement learning."""

    step: int  # from 1
    of: int
    loss: float  # mean negative log-probability per completion token, in nats


@dataclass
class MemoryRanShort:
    """The step goes on with smaller micro-batches. They change no result but its last digits, so equal runs no longer are bit-equal."""

    step: int
    micro_batch_tokens: int  # from now on
    message: str


Event = (TokensSampled | MemoryRanShort | GroupSampled | GroupScored | AwaitingScores | ScoringFailed | CheckpointSaved | StepRecord
         | RewardAwaited | EvaluationProgress | EvaluationRecord | EvaluationFailed | ColdStartStep)
