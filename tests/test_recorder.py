"""Recording a real trainer from Python and reading it back; the run folder reads like TRL's."""

import json
import os

import numpy as np
import pandas as pd
import pytest

import lab
from lab.config import RunConfig
from lab.errors import CommandError
from lab.rewards.by_hand import ScoresAwaited
from lab.storage.recorder import default_runs_dir, open_run, record, recording, resuming, watch
from lab.store import open_store
from lab.trainer import Trainer

SMALL = dict(num_generations=4, prompts_per_step=2, max_completion_length=16, save_steps=2, num_threads=1, learning_rate=1e-3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    record(Trainer(RunConfig(**SMALL, max_steps=3)), "three steps", folder)
    return folder


def test_a_recorded_run_has_trls_metric_names_as_columns(runs):
    run = open_run("three steps", runs)
    assert run.status == "finished" and run.metrics["step"].tolist() == [1, 2, 3]
    assert {"reward", "reward_std", "kl", "entropy", "rewards/accuracy/mean", "completions/mean_length", "loss"} <= set(run.metrics)
    assert run.config["num_generations"] == 4 and "three steps" in repr(run)


def test_its_completions_have_trls_columns(runs):
    run = open_run("three steps", runs)
    assert list(run.completions.columns) == ["step", "prompt", "completion", "accuracy", "format", "advantage"]
    assert len(run.completions) == 3 * 2 * 4
    step = run.step(2)
    assert run.completions.query("step == 2")["completion"].tolist() == [c.text for g in step.groups for c in g.completions]
    assert step.groups[0].completions[0].arrays["logps"].dtype == np.float32


def test_every_token_of_a_step_is_a_row_with_what_follows_from_its_log_probabilities(runs):
    run = open_run("three steps", runs)
    tokens, step = run.tokens(3), run.step(3)
    assert {"logps", "old_logps", "ref_logps", "entropy", "ratio", "kl", "clipped"} <= set(tokens)
    shown = step.groups[1].completions[2]
    rows = tokens.query("group == 1 and completion == 2")
    assert rows["token"].tolist() == list(range(len(shown.token_ids))) and rows["token_id"].tolist() == shown.token_ids
    assert (tokens["ratio"] == 1).all()  # the batch is used once, so its policy is the one that wrote it
    means = tokens.groupby(["group", "completion"])["kl"].mean()
    assert tokens["kl"].mean() == pytest.approx(step.metrics["kl"], rel=1e-4) and len(means) == 2 * 4


def test_tokens_are_read_with_the_settings_of_their_step_and_where_they_are_not_kept_there_are_none(tmp_path):
    trainer = Trainer(RunConfig(**SMALL | {"save_steps": 9}, num_iterations=2, epsilon=0.2, max_steps=4, keep_token_steps=2))
    record(trainer, "twice", tmp_path)
    run = open_run("twice", tmp_path)
    assert run.tokens(1).empty and (run.tokens(4)["ratio"] != 1).any()  # the second use of a batch
    run.store.add_event(run.id, 4, "change", {"loss_type": "sapo"})  # has no clip
    assert "clipped" in run.tokens(3) and "clipped" not in run.tokens(4)


def test_the_folder_reads_like_trls(runs):
    folder = open_run("three steps", runs).folder
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] == 3 == state["max_steps"] and [row["step"] for row in state["log_history"]] == [1, 2, 3]
    assert state["log_history"][0]["reward"] == open_run("three steps", runs).metrics["reward"][0]
    frame = pd.read_parquet(folder / "completions" / "completions_00002.parquet")
    assert list(frame.columns) == ["step", "prompt", "completion", "accuracy", "format", "advantage"] and len(frame) == 8
    assert sorted(p.name for p in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert (folder / "checkpoint-3" / "adapter_model.safetensors").is_file()
    assert RunConfig.from_dict(json.loads((folder / "config.json").read_text())).max_steps == 3


def test_steps_are_in_the_store_before_the_loop_sees_them_and_leaving_it_saves(tmp_path):
    for step in recording(Trainer(RunConfig(**SMALL, max_steps=9)), "left", tmp_path):
        assert open_run("left", tmp_path).metrics["step"].max() == step.step
        if step.step == 3:
            break
    run = open_run("left", tmp_path)
    assert run.status == "stopped" and (run.folder / "checkpoint-3").is_dir() and len(run.metrics) == 3


def test_a_trainer_that_breaks_leaves_its_reason_and_the_steps_before_it(tmp_path):
    calls = []

    def moody(completions, **kwargs):
        calls.append(1)
        return [1.0] * len(completions) if len(calls) < 2 else ["good"] * len(completions)

    with pytest.raises(lab.RewardError, match="moody"):
        record(Trainer(RunConfig(**SMALL, max_steps=3, rewards=(moody,))), "breaks", tmp_path)
    stored = open_store(tmp_path).runs(name="breaks")[0]
    assert stored.status == "failed" and "moody" in stored.error and "Traceback" in stored.traceback
    assert open_run("breaks", tmp_path).metrics["step"].tolist() == list(range(1, stored.step + 1))


def test_a_run_that_cannot_begin_is_stored_as_failed_and_not_as_training(tmp_path):
    long = [{"prompt": "word " * 2000, "answer": "1"}]  # the tiny model reads 512 tokens
    with pytest.raises(ValueError, match="at most 512"):
        record(Trainer(RunConfig(**SMALL | {"task": long}, max_steps=1)), "too long", tmp_path)
    stored = open_store(tmp_path).runs(name="too long")[0]
    assert stored.status == "failed" and "at most 512" in stored.error


def test_a_recording_that_needs_a_person_stops_with_the_completions_saved(tmp_path):
    with pytest.raises(ScoresAwaited, match="give_scores"):
        record(Trainer(RunConfig(**SMALL, rewards=("by_hand",), max_steps=2)), "asks", tmp_path)
    run = open_run("asks", tmp_path)
    assert run.status == "stopped"
    trainer = Trainer.load(run.folder / "checkpoint-0")  # what the page's Resume does
    assert len(trainer.waiting) == 2
    trainer.give_scores([[0.0, 0.5, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
    assert next(trainer).metrics["reward"] == pytest.approx(3.5 / 8)


def test_completions_that_wait_are_saved_also_where_their_step_has_a_checkpoint_already(tmp_path):
    trainer = Trainer(RunConfig(**SMALL | {"save_steps": 1}, max_steps=3))
    with pytest.raises(ScoresAwaited):
        for _ in recording(trainer, "changed", tmp_path):
            trainer.change(rewards=("by_hand",))  # from step 2 on, and step 1 was just saved
    assert len(open_run("changed", tmp_path).trainer().waiting) == 2


def test_a_run_that_was_left_is_resumed_as_a_new_attempt_and_no_other_process_may_have_it(tmp_path):
    steps = recording(Trainer(RunConfig(**SMALL, max_steps=3)), "left", tmp_path)
    next(steps)
    run = open_run("left", tmp_path)
    with pytest.raises(CommandError, match=f"still training: process {os.getpid()} has it"):
        next(resuming(run.trainer(), run))
    steps.close()
    for step in resuming(run.trainer(), run):
        assert step.step in (2, 3)
    run = open_run("left", tmp_path)
    assert (run.status, run.run.attempt, run.metrics["step"].tolist()) == ("finished", 2, [1, 2, 3])


def test_an_unknown_run_is_refused_with_the_known_names(runs):
    with pytest.raises(KeyError, match="Runs there: three steps"):
        open_run("four steps", runs)
    with pytest.raises(KeyError, match="no step 7"):
        open_run("three steps", runs).step(7)


def test_a_run_is_found_by_its_id_too(runs):
    assert open_run(open_run("three steps", runs).id, runs).name == "three steps"


def test_the_runs_folder_is_the_current_ones_or_the_environments(monkeypatch, tmp_path):
    monkeypatch.delenv("GRPO_LAB_RUNS", raising=False)
    assert str(default_runs_dir()) == "runs"
    monkeypatch.setenv("GRPO_LAB_RUNS", str(tmp_path))
    assert default_runs_dir() == tmp_path


def test_watching_goes_through_all_steps_and_keeps_one_figure_up_to_date(runs, monkeypatch):
    shown = []

    class Handle:
        def update(self, figure):
            shown[-1] = figure

    monkeypatch.setattr("IPython.display.display", lambda figure, display_id: shown.append(figure) or Handle())
    steps = list(open_run("three steps", runs).steps())
    assert watch(iter(steps)) == steps and len(shown) == 1
    lines = {trace.name: list(trace.y) for trace in shown[0].data if trace.mode == "lines"}
    assert lines.keys() == {"accuracy", "format", "reward", "kl"} and all(len(y) == 3 for y in lines.values())
    with pytest.raises(ValueError, match="Metrics that can be watched: reward, kl"):
        watch(iter(steps), metrics=("luck",))


def test_the_package_offers_the_names_people_rely_on():
    assert lab.open_run is open_run and lab.record is record and lab.watch is watch
    assert lab.recording is recording and lab.resuming is resuming
