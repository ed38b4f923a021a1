"""A run is planned before it starts, its first steps are put beside the plan, and the next plan goes by them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from lab.planner import Corrections
from lab.storage.plans import corrections, form_of
from lab.storage.recorder import recording
from lab.store import open_store
from lab.training import planning


def test_the_plan_is_there_before_the_first_step_with_memory_by_part_and_seconds(make_trainer):
    report = make_trainer(max_steps=1).plan_ahead().report
    assert report["measured"] is None and report["plan"]["seconds"] > 0
    assert report["plan"]["parts"]["weights"] == pytest.approx(4 * 1_832_640, rel=0.01)  # float32
    assert report["plan"]["peak"] >= sum(report["plan"]["parts"][name] for name in ("weights", "adapter", "program"))


def test_what_the_first_steps_took_is_put_beside_it_and_then_stands(make_trainer):
    trainer, seen = make_trainer(max_steps=planning.WATCHED_STEPS + 3), []
    for _ in trainer:
        seen.append(trainer.planning.report["measured"])
    assert all(m["peak"] > 1e8 and m["seconds"] > 0 and m["sentence"].startswith("Planned at most") for m in seen)
    assert seen[-1] is seen[-2] is seen[planning.WATCHED_STEPS] is not seen[planning.WATCHED_STEPS - 1]


def test_waiting_for_a_slow_reward_is_measured_and_does_not_slow_the_next_plans(make_trainer):
    def slow(completions, **kwargs):
        time.sleep(1)
        return [float(len(str(each)) % 3) for each in completions]

    slow.waits_for = "a judge"
    trainer = make_trainer(max_steps=1, rewards=(slow,), reward_weights=None)
    step = next(trainer)
    [seconds], [waited] = trainer.planning._seconds, trainer.planning._waited
    assert 0 < waited < seconds == step.metrics["step_time"]
    pace = trainer.planning.report["measured"]["pace"]
    made = replace(step, metrics=step.metrics | {"step_time": seconds - waited})
    trainer.planning._seconds.clear(), trainer.planning._waited.clear()
    trainer.planning.look(made)  # the same work without the wait
    assert trainer.planning.report["measured"]["pace"] == pytest.approx(pace)


def test_a_recorded_run_keeps_its_plan_and_the_next_one_goes_by_it(make_trainer, tmp_path):
    first = make_trainer(max_steps=2)
    for _ in recording(first, "first", tmp_path):
        pass
    store = open_store(tmp_path)
    kept = store.runs(name="first")[0].info["plan"]
    assert kept["measured"]["seconds"] > 0 and kept["prompt_tokens"] > 0
    second = make_trainer(max_steps=1)
    for _ in recording(second, "second", tmp_path):
        pass
    expected = Corrections(memory=kept["measured"]["memory"], pace=kept["measured"]["pace"])
    assert second.corrections == expected
    assert second.planning.report["plan"]["peak"] == pytest.approx(expected.memory * first.planning.report["plan"]["peak"])


def test_a_measurement_in_another_number_format_corrects_nothing(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    for _ in recording(trainer, "one", tmp_path):
        pass
    form = form_of(trainer.policy.resolved)
    runs = open_store(tmp_path).runs()
    assert corrections(runs, model="tiny", **form) != Corrections()
    assert corrections(runs, model="tiny", **(form | {"dtype": "bfloat16"})) == Corrections()
    assert corrections(runs, model="smollm2-135m", **form) == Corrections()
