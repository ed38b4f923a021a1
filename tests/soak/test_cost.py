"""A long run costs at its end what it cost at its beginning: seconds a step and memory over 500 steps, kept as JSON."""

from __future__ import annotations

import statistics
import time

import psutil
import pytest

from lab import Policy, RunConfig, Trainer
from tests.soak.test_first_runs import keep

pytestmark = pytest.mark.soak

STEPS = 500


def test_step_500_costs_what_step_20_costs_and_memory_is_flat():
    policy = Policy.load("tiny", device="cpu", num_threads=1)
    policy.eos_ids = []  # equal lengths, so that steps can be compared
    config = RunConfig(model="tiny", task="add2", rewards=(spread,), num_generations=4, prompts_per_step=2, max_completion_length=12,
                       max_steps=STEPS, beta=0.04)
    trainer, process, seconds, memory = Trainer(config, policy=policy), psutil.Process(), [], []
    begin = time.process_time()
    for _ in trainer:
        seconds.append(time.process_time() - begin)
        memory.append(process.memory_info().rss)
        begin = time.process_time()
    early, late = statistics.median(seconds[10:110]), statistics.median(seconds[-100:])
    grown = max(memory[-100:]) - max(memory[10:110])
    keep("cost", [], early_cpu_seconds=early, late_cpu_seconds=late, grown_bytes=grown, peak_bytes=max(memory))
    assert late < 1.25 * early
    assert grown < 20e6


def spread(completion_ids, **_):
    return [sum(ids) % 97 / 97 for ids in completion_ids]
