"""The first half of a step: from prompts to a batch of completions with rewards and advantages.

A mixin of `Trainer`, apart from it because what is done with dead groups happens here and nowhere else. At every event the
state is one that a checkpoint can keep. Leaves out the update (`updating`) and how each part is done (`sampling`,
`rewards`, `weigh`, `resampling`).

    N completions · T completion tokens
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lab.config import RunConfig
from lab.policy import Policy
from lab.records import AwaitingScores, Event, Group, GroupScored, ScoringFailed
from lab.rewards import Reward, RewardError
from lab.rewards.by_hand import Rating, ScoreError, checked_ratings, criteria_of
from lab.rollout import Rollout, SamplingSettings
from lab.rules.advantages import completion_kl
from lab.tasks import Task
from lab.training.resampling import HardPrompts, put_in_place, sample_again
from lab.training.sampling import sample_groups, score_groups, seeded
from lab.training.weigh import weigh


@dataclass
class Batch:
    """A rollout and how far its use has come. It lives for `num_iterations` updates."""

    rollout: Rollout
    groups: list[Group]
    advantages: Tensor | None = None  # (N,), or (N, T) with step rewards; None: not scored yet
    logged: dict[str, float] | None = None  # what reward functions logged with log_metric
    old_logps: Tensor | None = None  # (N, T) of the policy that sampled; set by the first update
    ref_logps: Tensor | None = None  # (N, T)
    values: Tensor | None = None  # (N, T) of PPO's critic before the first update
    returns: Tensor | None = None  # (N, T) what they should have been
    iteration: int = 0  # updates made with it
    rounds: int = 0  # times that dead groups were sampled again
    resampled: int = 0  # groups thrown away on the way


class Collecting:
    """What `Trainer` does before an update; the attributes are the trainer's."""

    config: RunConfig
    policy: Policy
    task: Task
    rewards: list[Reward]
    adapter: str
    reference: str | None
    batch: Batch | None
    step: int
    rollouts: int
    prompts: int
    num_tokens: int
    hard_prompts: HardPrompts

    @property
    def waiting(self) -> list[Group]:
        """The groups that a person must score before the step can go on; empty where nobody is waited for."""
        batch = self.batch
        if batch is None or batch.logged is not None or not criteria_of(self.rewards):
            return []
        return [group for group in batch.groups if any(c.ratings is None for c in group.completions)]

    def give_scores(self, scores: list[Any]) -> list[list[Rating]]:
        """A person's scores for the `waiting` groups, from 0 to 1; returns them as they count, for each group.

        A list for each group, or one flat list: of numbers, of dicts with a number for each criterion, or of None for a
        completion that is left out. Raises ScoreError.
        """
        groups = self.waiting
        if not groups:
            raise ScoreError("Nothing waits for scores now.")
        ratings = checked_ratings(scores, groups, criteria_of(self.rewards))
        for group, given in zip(groups, ratings, strict=True):
            for completion, rating in zip(group.completions, given, strict=True):
                completion.ratings = rating
        return ratings

    def _sample(self) -> Generator[Event, None, None]:
        rows = self.task.rows(self.prompts, self.config.prompts_per_step)
        rollout, groups = yield from self._sampling(rows)
        self.batch = Batch(rollout, groups)
        self._count(rollout, prompts=len(rows))

    def _sampling(self, rows: list[dict[str, Any]]) -> Generator[Event, None, tuple[Rollout, list[Group]]]:
        config = self.config
        generator = seeded(config.seed, self.rollouts)
        return sample_groups(self.policy, config, rows, self.adapter, SamplingSettings.of(config), generator, step=self.step + 1)

    def _count(self, rollout: Rollout, prompts: int) -> None:
        self.rollouts += 1
        self.prompts += prompts
        self.num_tokens += int(rollout.lengths.sum()) + int(rollout.prompt_mask.sum(1)[rollout.group_ids].sum())

    def _score(self) -> Generator[Event, None, None]:
        """Rewards and advantages; dead groups are sampled again first, where that is wanted."""
        batch = self.batch
        advantages = yield from self._weighed()
        while dead := self._groups_to_sample_again():
            yield from self._sample_again(dead)
            advantages = yield from self._weighed()
        if self.config.dead_groups == "replace":
            self.hard_prompts.remember(batch.groups)
        batch.advantages = advantages
        for group in batch.groups:
            yield GroupScored(self.step + 1, group)

    def _weighed(self) -> Generator[Event, None, Tensor]:
        """Rewards and their advantages. A function that breaks, or rewards that the rule cannot take, are told and tried again."""
        while True:
            try:
                yield from self._fill_rewards()
                return self._weigh()
            except RewardError as error:
                self.batch.logged = None
                yield ScoringFailed(self.step + 1, error)
                self._apply_changes()

    def _weigh(self) -> Tensor:
        batch, config, kl = self.batch, self.config, None
        if config.kl_placement == "reward":
            batch.old_logps, _ = self.policy.frozen_logps(batch.rollout, self.adapter, max_tokens=config.micro_batch_tokens)
            kl = completion_kl(batch.old_logps, self._ref_logps(), batch.rollout.completion_mask)
        return weigh(batch.groups, batch.rollout, config, decode=self.policy.decode, kl=kl)

    def _ref_logps(self) -> Tensor:
        batch = self.batch
        if batch.ref_logps is None:
            batch.ref_logps, _ = self.policy.frozen_logps(batch.rollout, self.reference, max_tokens=self.config.micro_batch_tokens)
        return batch.ref_logps

    def _groups_to_sample_again(self) -> list[int]:
        if self.config.dead_groups not in ("resample", "replace") or self.batch.rounds >= self.config.max_resamples:
            return []
        return [index for index, group in enumerate(self.batch.groups) if group.dead]

    def _sample_again(self, dead: list[int]) -> Generator[Event, None, None]:
        """Other prompts take the places of dead groups. All groups are then scored as one batch, as any other is."""
        batch = self.batch
        hard = self.hard_prompts.hardest(len(dead)) if self.config.dead_groups == "replace" else []
        fresh = self.task.rows(self.prompts, len(dead) - len(hard)) if len(hard) < len(dead) else []
        rollout, groups = yield from sample_again(self._sampling([*hard, *fresh]), batch.groups, dead)
        self.hard_prompts.forget_hardest(len(hard))
        self._count(rollout, prompts=len(fresh))
        batch.rollout = put_in_place(batch.rollout, rollout, dead)
        for place, group in zip(dead, groups, strict=True):
            batch.groups[place] = group
        batch.rounds, batch.resampled, batch.logged = batch.rounds + 1, batch.resampled + len(dead), None

    def _fill_rewards(self) -> Generator[Event, None, None]:
        batch = self.batch
        while waiting := self.waiting:
            yield AwaitingScores(self.step + 1, waiting, criteria_of(self.rewards))
            self._apply_changes()
        if batch.logged is None:
            batch.logged = yield from score_groups(batch.groups, self.rewards, self.config, step=self.step)
