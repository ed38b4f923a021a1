"""Branching from a checkpoint and going on past the end, on the files and through a real engine process."""

from __future__ import annotations

import json

import pytest

from lab.config import ConfigError, RunConfig
from lab.errors import CommandError
from lab.storage.recorder import open_run, recording
from lab.storage.run_folder import RunFolder
from lab.trainer import Trainer
from lab.training.branch import branch, continue_run
from tests.engine_process import ended, order, reaches, running_engine

SMALL = dict(num_generations=2, prompts_per_step=2, max_completion_length=12, save_steps=1, num_threads=1, learning_rate=1e-2, lora_r=4,
             lora_alpha=8, rewards=("format", "brevity"), max_steps=3, eval_prompts=2, eval_samples=0)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory, policy):
    """A runs folder with one finished run of three steps, a checkpoint of each."""
    folder = tmp_path_factory.mktemp("runs")
    trainer = Trainer(RunConfig(**SMALL), policy=policy, adapter="parent")
    list(recording(trainer, "parent", folder))
    trainer.close()
    return folder


@pytest.fixture
def parent(runs_dir):
    return open_run("parent", runs_dir)


@pytest.fixture(scope="module")
def engine(runs_dir):
    with running_engine(runs_dir) as engine:
        yield engine


# -- files and rows


def test_a_branch_stands_where_its_parent_stood_with_other_settings(parent, policy):
    run = parent.store.run(branch(parent.store, parent.run, step=2, changes=dict(learning_rate=0.0, max_steps=9), name="twig"))
    assert (run.parent, run.parent_step, run.step, run.name, run.owner) == (parent.id, 2, 2, "twig", parent.run.owner)
    assert run.config["learning_rate"] == 0.0 and run.config["lora_r"] == 4
    opened = open_run(run.id, parent.store.path.parent)
    assert (opened.parent, opened.parent_step, parent.parent) == (parent.id, 2, None)
    assert f"branched from {parent.id} at step 2" in repr(opened) and "branched" not in repr(parent)
    [(step, folder)] = RunFolder(parent.store, run.id).checkpoints()
    trainer = Trainer.load(folder, policy=policy, adapter="twig")
    assert (step, trainer.step, trainer.config.max_steps) == (2, 2, 9)
    first = next(trainer)
    trainer.close()
    # its first step starts from the adapter that made the parent's third: same prompts, same completions
    theirs = parent.step(3)
    assert first.step == 3 and first.metrics["learning_rate"] == 0.0
    assert [c.text for g in first.groups for c in g.completions] == [c.text for g in theirs.groups for c in g.completions]


def test_branching_leaves_the_parent_as_it_was(parent):
    before = [(s, (p / "trainer.json").read_bytes()) for s, p in RunFolder(parent.store, parent.id).checkpoints()]
    branch(parent.store, parent.run, step=1)
    assert [(s, (p / "trainer.json").read_bytes()) for s, p in RunFolder(parent.store, parent.id).checkpoints()] == before


def test_a_form_that_leaves_4_bits_open_branches_a_run_that_was_resumed(parent):
    _, folder = RunFolder(parent.store, parent.id).checkpoints()[-1]
    file = folder / "trainer.json"
    state = json.loads(file.read_text())
    state["config"]["load_in_4bit"] = False  # as a resume settles what the run had left open
    file.write_text(json.dumps(state))
    run = parent.store.run(branch(parent.store, parent.run, changes=dict(load_in_4bit=None, max_steps=9)))
    assert run.config["load_in_4bit"] is False
    with pytest.raises(CommandError, match="4-bit base"):
        branch(parent.store, parent.run, changes=dict(load_in_4bit=True, max_steps=9))


@pytest.mark.parametrize(("args", "error", "sentence"), [
    (dict(step=7), CommandError, "no checkpoint of step 7. It has 1, 2, 3"),
    (dict(changes={"lora_r": 8}), CommandError, r"LoRA rank \(lora_r\) cannot change in a branch"),
    (dict(step=3), CommandError, "already at step 3: give more steps"),
    (dict(changes={"max_steps": 9, "temperature": -1}), ConfigError, r"Temperature \(temperature\) is -1"),
    (dict(changes={"max_stepps": 9}), ConfigError, "Unknown setting max_stepps")])
def test_a_branch_that_cannot_be_is_refused_with_a_sentence_and_leaves_nothing(parent, args, error, sentence):
    before = len(parent.store.runs())
    with pytest.raises(error, match=sentence):
        branch(parent.store, parent.run, **args)
    assert len(parent.store.runs()) == before


def test_a_run_without_a_checkpoint_cannot_be_branched_or_go_on(parent):
    empty = parent.store.run(parent.store.create_run(RunConfig(**SMALL).to_dict(), name="empty"))
    for act in (branch, lambda store, run: continue_run(store, run, 3)):
        with pytest.raises(CommandError, match="no checkpoint"):
            act(parent.store, empty)
    with pytest.raises(CommandError, match="at least 1"):
        continue_run(parent.store, parent.run, 0)


# -- through the engine


def test_the_engine_branches_trains_and_evaluates(engine, parent):
    new = order(engine, "branch", parent.id, step=2, config=dict(beta=0.0, max_steps=4, eval_steps=4)).result["run"]
    run = reaches(engine, new, "finished")
    assert (run.step, run.parent, run.parent_step, run.attempt) == (4, parent.id, 2, 1)
    assert [row[0] for row in engine.store.steps_after(new).rows] == [3, 4]
    assert [(e.step, e.adapter) for e in engine.store.evaluations(new)] == [(4, "tuned")]


def test_a_finished_run_goes_on_with_more_steps(engine, parent):
    order(engine, "resume_run", parent.id, more=2)
    run = reaches(engine, parent.id, "finished")
    assert run.step == 5 and run.config["max_steps"] == 5
    assert [row[0] for row in engine.store.steps_after(parent.id).rows] == [1, 2, 3, 4, 5]  # nothing is superseded
    assert [e.data for e in engine.store.events(parent.id) if e.kind == "more_steps"] == [{"max_steps": 5}]


def test_base_and_tuned_are_evaluated_on_demand(engine, parent):
    command = ended(engine, engine.store.send_command("evaluate", {"config": {"eval_samples": 2}}, run=parent.id))
    assert command.status == "done", command.error
    stored = {e.adapter: e for e in engine.store.evaluations(parent.id)}
    assert set(stored) == {"base", "tuned"} == set(command.result["metrics"])
    assert stored["tuned"].metrics["eval_pass@2"] == command.result["metrics"]["tuned"]["eval_pass@2"]
    assert len(engine.store.rollout_groups(stored["base"].sampled)[0].completions) == 2
    refused = ended(engine, engine.store.send_command("evaluate", {"config": {"learning_rate": 1}}, run=parent.id))
    assert refused.status == "failed" and "learning_rate is no setting of an evaluation" in refused.error


def test_a_live_change_saves_a_checkpoint_first_and_leaves_a_mark(engine, parent):
    new = order(engine, "branch", parent.id, step=3, config=dict(max_steps=9, save_steps=100), steps=1).result["run"]
    reaches(engine, new, "paused")
    before = RunFolder(engine.store, new).checkpoints()[-1][0]
    order(engine, "change", new, beta=0.5)
    assert (before, RunFolder(engine.store, new).checkpoints()[-1][0]) == (3, 4)
    assert [(e.step, e.data) for e in engine.store.events(new) if e.kind == "change"] == [(5, {"beta": 0.5})]
    order(engine, "stop", new)
