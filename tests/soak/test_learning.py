"""Every way of learning learns the tiny task: held-out accuracy rises by 0.4 or more, with the product's own sampling,
scoring and update. Curves, evaluations and seeds are kept as JSON, `results/learns_<name>.json`.
"""

from __future__ import annotations

import time

import pytest

from lab import Policy, RunConfig, Trainer
from lab.presets import preset
from lab.records import EvaluationRecord, StepRecord
from tests.soak.test_first_runs import keep

pytestmark = pytest.mark.soak

SEED = 0
GAIN = 0.4
CRITIC = ("critic/seconds", "critic/bytes", "critic/value_mean", "critic/value_std", "critic/explained_variance", "critic/loss")
SHOWN = ("eval_accuracy", "eval_pass@1", "eval_pass@2", "eval_pass@4", "eval_reward")
COMMON = dict(seed=SEED, max_steps=24, num_threads=1, eval_steps=8, eval_prompts=48, eval_samples=4)

WAYS = {
    "grpo": dict(),
    "process_rewards": dict(rewards=("accuracy", "steps(each=True)"), reward_weights=(0.7, 0.3)),
    "iterative_reference": dict(reference="snapshot", ref_model_sync_steps=6, beta=0.04),
    "rloo": dict(advantage_rule="rloo", beta=0.001, kl_placement="reward"),
    "dr_grpo": dict(loss_type="dr_grpo", scale_rewards="none", beta=0.0, learning_rate=4e-3),
    "gspo": dict(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, num_iterations=2, max_steps=32, beta=0.0),
    "ppo": dict(algorithm="ppo", loss_type="bnpo", beta=0.001),
    "cold_start": dict(cold_start="worked", cold_start_steps=2),
}


@pytest.mark.parametrize("way", WAYS)
def test_held_out_accuracy_rises_by_four_tenths(way):
    config = preset("first-run").config(**COMMON | WAYS[way])
    found = run(config)
    first, last = found["evaluations"][0], found["evaluations"][-1]
    gain = {name: round(last[name] - first[name], 4) for name in ("eval_accuracy", "eval_pass@1")}
    keep(f"learns_{way}", [found], settings=config.to_dict(), held_out_gain=gain)
    assert first["adapter"] == "base" and min(gain.values()) >= GAIN, gain


def run(config: RunConfig) -> dict:
    trainer = Trainer(config, policy=Policy.load("tiny", device="cpu", num_threads=1))
    steps, evaluations, started = [], [], time.process_time()
    for event in trainer.events():
        if isinstance(event, StepRecord):
            steps.append(event.metrics)
        if isinstance(event, EvaluationRecord):
            evaluations.append(dict(step=event.step, adapter=event.adapter, **{k: round(event.metrics[k], 4) for k in SHOWN}))
    seconds = round(time.process_time() - started, 1)
    trainer.close()
    curves = {name: [round(m[name], 5) for m in steps] for name in ("reward", "kl", "entropy", "step_time", *CRITIC) if name in steps[0]}
    return dict(seed=config.seed, cpu_seconds=seconds, evaluations=evaluations, **curves)
