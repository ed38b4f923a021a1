"""The first runs learn: five seeds of the tiny model, a 4-bit base, SmolLM2's one-word answers. Curves are kept as JSON."""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path

import pytest

from lab import Policy, RunConfig, Trainer
from lab.presets import preset

pytestmark = pytest.mark.soak

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2, 3, 4)


def smoothed(rewards: list[float]) -> list[float]:
    """Mean of each step with the three before it, from the fourth step on: what the page announces."""
    return [statistics.mean(rewards[i - 3 : i + 1]) for i in range(3, len(rewards))]


def run(config: RunConfig, policy: Policy) -> dict:
    """Trains and returns the curve, the step and the CPU seconds at which the 4-step mean reward reached 0.9."""
    trainer = Trainer(config, policy=policy, adapter=f"seed-{config.seed}")
    rewards, kl, seconds, started = [], [], [], time.process_time()
    for step in trainer:
        rewards.append(step.metrics["reward"])
        kl.append(step.metrics["kl"])
        seconds.append(time.process_time() - started)
    trainer.close()
    reached = next((i + 4 for i, mean in enumerate(smoothed(rewards)) if mean >= 0.9), None)
    return dict(seed=config.seed, reached_step=reached, reached_cpu_seconds=reached and round(seconds[reached - 1], 1),
                cpu_seconds=round(seconds[-1], 1), reward=[round(r, 4) for r in rewards], kl=[round(k, 4) for k in kl])


def keep(name: str, runs: list[dict], **about) -> None:
    RESULTS.mkdir(exist_ok=True)
    found = dict(machine=platform.machine(), python=platform.python_version(), **about, runs=runs)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def test_first_run_reaches_nine_tenths_with_five_seeds():
    policy = Policy.load("tiny")
    runs = [run(preset("first-run").config(seed=seed), policy) for seed in SEEDS]
    steps = sorted(r["reached_step"] or 10**6 for r in runs)
    seconds = sorted(r["reached_cpu_seconds"] or 10**6 for r in runs)
    keep("first_run", runs, settings=preset("first-run").config().to_dict(), steps_min_median_max=[steps[0], steps[2], steps[4]],
         cpu_seconds_min_median_max=[seconds[0], seconds[2], seconds[4]])
    assert all(r["reward"][0] < 0.4 for r in runs)
    assert steps[-1] <= 40, "every seed gets there within the run"


def test_first_run_learns_on_a_4_bit_base():
    config = preset("first-run").config(seed=0, load_in_4bit=True)
    policy = Policy.load("tiny", load_in_4bit=True)
    found = run(config, policy)
    keep("first_run_4bit", [found], settings=config.to_dict())
    assert found["kl"][0] == 0.0
    assert statistics.mean(found["reward"][:2]) < 0.45
    assert statistics.mean(found["reward"][-5:]) >= 0.8


def test_smollm2_learns_one_word_answers_in_fifteen_steps():
    config = preset("one-word").config(max_steps=15, seed=0)
    found = run(config, Policy.load(config.model))
    keep("smollm2_one_word", [found], settings=config.to_dict())
    assert statistics.mean(found["reward"][-3:]) >= statistics.mean(found["reward"][:2]) + 0.3
