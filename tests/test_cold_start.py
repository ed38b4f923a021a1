"""A cold start: what it learns from, what it leaves alone, and where the run begins afterwards."""

from __future__ import annotations

import json

import pytest
import torch

from lab.config import ConfigError, RunConfig
from lab.records import ColdStartStep, EvaluationRecord, StepRecord
from lab.storage.recorder import open_run, recording
from lab.tasks import TaskError
from lab.tasks.arithmetic import is_held_out
from lab.tasks.worked import load_examples
from lab.trainer import Trainer
from lab.training.cold_start import as_rollout, supervised_backward
from tests.conftest import SMALL_RUN

ROWS = [{"prompt": f"What is {i} + 1?", "completion": f"<answer>{i + 1}</answer>"} for i in range(1, 6)]
COLD = dict(cold_start=ROWS, cold_start_steps=3)


# -- examples


def test_the_arithmetic_tasks_work_out_their_own_examples_and_none_is_held_out():
    examples = load_examples("worked", "add2", 7)
    rows = examples.rows(0, 50)
    assert rows == load_examples("worked", "add2", 7).rows(0, 50) and len({row["prompt"] for row in rows}) > 40
    for row in rows:
        assert row["completion"].startswith("<think>") and row["completion"].endswith(f"<answer>{row['answer']}</answer>")
        numbers = [word.strip("?.") for word in row["prompt"].split() if word.strip("?.").isdigit()]
        assert not is_held_out(" + ".join(numbers))


def test_examples_come_from_rows_files_and_messages(tmp_path):
    file = tmp_path / "examples.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    prompts = {row["prompt"] for row in ROWS}
    for source in (ROWS, file, str(file)):
        examples = load_examples(source, "add2", 0)
        assert {row["prompt"] for row in examples.rows(0, len(ROWS))} == prompts
    as_messages = [{"prompt": "Hi", "completion": [{"role": "assistant", "content": "Hello!"}]}]
    assert load_examples(as_messages, "add2", 0).rows(0, 1)[0]["completion"][-1]["content"] == "Hello!"


@pytest.mark.parametrize(("source", "task", "sentence"), [
    ([*ROWS, {"prompt": "Why?", "answer": "So."}], "add2", r"Example 6 .* no completion .*columns: prompt, answer"),
    ("worked", "poem", "Only the arithmetic tasks"), ([], "add2", "no rows"), ("missing.jsonl", "add2", "no file missing.jsonl")])
def test_examples_that_cannot_be_used_are_refused_with_a_sentence(source, task, sentence):
    with pytest.raises(TaskError, match=sentence):
        load_examples(source, task, 0)


def test_steps_without_examples_are_refused():
    with pytest.raises(ConfigError, match=r"\(cold_start\) names no examples"):
        RunConfig(cold_start_steps=5)


# -- what is learned


def test_only_completions_are_learned_and_the_stop_token_with_them(policy, adapter):
    rollout = as_rollout(policy, ROWS[:2], "")
    for row, example in enumerate(ROWS[:2]):
        ids = rollout.completion_ids[row][rollout.completion_mask[row].bool()].tolist()
        assert policy.decode(ids) == example["completion"] and ids[-1] in policy.eos_ids
        prompt = rollout.prompt_ids[row][rollout.prompt_mask[row].bool()].tolist()
        assert prompt == policy.prompt_ids(example["prompt"], "")  # nothing of the prompt is among what is predicted


def test_the_loss_is_the_mean_over_tokens_as_cross_entropy_gives_it(policy, adapter):
    rollout = as_rollout(policy, ROWS, "")
    ids, mask, positions = rollout.sequences()
    with torch.no_grad(), policy.adapters.active(adapter):
        logits = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    labels = ids.clone()
    width = rollout.prompt_ids.shape[1]
    labels[:, :width] = -100
    labels[:, width:][rollout.completion_mask == 0] = -100
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    loss = supervised_backward(policy, adapter, rollout, max_tokens=10_000)
    assert loss == pytest.approx(float(expected), rel=1e-4)


def test_the_gradient_does_not_depend_on_micro_batches(policy, adapter):
    rollout, parameters, grads = as_rollout(policy, ROWS, ""), policy.adapters.parameters(adapter), []
    for max_tokens in (30, 10_000):
        supervised_backward(policy, adapter, rollout, max_tokens=max_tokens)
        grads.append(torch.cat([p.grad.flatten() for p in parameters.values()]))
        for parameter in parameters.values():
            parameter.grad = None
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-4)


# -- the run


def test_a_cold_start_comes_before_the_first_step_and_lowers_its_loss(make_trainer):
    trainer = make_trainer(**COLD, max_steps=1, eval_steps=1, eval_prompts=2, eval_samples=0)
    events = [e for e in trainer.events() if isinstance(e, (ColdStartStep, StepRecord, EvaluationRecord))]
    kinds = [type(e).__name__ + getattr(e, "adapter", "") for e in events]
    assert kinds == ["EvaluationRecordbase", *["ColdStartStep"] * 3, "EvaluationRecordtuned", "StepRecord", "EvaluationRecordtuned"]
    losses = [e.loss for e in events if isinstance(e, ColdStartStep)]
    assert losses[-1] < losses[0] and [e.step for e in events[1:4]] == [1, 2, 3] and events[1].of == 3


def test_kl_of_the_first_step_is_exactly_0_after_a_cold_start(make_trainer):
    trainer = make_trainer(**COLD)
    first = next(trainer)
    assert first.metrics["kl"] == 0.0 and trainer.reference is not None
    assert next(trainer).metrics["kl"] > 0


def test_without_examples_the_run_is_r1_zero(make_trainer):
    plain, zero = make_trainer(), make_trainer(cold_start=ROWS, cold_start_steps=0)
    records = [next(plain), next(zero)]
    assert records[0].metrics["reward"] == records[1].metrics["reward"]
    assert plain.policy.adapters.fingerprint(plain.adapter) == zero.policy.adapters.fingerprint(zero.adapter)
    assert zero.reference is None


@pytest.mark.parametrize("stop_after", [2, 3])
def test_a_run_saved_during_or_right_after_its_cold_start_goes_on_bit_equal(make_trainer, policy, tmp_path, stop_after):
    whole = make_trainer(**COLD)
    next(whole)
    half = make_trainer(**COLD)
    for event in half.events():
        if isinstance(event, ColdStartStep) and event.step == stop_after:
            break
    half.save(tmp_path / "saved")
    resumed = Trainer.load(tmp_path / "saved", policy=policy, adapter=f"resumed-cold{stop_after}", rewards=half.config.rewards)
    make_trainer.adopt(resumed)
    assert next(resumed).metrics["kl"] == 0.0
    assert policy.adapters.fingerprint(whole.adapter) == policy.adapters.fingerprint(resumed.adapter)


def test_the_cold_start_is_in_the_record_of_the_run(policy, tmp_path):
    config = RunConfig(**SMALL_RUN | COLD | dict(max_steps=1, rewards=("format",)))
    trainer = Trainer(config, policy=policy, adapter="stored-cold")
    list(recording(trainer, "cold", tmp_path))
    trainer.close()
    run = open_run("cold", tmp_path)
    marks = [e.data for e in run.store.events(run.id) if e.kind == "cold_start"]
    assert [m["step"] for m in marks] == [1, 2, 3] and all(m["loss"] > 0 for m in marks)
