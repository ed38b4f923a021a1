"""The training loop, as an iterator: `for step in Trainer(config): …`.

One step: sample a group for each prompt, score it, weigh each completion against its group, update the adapter, report.
Pausing is not calling `next`. Under the iterator lies `events()`, which also tells what happens within a step; nothing
is yielded while an adapter is active, so several trainers may take turns on one policy.

The trainer takes no callbacks and knows neither store nor page. Every random number comes from (seed, number of the
rollout), so between two steps there is no hidden state: equal configs give bit-equal runs on one machine's CPU.
The two halves of a step are `training.collecting` (prompts → completions with advantages) and `training.updating` (→ one
optimiser step). Leaves out the algorithm (`grpo`), the model (`policy`) and files (`checkpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lab.config import LIVE_SETTINGS, ConfigError, RunConfig
from lab.errors import did_you_mean
from lab.memory import is_out_of_memory, smaller_budget
from lab.planner import Corrections
from lab.policy import Policy
from lab.records import (
    AwaitingScores,
    CheckpointSaved,
    EvaluationRecord,
    Event,
    Group,
    MemoryRanShort,
    RewardAwaited,
    ScoringFailed,
    StepRecord,
)
from lab.rewards import resolve
from lab.rewards.by_hand import ScoresAwaited
from lab.tasks import load_task
from lab.training import references
from lab.training.between_steps import between_steps
from lab.training.cold_start import as_rollout, supervised_backward
from lab.training.collecting import Batch, Collecting
from lab.training.evaluation import evaluate, finished, held_out_rows
from lab.training.metrics import group_metrics
from lab.training.planning import Planning
from lab.training.resampling import HardPrompts
from lab.training.sampling import sample_group
from lab.training.stop_rules import StopRules
from lab.training.updating import TrainingError, Updating

if TYPE_CHECKING:
    from lab.training.critic import Critic

__all__ = ["Trainer", "TrainingError", "sample_group"]


class Trainer(Collecting, Updating):
    """Trains one LoRA adapter by GRPO. Iterate over it for StepRecords, or over `events()` for everything.

    `policy` shares an already loaded model; `adapter` is this run's name on it. With `output_dir` a checkpoint is
    written there every `config.save_steps` steps. Raises ModelError, ConfigError, TaskError or RewardNotFound for a
    run that cannot start.
    """

    critic: Critic | None = None  # PPO's; the mean of the group stands in for it here

    def __new__(cls, config: RunConfig, **_: Any) -> Trainer:
        """With algorithm "ppo" what you get is a PPOTrainer, which is used in the same way."""
        if cls is Trainer and config.algorithm == "ppo":
            from lab.training.ppo_trainer import PPOTrainer

            cls = PPOTrainer
        return object.__new__(cls)

    def __init__(self, config: RunConfig, *, policy: Policy | None = None, adapter: str = "policy",
                 output_dir: str | Path | None = None):
        self.config = config
        self.task = load_task(config.task, config.seed, held_out_share=config.held_out_share)
        if config.eval_steps:
            held_out_rows(self.task, config)  # refuses a task without any, and rewards that do not exist, now and not after hours
            resolve(config.eval_rewards)
        self.rewards = resolve(config.rewards)
        self.policy = policy or Policy.load(
            config.model, dtype=config.dtype, load_in_4bit=config.load_in_4bit, device=config.device,
            num_threads=config.num_threads,
        )
        self.adapter = adapter
        self.policy.add_adapter(adapter, r=config.lora_r, alpha=config.lora_alpha, seed=config.seed, path=config.adapter)
        self.reference: str | None = None  # its adapter; None is the bare base
        if references.begins_as_copy(config):
            self.begin_reference()
        self.parameters = list(self.policy.adapters.parameters(adapter).values())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay, foreach=True,
        )
        self.output_dir = Path(output_dir) if output_dir is not None else None
        self.step = 0  # optimiser steps done
        self.rollouts = 0  # rollouts completed: the cursor of prompts and of sampling
        self.prompts = 0  # prompts taken from the task
        self.num_tokens = 0
        self.hard_prompts = HardPrompts()  # for dead_groups "replace"
        self.stop_rules = StopRules()
        self.stopped: str | None = None  # why the run ended by itself
        self.entropy_coefs = (config.entropy_coef, config.entropy_coef)  # adaptive: remembered, and applied at the next step
        self.batch: Batch | None = None
        self.changes: list[tuple[int, dict[str, Any]]] = []  # (first step they apply to, settings)
        self.pending: dict[str, Any] = {}  # live changes that wait for the next step
        self.cold_start_steps = 0  # supervised steps done before the first
        self.evaluated_at: int | None = None  # the step of the last evaluation
        self.corrections = Corrections()  # of the plan, from earlier runs; whoever keeps them sets them
        self.planning: Planning | None = None
        self.not_as_before: str | None = None  # why a run that goes on is not bit-equal to one that never stopped
        self._within_step = False
        self._stream: Generator[Event, None, None] | None = None

    # -- the interface

    def __iter__(self) -> Iterator[StepRecord]:
        return self

    def __next__(self) -> StepRecord:
        """Do one optimiser step. A reward function that breaks raises its RewardError, and one that needs a person
        ScoresAwaited; the next call tries again."""
        for event in self.events():
            if isinstance(event, ScoringFailed):
                raise event.error
            if isinstance(event, AwaitingScores):
                raise ScoresAwaited(event.step, event.groups, event.criteria)
            if isinstance(event, StepRecord):
                return event
        raise StopIteration

    def events(self) -> Generator[Event, None, None]:
        """Everything that happens, in order. One stream: leaving it and asking again goes on where it was left."""
        if self._stream is None or self._stream.gi_frame is None:
            self._stream = between_steps(self, self._timed(self._run()))
        return self._stream

    def change(self, **live: Any) -> int:
        """Change live settings from the next step on; returns that step. While scoring fails they apply at once."""
        unknown = sorted(set(live) - set(LIVE_SETTINGS))
        if unknown:
            meant = "".join(did_you_mean(name, LIVE_SETTINGS) for name in unknown)
            raise ConfigError(f"{', '.join(unknown)} cannot be changed during a run.{meant} What can: {', '.join(LIVE_SETTINGS)}.")
        changed = self.pending | live
        if "rewards" in live:
            resolve(live["rewards"])
        self.config.replace(**changed)  # refuses what cannot work, now and not at the next step
        self.pending = changed
        return self.step + (2 if self._within_step else 1)

    def plan_ahead(self) -> Planning:
        """What the run will take: made once, when it begins or when it is asked for before."""
        if self.planning is None:
            config = self.config
            rows = self.task.rows(self.prompts, config.prompts_per_step)
            longest = max(len(self.policy.prompt_ids(row["prompt"], config.system_prompt)) for row in rows)
            self.planning = Planning(self.policy, config, longest, self.corrections)
        return self.planning

    def evaluate(self, *, base: bool = False) -> EvaluationRecord:
        """Answer the held-out prompts now, with the adapter as it is or with the bare base. Changes nothing in the run."""
        return finished(evaluate(self.policy, self.config, None if base else self.adapter, step=self.step, task=self.task))

    def imitate(self, examples: list[dict[str, Any]]) -> float:
        """One supervised step on rows with prompt and completion, for a cold start; returns its loss. Counts as no step."""
        rollout = as_rollout(self.policy, examples, self.config.system_prompt)
        loss = supervised_backward(self.policy, self.adapter, rollout, max_tokens=self.config.micro_batch_tokens)
        self._optimise(self.config.learning_rate)
        return loss

    def begin_from_here(self) -> None:
        """The adapter as it is now becomes the start of the run: what KL is measured against, with a fresh optimizer."""
        self.optimizer.state.clear()
        self.begin_reference()

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint folder from which `Trainer.load` goes on exactly here."""
        from lab.training.checkpoint import save

        return save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, policy: Policy | None = None, adapter: str = "policy",
             output_dir: str | Path | None = None, **changes: Any) -> Trainer:
        """A trainer that continues a saved one. `changes` replace settings of its config, such as max_steps.

        Reward functions written in Python are not in the files: pass them as `rewards=`.
        """
        from lab.training.checkpoint import load

        return load(Path(folder), policy=policy, adapter=adapter, output_dir=output_dir, changes=changes)

    def close(self) -> None:
        """Take this run's adapters off the policy."""
        for name in filter(None, (self.adapter, self.reference)):
            self.policy.remove_adapter(name)

    # -- one step

    def _timed(self, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """Fills each record's step_time with the seconds spent in here: others may take their turn between two events."""
        seconds = waited = 0.0
        while True:
            started = time.perf_counter()
            try:
                event = next(events)
            except StopIteration:
                return
            spent = time.perf_counter() - started
            seconds += spent
            if isinstance(event, RewardAwaited):
                waited += spent
            if isinstance(event, StepRecord):
                event.metrics["step_time"] = seconds
                self.planning.look(event, waited)
                seconds = waited = 0.0
            yield event

    def _run(self) -> Generator[Event, None, None]:
        yield from self._fit_into_memory()
        while self.step < self.config.max_steps and self.stopped is None:
            self._apply_changes()
            self._within_step, smaller = True, None
            try:
                if self.batch is None:
                    yield from self._sample()
                if self.batch.advantages is None:
                    yield from self._score()
                metrics = self._update()
            except (MemoryError, RuntimeError) as error:
                smaller = self._budget_after(error)
            if smaller:  # not in the handler, where the failed forward would still hold its memory
                yield self._with_smaller_micro_batches(smaller)
                continue
            record = self._report(metrics)
            self._within_step = False
            yield record
            if self.output_dir is not None and self.step % self.config.save_steps == 0:
                path = self.save(self.output_dir / f"checkpoint-{self.step}")
                yield CheckpointSaved(self.step, str(path))

    def _fit_into_memory(self) -> Generator[Event, None, None]:
        """A run that begins takes the micro-batch that fits; one that goes on keeps what it had."""
        config, plan = self.config, self.plan_ahead().plan
        if plan is None:
            return
        self.policy.compute_layers_twice(plan.checkpointing)
        longest = self.planning.prompt_tokens
        everything = config.prompts_per_step * (longest + config.num_generations * config.max_completion_length)
        if self.step == 0 and plan.micro_batch_tokens < min(config.micro_batch_tokens, everything):
            yield self._with_smaller_micro_batches(plan.micro_batch_tokens)

    def _budget_after(self, error: Exception) -> int:
        """Tokens for a second try of a step that ran out of memory; any other error goes on to the caller."""
        if not is_out_of_memory(error):
            raise error
        smaller = self.batch and smaller_budget(self.batch.rollout, self.config.micro_batch_tokens)
        if not smaller:
            how = "even for one completion at a time" if self.batch else "already while sampling"
            raise TrainingError(f"Step {self.step + 1} needs more memory than there is, {how}. Lower "
                                f"prompts_per_step, num_generations or max_completion_length.") from error
        return smaller

    def _with_smaller_micro_batches(self, tokens: int) -> MemoryRanShort:
        """The same batch once more, with less in memory at a time; kept with the run as a change of its settings."""
        self.optimizer.zero_grad(set_to_none=True)
        self.config = self.config.replace(micro_batch_tokens=tokens)
        self.changes.append((self.step + 1, {"micro_batch_tokens": tokens}))
        return MemoryRanShort(self.step + 1, tokens, f"Memory is short in step {self.step + 1}: it takes at most {tokens} tokens "
                                                     f"at a time from here on. Results stay the same but for their last digits.")

    def _report(self, metrics: dict[str, float]) -> StepRecord:
        batch, config = self.batch, self.config
        self.step += 1
        metrics |= group_metrics(batch.groups) | batch.logged | {"num_tokens": self.num_tokens}
        if config.dead_groups in ("resample", "replace"):
            metrics["groups/resampled"] = batch.resampled
        references.renew(self.policy.adapters, self.adapter, self.reference, config, self.step)
        self.stopped = self.stop_rules.look(metrics, config)
        record = StepRecord(self.step, metrics, _own(batch.groups), batch.iteration, self.stopped)
        batch.iteration += 1
        if batch.iteration >= config.num_iterations:
            self.batch = None
        return record

    # -- settings

    def _apply_changes(self) -> None:
        if not self.pending:
            return
        self.changes.append((self.step + 1, self.pending))
        self.config = self.config.replace(**self.pending)
        if "rewards" in self.pending:
            self.rewards = resolve(self.config.rewards)
        self.pending = {}

    @property
    def reference_name(self) -> str:
        """What the reference is called where it is an adapter."""
        return f"{self.adapter}-reference"

    def begin_reference(self) -> None:
        """The adapter as it is now becomes the reference; for a continued one KL against the bare base would begin far from 0."""
        if self.reference is not None:
            self.policy.remove_adapter(self.reference)
        self.reference = None
        if self.config.reference != "base":
            self.reference = self.reference_name
            self.policy.adapters.copy(self.adapter, self.reference)


def _own(groups: list[Group]) -> list[Group]:
    """Groups of a record's own: the next update of the same rollout writes new arrays into the trainer's."""
    return [replace(group, completions=[replace(c, arrays=dict(c.arrays)) for c in group.completions]) for group in groups]
