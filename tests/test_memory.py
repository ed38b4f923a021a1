"""When memory runs short the step goes on in smaller pieces and learns the same."""

from __future__ import annotations

import mmap
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lab import memory
from lab.memory import is_out_of_memory, mark_peak, peak, peak_since_mark, smaller_budget
from lab.planner import CUDA_CONTEXT, MARGIN
from lab.records import MemoryRanShort, StepRecord
from lab.trainer import TrainingError

from .conftest import roll

UNDER_A_LIMIT = """
import resource, torch
from lab.policy import Policy
from lab.records import MemoryRanShort, StepRecord
from lab.trainer import Trainer
from lab.config import RunConfig

policy = Policy.load("tiny", device="cpu", num_threads=1)
policy.eos_ids = []
config = RunConfig(model="tiny", task=["What is 1 + 2?"] * 4, rewards=(lambda completion_ids, **k: [sum(c) % 7 for c in completion_ids],),
                   num_generations=16, prompts_per_step=4, max_completion_length=64, max_steps=2)
trainer = Trainer(config, policy=policy)
events = trainer.events()
for event in events:  # sampling needs little; the limit comes when learning begins
    if trainer.batch is not None:
        break
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, resource.RLIM_INFINITY))
for event in events:
    if isinstance(event, MemoryRanShort):
        print("short", event.micro_batch_tokens)
    if isinstance(event, StepRecord):
        print("step", event.step)
        break
"""


def test_halving_starts_from_what_was_really_used_and_ends_at_one_completion(policy):
    rollout = roll(policy, None, ("What is 1 + 2?",), num_generations=4, max_completion_length=8)
    prompt, lengths = int(rollout.prompt_mask.sum()), rollout.lengths
    everything, longest = prompt + int(lengths.sum()), prompt + int(lengths.max())
    assert smaller_budget(rollout, 16384) == max(everything // 2, longest)
    assert smaller_budget(rollout, longest) is None


@pytest.mark.parametrize("error,expected", [
    (MemoryError(), True), (torch.OutOfMemoryError("CUDA out of memory."), True),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:126] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9."), True),
    (RuntimeError("The size of tensor a (3) must match the size of tensor b (2)"), False),
])
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_a_step_that_ran_short_gives_the_same_adapter(make_trainer, policy, monkeypatch):
    alone, short = make_trainer(max_steps=1), make_trainer(max_steps=1)
    next(alone)
    real, calls = policy.logps, []

    def logps(rollout, adapter, **others):
        calls.append(len(rollout))
        if torch.is_grad_enabled() and len(rollout) > 4:  # more than four completions do not fit
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(rollout, adapter, **others)

    monkeypatch.setattr(policy, "logps", logps)
    events = list(short.events())
    told = [event for event in events if isinstance(event, MemoryRanShort)]
    assert told and told[-1].micro_batch_tokens == short.config.micro_batch_tokens
    assert any(isinstance(event, StepRecord) for event in events)
    assert (1, {"micro_batch_tokens": told[-1].micro_batch_tokens}) in short.changes
    for a, b in zip(alone.parameters, short.parameters, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_not_even_one_completion_fits_is_an_error_with_advice(make_trainer, policy, monkeypatch):
    trainer = make_trainer(max_steps=1)
    monkeypatch.setattr(policy, "logps", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(TrainingError, match="one completion at a time"):
        next(trainer)


def test_too_little_memory_to_sample_is_said_to_be_that(make_trainer, policy, monkeypatch):
    trainer = make_trainer(max_steps=1)
    monkeypatch.setattr(policy, "decoding", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(TrainingError, match="already while sampling"):
        next(trainer)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a process limit its own memory")
def test_a_real_memory_limit_makes_pieces_smaller_and_the_step_is_done():
    out = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, timeout=300, check=False)
    assert "step 1" in out.stdout, out.stdout + out.stderr[-2000:]
    assert "short" in out.stdout, "the limit was never reached"


def test_a_run_is_planned_and_a_small_one_keeps_its_settings(make_trainer):
    trainer = make_trainer(max_steps=1)
    next(trainer)
    assert trainer.planning.plan.fits and not trainer.planning.plan.checkpointing
    assert trainer.changes == []
    assert peak(trainer.policy.device) > 1e8


def test_a_run_that_would_not_fit_starts_with_smaller_micro_batches(make_trainer, monkeypatch):
    trainer = make_trainer(max_steps=1)
    whole = make_trainer(max_steps=1).plan_ahead().plan
    monkeypatch.setattr(memory, "within_reach", lambda device: 0.99 * whole.peak / MARGIN)
    events = list(trainer.events())
    assert isinstance(events[0], MemoryRanShort)
    assert trainer.config.micro_batch_tokens == events[0].micro_batch_tokens < whole.micro_batch_tokens
    assert trainer.changes == [(1, {"micro_batch_tokens": trainer.config.micro_batch_tokens})]
    assert isinstance(events[-1], StepRecord)


@pytest.mark.skipif(not memory.CLEAR_PEAK.exists(), reason="only Linux lets a process forget its peak")
def test_a_peak_is_counted_from_a_mark_and_the_whole_one_is_not_forgotten():
    cpu = torch.device("cpu")
    with mmap.mmap(-1, 240_000_000) as taken:  # and given back, which malloc need not do in a process that has held much before
        for page in range(0, len(taken), mmap.PAGESIZE):
            taken[page] = 1
    before = peak(cpu)
    mark_peak(cpu)
    assert peak_since_mark(cpu) < before - 200e6
    assert peak(cpu) == before


def test_what_is_free_on_a_card_ends_at_the_limit_of_the_process(monkeypatch):
    # No card is needed to see the sums: 80 GB in all, 70 unused, 3 of them held by this process.
    card, allowed = torch.device("cuda"), []
    said = dict(mem_get_info=lambda device: (70e9, 80e9), memory_reserved=lambda device: 3e9,
                get_device_properties=lambda device: SimpleNamespace(total_memory=80e9),
                set_per_process_memory_fraction=lambda share, index: allowed.append(share),
                get_per_process_memory_fraction=lambda index: allowed[-1] if allowed else 1.0)
    for name, function in said.items():
        monkeypatch.setattr(torch.cuda, name, function)
    assert memory.free(card) == 70e9
    memory.limit(card, 8e9)
    # The context counts among the 8 GB: 7.5 are left for tensors, 3 of which are taken.
    assert memory.free(card) == pytest.approx(8e9 - CUDA_CONTEXT - 3e9)
    assert memory.within_reach(card) == pytest.approx(8e9)
    memory.limit(card, 100e9)
    assert memory.free(card) == 70e9
