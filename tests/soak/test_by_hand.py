"""Scores given by hand train SmolLM2 on the debate topic: one step moves each statement's probability the way of its advantage."""

from __future__ import annotations

import pytest

from lab import Policy, RunConfig, Trainer
from lab.rewards.by_hand import ScoresAwaited
from tests.soak.test_first_runs import keep

pytestmark = pytest.mark.soak

MOTION = "Give a short opening statement for the motion: Social media harms teenagers."
STUDENTS = [1.0, 0.9, 0.0, 1.0]  # four students debate; the third talked about something else


def test_one_step_on_a_debate_scored_by_hand_pushes_each_statement_the_way_of_its_advantage():
    policy = Policy.load("smollm2-135m", device="cpu", num_threads=1)
    config = RunConfig(model="smollm2-135m", task=[{"prompt": MOTION}], rewards=("by_hand",), num_generations=4, prompts_per_step=1,
                       max_completion_length=64, max_steps=1, learning_rate=1e-4, beta=0.04, seed=0)
    trainer = Trainer(config, policy=policy)
    with pytest.raises(ScoresAwaited):
        next(trainer)
    trainer.give_scores(STUDENTS)
    rollout = trainer.batch.rollout
    before, _ = policy.frozen_logps(rollout, trainer.adapter, max_tokens=4096)
    step = next(trainer)
    after, _ = policy.frozen_logps(rollout, trainer.adapter, max_tokens=4096)
    completions, change = step.groups[0].completions, (after - before).sum(1).tolist()
    product = sum(c.advantage * moved for c, moved in zip(completions, change, strict=True))
    keep("by_hand", [], motion=MOTION, settings=config.to_dict(), sum_of_advantage_times_change=product, statements=[
        {"text": c.text, "reward": c.reward, "advantage": c.advantage, "logp_before": round(float(old), 4), "logp_change": moved}
        for c, old, moved in zip(completions, before.sum(1), change, strict=True)])
    assert [c.reward for c in completions] == STUDENTS
    assert product > 0
