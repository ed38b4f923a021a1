"""The comparison with TRL runs, measures both sides and is on the right side by a wide margin on the tiny model."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import pytest
import torch

from lab import bench
from lab.bench import CHECKPOINTED, Alone, MatrixProducts, StepTime, Work
from lab.cli import main
from tests.benchmarks import one_device

SMALL = ["--shape", "tiny", "--device", "cpu", "--prompt-tokens", "40", "--completion-tokens", "6", "--steps", "1"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    pytest.importorskip("trl", reason="TRL is in the bench extra")
    file = tmp_path_factory.mktemp("bench") / "result.json"
    assert main(["bench", "--quick", "--steps", "3", "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_every_step_of_both_sides_is_kept(result):
    assert {name: len(times) for name, times in result["times"].items()} == {"ours": 3, "trl": 3}
    assert all(0 < t["sampling"] < t["step"] for times in result["times"].values() for t in times)


def test_a_step_costs_clearly_less_than_trls(result):
    # Four times, when this was written; a busy machine may take half of it away.
    assert result["ratio"]["step"] > 1.5
    assert result["ratio"]["sampling"] > 1.5


def test_memory_is_that_of_separate_processes_and_below_trls(result):
    assert 0.1 < result["peak_gb"]["ours"] < result["peak_gb"]["trl"]


def test_products_are_a_share_of_the_decoding_loop(result):
    assert len(result["decoding"]) == 3 and all(0 < t["products"] and 0 < t["loop"] for t in result["decoding"])
    assert 0 < result["products_share"] < 1.2


@pytest.mark.parametrize("merges,each", [
    (True, 4 * 4 + 1),  # of 4 layers: q, k and v as one, out, gate and up as one, down; and the head
    (False, 4 * 7 * 3 + 1),  # seven linear layers, each with its A and B beside it
])
@torch.no_grad()
def test_the_products_made_again_are_those_of_the_loop(policy, monkeypatch, merges, each):
    monkeypatch.setattr(policy, "eos_ids", policy.eos_ids)  # every completion runs to its end here
    monkeypatch.setattr(policy, "fast", replace(policy.fast, merges=merges))
    work = Work(completion_tokens=5, num_generations=3, prompts_per_step=2)
    trainer = bench.trainer_of(work, policy)
    try:
        again, batch = bench.products_again(work, trainer), bench.begun(work, trainer)
        with MatrixProducts() as once:
            again()
        with MatrixProducts() as loop:
            while batch.writing:
                batch.advance()
        assert len(once.calls) == each
        assert shapes(loop) == 4 * shapes(once)  # of 5 tokens the first comes with the prompts
    finally:
        trainer.close()


def shapes(products):
    return [[tuple(x.shape) for x in call.args if isinstance(x, torch.Tensor)] for call in products.calls]


def test_the_table_says_what_was_measured(result):
    text = bench.table(result)
    assert f"matrix products alone take {result['products_share']:.0%}" in text
    assert "prompt 60" in text and "beta 0.04" in text and "float32" in text and "CPU s" in text


def test_prompts_have_the_length_asked_for(policy):
    made = bench.prompts(bench.Work(prompt_tokens=60), policy.tokenizer, count=5)
    lengths = [len(policy.prompt_ids(prompt, None)) for prompt in made]
    assert all(60 <= length <= 68 for length in lengths), lengths
    assert len(set(made)) == 5


def test_a_process_reports_each_step_and_that_memory_ran_out(monkeypatch, capsys):
    def one_step_and_no_more(work):
        yield StepTime(2.0, 0.5)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation.")

    monkeypatch.setitem(bench.ALONE, "short", one_step_and_no_more)
    bench._report("short", json.dumps({}), "3", "8.0")
    step, end = (json.loads(line.removeprefix(bench.REPORT)) for line in capsys.readouterr().out.splitlines())
    assert (step["step"], step["sampling"]) == (2.0, 0.5) and step["peak_gb"] > 0.1
    assert end == {"out_of_memory": "CUDA out of memory. Tried to allocate 2 GiB."}


STEP = '{"step": 2.0, "sampling": 0.5, "peak_gb": 1.5}'


@pytest.mark.skipif(sys.platform == "win32", reason="the made-up process is a shell script")
@pytest.mark.parametrize("then,short,ended", [
    ("", False, None),
    ("""echo 'measured: {"out_of_memory": "CUDA out of memory."}'""", True, "out of memory: CUDA out of memory."),
    ("echo first >&2; echo last words >&2; exit 3", False, "it ended with 3: last words"),
    ("exec sleep 60", False, "the 5 seconds there were for it were up"),
])
def test_what_a_process_did_until_it_ended_is_kept(tmp_path, monkeypatch, then, short, ended):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho something else\necho 'measured: {STEP}'\n{then}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert bench.alone(Work(), "ours", 2, seconds=5) == Alone([StepTime(2.0, 0.5)], 1.5, short, ended)
    if ended is None:
        assert bench.peak_memory(Work(), "ours") == 1.5


def test_a_real_process_that_breaks_says_why():
    with pytest.raises(RuntimeError, match="ours's memory failed: it ended with 1: .*There is no model"):
        bench.peak_memory(Work(model="there-is-no-such-model"), "ours")


def test_the_measurement_for_a_gpu_runs_anywhere_with_trl_beside_it():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes has no wheel for this machine")
    pytest.importorskip("trl", reason="TRL is in the bench extra")
    result = one_device.main(SMALL)
    ours = result["ours"]
    for way in (ours["with_graphs"], ours["without_graphs"], result["trl"]["trl"]):
        assert len(way["step"]) == 1 and way["sampled_tokens_per_second"] > 0 and way["peak_gb"] > 0.1
    parts = ours["memory"]["parts"]
    assert set(parts) == {"program", "weights", "adapter", "loaded", "sampling", "learning"}
    assert all(part["planned"] > 0 and part["measured"] > 0 for part in parts.values())
    # What can be weighed to the byte is planned to the byte, but for norms, biases and the tensors' step counts.
    for name in ("weights", "adapter"):
        assert parts[name]["planned"] == pytest.approx(parts[name]["measured"], rel=0.02)
    assert result["ratio"]["steps_per_second"] > 0 and result["base"] == "4 bits"


def test_without_bitsandbytes_trl_and_time_the_measurement_says_so(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in ("trl", "bitsandbytes") else real(name, *a))
    result = one_device.main([*SMALL, "--minutes", "0"])
    assert result["base"].startswith("16 bits: bitsandbytes is not installed") and "TRL is not installed" in result["trl"]["said"]
    assert "time" in result["ours"]["without_graphs"]["said"] and result["ours"]["first_step"]["path"].startswith("Fast path")
    assert "Nothing to compare" in result["ratio"]["said"]


def test_trl_out_of_memory_is_a_result_and_checkpointing_comes_next(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    asked = []

    def alone(work, side, steps, *, memory_gb, seconds):
        asked.append((side, steps, memory_gb))
        if side == "trl":
            return Alone([], 7.9, True, "out of memory: CUDA out of memory.")
        return Alone([StepTime(9.0, 9.0), StepTime(4.0, 2.0), StepTime(4.0, 2.0)], 6.0, False, None)

    monkeypatch.setattr(one_device, "alone", alone)
    work = Work(num_generations=8, completion_tokens=100)
    tried = one_device.beside_trl(work, 2, 8.0, lambda: 60.0)
    assert asked == [("trl", 3, 8.0), (CHECKPOINTED, 3, 8.0)]
    assert tried["trl"] == {"ended": "out of memory: CUDA out of memory."}
    # Two steps of 4 s; two times 800 tokens in 4 s of sampling. Ours did twice the steps and four times the tokens.
    assert (tried[CHECKPOINTED]["steps_per_second"], tried[CHECKPOINTED]["sampled_tokens_per_second"]) == (0.25, 400.0)
    ours = {"without_graphs": one_device.rates(work, [StepTime(2.0, 0.5)]), "with_graphs": {"said": "Not measured."}, "peak_gb": 5.0}
    assert one_device.ratio({"ours": ours, "trl": tried}) == dict(
        ours="without_graphs", trl=CHECKPOINTED, steps_per_second=2.0, sampled_tokens_per_second=4.0)
    assert "time was up" in one_device.beside_trl(work, 2, 8.0, lambda: 0.0)["trl"]["said"]
