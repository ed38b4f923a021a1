"""A long run costs at its end what it cost at its beginning: CPU seconds a step, memory and store, over 2,000 steps, kept as JSON."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import psutil
import pytest

import lab
from lab import Policy, RunConfig, Trainer
from tests.soak.test_first_runs import keep

pytestmark = pytest.mark.soak

STEPS = 2000
AT = (20, 500, 1000, 2000)  # steps of which memory and store are told; the first checkpoint, which loads libraries, is at 20
WINDOW = 40  # steps around one of them, of whose seconds the median is told: others use this machine too
TOKEN_STEPS = 500  # token arrays are kept for so many steps, so that the store shows both rates


def test_step_2000_costs_what_step_20_costs_and_memory_is_flat(tmp_path):
    policy = Policy.load("tiny", device="cpu", num_threads=1)
    policy.eos_ids = []  # equal lengths, so that steps can be compared
    config = RunConfig(model="tiny", task="add2", rewards=(spread,), num_generations=4, prompts_per_step=1, max_completion_length=8,
                       max_steps=STEPS, beta=0.04, save_steps=AT[0], keep_token_steps=TOKEN_STEPS)
    process, seconds, memory, store = psutil.Process(), [], [], []
    begin = time.process_time()
    for _ in lab.recording(Trainer(config, policy=policy), "long", tmp_path):
        seconds.append(time.process_time() - begin)
        memory.append(process.memory_info().rss)
        store.append(store_bytes(tmp_path))
        begin = time.process_time()
    cost = {step: statistics.median(seconds[max(0, step - WINDOW // 2) : step + WINDOW // 2]) for step in AT}
    keep("cost", [], settings=config.to_dict(), cpu_seconds=round(sum(seconds)),
         cpu_seconds_per_step={step: round(each, 4) for step, each in cost.items()},
         resident_mb={step: round(memory[step - 1] / 1e6, 1) for step in AT},
         store_mb={step: round(store[step - 1] / 1e6, 2) for step in AT},
         store_bytes_per_step=dict(with_token_arrays=(store[499] - store[19]) // 480, without=(store[1999] - store[999]) // 1000))
    assert len(seconds) == STEPS
    assert cost[2000] < 1.5 * cost[20]
    assert memory[1999] < 1.1 * memory[499] and memory[1999] < 1.2 * memory[19]
    assert store[1999] - store[999] < 2 * (store[999] - store[19]), "a step takes no more room late than early"


def store_bytes(folder: Path) -> int:
    """The store's file with what is not yet moved into it."""
    return sum(path.stat().st_size for path in folder.glob("lab.sqlite3*"))


def spread(completion_ids, **_):
    return [sum(ids) % 97 / 97 for ids in completion_ids]
