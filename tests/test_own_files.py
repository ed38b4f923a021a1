"""A run's copies of its reward files, and where they are found when the runs folder has moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import lab
from lab import Trainer
from lab.config import RunConfig
from lab.storage.datasets import Datasets
from lab.storage.own_files import at_home, keep_reward_files, kept
from lab.storage.rewards import RewardShelf
from lab.store import open_store
from lab.training.branch import branch

SOURCE = "def mine(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
ALICE = "a" * 32


def test_reward_files_of_one_name_in_two_folders_stay_two_rewards(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def mine(completions, **kwargs):\n    return [{value}] * len(completions)\n")
    config = RunConfig(rewards=(str(tmp_path / "a" / "mine.py"), f"{tmp_path / 'b' / 'mine.py'}:mine", str(tmp_path / "a" / "mine.py")))
    kept = keep_reward_files(config, tmp_path / "run")
    first, second, again = (str(reward).removesuffix(":mine") for reward in kept.rewards)
    assert first == again and Path(first).name == "mine.py"
    assert "return [1]" in Path(first).read_text() and "return [2]" in Path(second).read_text()
    assert keep_reward_files(config, tmp_path / "run") == kept  # a resume finds the same copies


def test_a_run_keeps_its_own_copy_which_holds_when_the_original_is_gone(tmp_path):
    shelf = RewardShelf.beside(tmp_path)
    version = shelf.freeze(ALICE, "mine", SOURCE)
    config = RunConfig(rewards=(shelf.reward_of(ALICE, "mine@1"), "format"), eval_rewards=(shelf.reward_of(ALICE, "mine@1"),))
    kept = keep_reward_files(config, tmp_path / "run")
    copy = (tmp_path / "run" / "rewards" / "mine@1.py").resolve()
    assert kept.rewards == (f"{copy}:mine", "format") and kept.eval_rewards == (f"{copy}:mine",) and copy.read_text() == SOURCE
    shelf.file(version).unlink()
    shelf.close()
    assert keep_reward_files(kept, tmp_path / "run") == kept and copy.read_text() == SOURCE
    plain = RunConfig()
    assert keep_reward_files(plain, tmp_path / "other") is plain and not (tmp_path / "other").exists()


def test_a_recorded_run_holds_the_reward_files_it_was_trained_with(make_trainer, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    run = lab.record(make_trainer(rewards=(str(path),), max_steps=1), "mine", tmp_path / "runs")
    assert (run.folder / "rewards" / "mine.py").read_text() == SOURCE


def test_a_branch_holds_its_own_copy(make_trainer, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    run = lab.record(make_trainer(rewards=(str(path),), max_steps=1), "mine", tmp_path / "runs")
    store = open_store(tmp_path / "runs")
    child = store.run(branch(store, run.run, changes={"max_steps": 3}))
    copy = tmp_path / "runs" / child.id / "rewards" / "mine.py"
    assert child.config["rewards"] == [str(copy.resolve())] and copy.read_text() == SOURCE


def test_a_file_that_was_edited_is_kept_beside_what_it_was_before(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    (first,) = kept((f"{path}:mine",), tmp_path / "run")
    path.write_text(SOURCE + "# edited\n")
    (second,) = kept((f"{path}:mine",), tmp_path / "run")
    assert first != second and second.endswith(".py:mine")
    assert Path(first.removesuffix(":mine")).read_text() == SOURCE and "# edited" in Path(second.removesuffix(":mine")).read_text()
    assert kept((first, second, "accuracy", len), tmp_path / "run") == (first, second, "accuracy", len)


def test_a_moved_runs_folder_trains_on_branches_and_evaluates_with_its_own_files(make_trainer, policy, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    before, after = tmp_path / "before", tmp_path / "after"
    data = Datasets.beside(before).add("sums", [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(4)]
                                         + [{"prompt": "9 + 1 =", "answer": "10", "held_out": True}], {})
    trainer = make_trainer(rewards=("accuracy", f"{path}:mine"), eval_rewards=(str(path),), task=str(data.file.resolve()), max_steps=2)
    for step in lab.recording(trainer, "mine", before):
        if step.step == 1:
            path.write_text(SOURCE.replace("1.0", "0.5"))
            trainer.change(rewards=("accuracy", str(path)))
    shutil.move(before, after)
    path.unlink()
    run = lab.open_run("mine", after)
    first, second = sorted((run.folder.resolve() / "rewards").glob("mine*.py"), key=lambda file: "0.5" in file.read_text())
    assert run.config["rewards"] == ["accuracy", f"{first}:mine"] and run.config["eval_rewards"] == [str(first)]
    assert run.config["task"] == str((after / data.task).resolve())
    child = run.store.run(branch(run.store, run.run, changes={"max_steps": 3}))
    assert child.config["rewards"][1].startswith(str(after.resolve() / child.id)) and "0.5" in Path(child.config["rewards"][1]).read_text()
    again = Trainer.load(run.folder / "checkpoint-2", policy=policy, adapter="moved", max_steps=3)
    make_trainer.adopt(again)
    assert again.config.rewards == ("accuracy", str(second)) and again.evaluate().metrics
    assert next(again).metrics["rewards/mine/mean"] == 0.5


def test_a_change_that_waits_for_its_step_names_the_copy_too(make_trainer, policy, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    trainer = make_trainer(max_steps=3, rewards=("accuracy",))
    for step in lab.recording(trainer, "mine", tmp_path / "before"):
        if step.step == 2:
            trainer.change(rewards=("accuracy", str(path)))
            break
    shutil.move(tmp_path / "before", tmp_path / "after")
    path.unlink()
    again = Trainer.load(lab.open_run("mine", tmp_path / "after").folder / "checkpoint-2", policy=policy, adapter="moved")
    make_trainer.adopt(again)
    assert next(again).metrics["rewards/mine/mean"] == 1.0


def test_files_that_are_not_the_runs_stay_where_they_are(tmp_path):
    (tmp_path / "run" / "rewards").mkdir(parents=True)
    settings = {"rewards": ["accuracy", "rewards/mine.py", r"C:\runs\old\rewards\other.py"], "task": "data/rows.jsonl", "cold_start": None}
    assert at_home(settings, tmp_path / "run") == settings
    (tmp_path / "run" / "rewards" / "other.py").write_text(SOURCE)  # as it comes from another machine
    assert at_home(settings, tmp_path / "run")["rewards"][2] == str((tmp_path / "run" / "rewards" / "other.py").resolve())
