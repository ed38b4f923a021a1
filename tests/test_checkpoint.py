"""Checkpoints: what is saved is what goes on."""

import errno
import json

import numpy as np
import pytest
import torch

from lab.config import LOSS_TYPES
from lab.errors import Unreadable
from lab.models.registry import ModelError
from lab.records import ScoringFailed
from lab.rewards import RewardError
from lab.trainer import Trainer, TrainingError
from lab.training import checkpoint

from .conftest import letters


def numbers(records):
    """Everything a step reports that is not a time."""
    return [{k: v for k, v in record.metrics.items() if k != "step_time"} for record in records]


def arrays(record):
    return [np.concatenate([c.arrays[name] for g in record.groups for c in g.completions]) for name in
            ("sampling_logps", "logps", "old_logps", "ref_logps", "entropy")]


def resumed(make_trainer, folder, policy, **changes):
    trainer = Trainer.load(folder, policy=policy, adapter=f"resumed{id(changes)}", **changes)
    make_trainer.adopt(trainer)
    return trainer


@pytest.mark.parametrize("settings", [
    {},
    dict(num_iterations=2),  # 3 steps end in the middle of a rollout's use
    dict(loss_type="dapo", beta=0.0, lr_scheduler_type="cosine", warmup_steps=2),
], ids=["paper", "two updates per rollout", "dapo with a schedule"])
def test_six_steps_equal_three_and_resume_three(make_trainer, policy, tmp_path, settings):
    whole = make_trainer(**settings)
    expected = list(whole)

    first = make_trainer(**settings)
    got = [next(first) for _ in range(3)]
    first.save(tmp_path / "run")
    second = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,))
    got += list(second)

    assert [record.step for record in got] == [1, 2, 3, 4, 5, 6]
    assert numbers(got) == numbers(expected)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(got[-1]), arrays(expected[-1]), strict=True))
    assert policy.adapters.fingerprint(second.adapter) == policy.adapters.fingerprint(whole.adapter)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_live_changes_survive_a_resume_with_every_loss_also_between_two_uses_of_a_rollout(make_trainer, policy, tmp_path, loss_type):
    """Two updates a rollout and a change after the third: its beta and learning rate act on a rollout sampled before it."""
    made_for = dict(luspo=dict(importance_sampling_level="sequence"), cispo=dict(epsilon_high=5.0)).get(loss_type, {})
    settings = dict(loss_type=loss_type, num_iterations=2, max_steps=5, max_completion_length=6) | made_for
    changes = dict(learning_rate=1e-3, beta=0.2, epsilon=0.1, temperature=0.7)

    def run(trainer):
        records = [next(trainer) for _ in range(3)]
        assert trainer.change(**changes) == 4
        return records

    whole = make_trainer(**settings)
    expected = run(whole) + list(whole)
    first = make_trainer(**settings)
    got = run(first)  # saved while the change still waits for its step
    first.save(tmp_path / "run")
    second = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,))
    got += list(second)
    assert numbers(got) == numbers(expected)
    assert [record.iteration for record in got] == [0, 1, 0, 1, 0]
    assert policy.adapters.fingerprint(second.adapter) == policy.adapters.fingerprint(whole.adapter)
    assert second.changes == [(4, changes)]


def test_a_live_change_survives_a_resume(make_trainer, policy, tmp_path):
    def run(trainer):
        records = [next(trainer) for _ in range(2)]
        assert trainer.change(learning_rate=1e-3, beta=0.2, temperature=0.7) == 3
        return records

    whole = make_trainer()
    expected = run(whole) + list(whole)
    first = make_trainer()
    got = run(first)  # saved while the change still waits for its step
    first.save(tmp_path / "run")
    second = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,))
    got += list(second)
    assert numbers(got) == numbers(expected)
    assert second.changes == [(3, dict(learning_rate=1e-3, beta=0.2, temperature=0.7))]


def test_save_in_the_middle_of_sampling_repeats_that_step(make_trainer, policy, tmp_path):
    whole = make_trainer()
    expected = list(whole)
    first = make_trainer()
    got = [next(first)]
    next(first.events())  # partial texts of step 2
    first.save(tmp_path / "run")
    second = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,))
    got += list(second)
    assert numbers(got) == numbers(expected)


def test_a_run_that_waits_for_a_mended_reward_can_be_saved(make_trainer, policy, tmp_path):
    def broken(completions, **kwargs):
        raise ZeroDivisionError("no")

    first = make_trainer(rewards=(broken,))
    with pytest.raises(RewardError):
        next(first)
    first.save(tmp_path / "run")
    sampled = [c.token_ids for g in first.batch.groups for c in g.completions]
    second = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,))
    record = next(second)
    assert [c.token_ids for g in record.groups for c in g.completions] == sampled
    assert not any(isinstance(event, ScoringFailed) for event in second.events())


def test_more_steps_and_changed_settings_on_load(make_trainer, policy, tmp_path):
    first = make_trainer(max_steps=1)
    list(first)
    first.save(tmp_path / "run")
    branch = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,), max_steps=2, beta=0.5)
    assert [record.step for record in branch] == [2]
    assert branch.config.beta == 0.5


def test_continued_adapter_keeps_its_start_as_reference(make_trainer, policy, tmp_path):
    first = make_trainer(max_steps=2)
    list(first)
    first.save(tmp_path / "a")

    second = make_trainer(adapter=str(tmp_path / "a"), max_steps=4)
    step = next(second)
    assert step.metrics["kl"] == 0.0  # against the adapter's start, not against the base
    expected = [next(second)]
    assert expected[0].metrics["kl"] > 0
    second.save(tmp_path / "b")
    expected += list(second)

    (tmp_path / "a").rename(tmp_path / "gone")
    third = resumed(make_trainer, tmp_path / "b", policy, rewards=(letters,))
    assert numbers(list(third)) == numbers(expected[1:])


def test_checkpoints_are_written_every_save_steps(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=4, save_steps=2)
    trainer.output_dir = tmp_path
    list(trainer.events())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4"]


def test_full_disk_leaves_the_earlier_checkpoint_unharmed(make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path / "run")
    before = (tmp_path / "run" / "trainer.json").read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(TrainingError, match="disk is full"):
        trainer.save(tmp_path / "run")
    assert (tmp_path / "run" / "trainer.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_checkpoint_can_replace_an_older_one_and_holds_nothing_executable(make_trainer, tmp_path):
    trainer = make_trainer()
    for _ in range(2):
        next(trainer)
        trainer.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "trainer.json").read_text())["step"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {path.suffix for path in (tmp_path / "run").iterdir()} <= {".json", ".safetensors", ".md"}


def test_only_a_checkpoint_is_replaced_when_saving(make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer()
    mine, notes = tmp_path / "mine", tmp_path / "notes.txt"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    notes.write_text("a few")
    monkeypatch.chdir(mine)
    for place in (mine, notes, ".", ""):
        with pytest.raises(TrainingError, match="is there already and is no checkpoint of a run: name a new folder"):
            trainer.save(place)
    assert (mine / "thesis.tex").read_text() == "years of work" and notes.read_text() == "a few"
    assert trainer.save("new/saved") == trainer.save("new/saved") == mine / "new" / "saved"  # a checkpoint is brought up to date
    assert [path.name for path in (mine / "new").iterdir()] == ["saved"]


@pytest.mark.parametrize(("place", "words"), [("a\0b", "holds a zero byte"), ("a" * 300, "cannot be written: File name too long")])
def test_a_place_that_cannot_be_is_said_in_a_sentence(make_trainer, place, words):
    with pytest.raises(Unreadable, match=words):
        make_trainer().save(place)


def test_not_a_checkpoint_is_said_in_a_sentence(policy, tmp_path):
    with pytest.raises(ModelError, match="not a checkpoint"):
        Trainer.load(tmp_path, policy=policy)


def test_a_function_of_ones_own_is_asked_for_and_never_taken_for_a_built_in_one(make_trainer, policy, tmp_path):
    def accuracy(completions, **kwargs):
        return [0.25] * len(completions)

    trainer = make_trainer(rewards=(accuracy, "format"), max_steps=2)
    next(trainer)
    folder = trainer.save(tmp_path / "saved")
    with pytest.raises(RewardError, match=r"trained with accuracy, written in Python.*Trainer.load\('.*saved', rewards=\[accuracy\]\)"):
        Trainer.load(folder, policy=policy)
    again = Trainer.load(folder, policy=policy, adapter="again", rewards=(accuracy, "format"))
    make_trainer.adopt(again)
    assert next(again).metrics["rewards/accuracy/mean"] == 0.25


def test_functions_that_were_to_come_with_the_next_step_are_asked_for_as_well(make_trainer, policy, tmp_path):
    trainer = make_trainer(max_steps=2, rewards=("format",))
    next(trainer)
    trainer.change(rewards=(letters,))
    folder = trainer.save(tmp_path / "saved")
    with pytest.raises(RewardError, match=r"rewards=\[letters\]"):
        Trainer.load(folder, policy=policy)
    again = Trainer.load(folder, policy=policy, adapter="again", rewards=(letters,))
    make_trainer.adopt(again)
    assert "rewards/letters/mean" in next(again).metrics


def changed_state(folder, **policy):
    """A checkpoint that was made with a model loaded otherwise."""
    file = folder / "trainer.json"
    state = json.loads(file.read_text())
    state["policy"] |= policy
    file.write_text(json.dumps(state))


def test_what_was_left_open_stays_as_it_was_decided_when_the_run_began(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2)
    next(trainer)
    folder = trainer.save(tmp_path / "saved")
    changed_state(folder, dtype="bfloat16", way="own")  # on this machine both would be decided otherwise today
    again = Trainer.load(folder, rewards=trainer.config.rewards)
    assert trainer.config.dtype == "auto" and again.policy.dtype == torch.bfloat16
    assert again.policy.fast.way == "own" and again.policy.resolved["threads"] == trainer.policy.resolved["threads"]
    assert again.not_as_before is None


def test_a_resume_that_computes_otherwise_says_that_it_is_not_bit_equal(make_trainer, policy, tmp_path):
    trainer = make_trainer(max_steps=2)
    next(trainer)
    folder = trainer.save(tmp_path / "saved")
    changed_state(folder, torch="1.0", way="plain", threads=10**6)  # more threads than there are: not asked for
    again = Trainer.load(folder, policy=policy, adapter="again", rewards=trainer.config.rewards)
    make_trainer.adopt(again)
    assert "version of torch 1.0 before" in again.not_as_before and "way of computing plain before" in again.not_as_before
    assert again.config.num_threads == 0
    next(again)
