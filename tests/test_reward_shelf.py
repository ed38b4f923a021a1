"""Drafts and frozen versions: rows and read-only files, owners kept apart, copies for the runs that use them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lab.config import RunConfig
from lab.storage.rewards import RewardShelf, ShelfError, keep_reward_files

SOURCE = "def mine(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
ALICE, BOB = "a" * 32, "b" * 32


@pytest.fixture
def shelf(tmp_path):
    shelf = RewardShelf.beside(tmp_path)
    yield shelf
    shelf.close()


def test_a_draft_is_the_last_thing_typed_and_only_its_owners(shelf):
    shelf.save_draft(ALICE, "x = 1")
    shelf.save_draft(ALICE, "x = 2")
    shelf.save_draft(ALICE, "before", "previous")
    assert shelf.draft(ALICE) == "x = 2" and shelf.draft(ALICE, "previous") == "before" and shelf.draft(BOB) is None


def test_versions_count_up_and_the_same_source_is_the_same_version(shelf):
    first, again = shelf.freeze(ALICE, "mine", SOURCE), shelf.freeze(ALICE, "mine", SOURCE)
    second = shelf.freeze(ALICE, "mine", SOURCE + "# better\n", note="why")
    assert (first.label, again.label, second.label, second.note) == ("mine@1", "mine@1", "mine@2", "why")
    assert [v.label for v in shelf.versions(ALICE)] == ["mine@2", "mine@1"]
    assert shelf.versions(BOB) == [] and len(shelf.versions()) == 2


def test_a_version_is_a_read_only_file_and_comes_back_if_it_was_changed(shelf):
    path = shelf.file(shelf.freeze(ALICE, "mine", SOURCE))
    assert path.name == "mine@1.py" and path.parent.name == ALICE and path.read_text() == SOURCE
    assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    path.chmod(0o644)
    path.write_text("import os")
    assert shelf.file(shelf.version(ALICE, "mine@1")).read_text() == SOURCE
    path.unlink()
    assert shelf.reward_of(ALICE, "mine@1") == f"{path}:mine" and path.read_text() == SOURCE


def test_a_version_that_is_not_there_or_not_ones_own_is_refused_with_what_there_is(shelf):
    shelf.freeze(ALICE, "mine", SOURCE)
    with pytest.raises(ShelfError, match="no frozen reward mine@2. Frozen: mine@1"):
        shelf.reward_of(ALICE, "mine@2")
    with pytest.raises(ShelfError, match="none yet"):
        shelf.reward_of(BOB, "mine@1")
    assert shelf.reward_of(BOB, "accuracy(source='boxed')") == "accuracy(source='boxed')"


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


@pytest.mark.parametrize("name", ["", "../mine", "mi ne", "1mine", "mine@2", "class", "ｍｉｎｅ", "a" * 65])
def test_names_that_are_no_functions_name_are_refused(shelf, name):
    with pytest.raises(ShelfError, match="cannot name a frozen reward"):
        shelf.freeze(ALICE, name, SOURCE)


def test_a_run_keeps_its_own_copy_which_holds_when_the_original_is_gone(shelf, tmp_path):
    version = shelf.freeze(ALICE, "mine", SOURCE)
    config = RunConfig(rewards=(shelf.reward_of(ALICE, "mine@1"), "format"), eval_rewards=(shelf.reward_of(ALICE, "mine@1"),))
    kept = keep_reward_files(config, tmp_path / "run")
    copy = (tmp_path / "run" / "rewards" / "mine@1.py").resolve()
    assert kept.rewards == (f"{copy}:mine", "format") and kept.eval_rewards == (f"{copy}:mine",) and copy.read_text() == SOURCE
    shelf.file(version).unlink()
    assert keep_reward_files(config, tmp_path / "run") == kept and copy.read_text() == SOURCE
    plain = RunConfig()
    assert keep_reward_files(plain, tmp_path / "other") is plain and not (tmp_path / "other").exists()


def test_a_recorded_run_holds_the_reward_files_it_was_trained_with(make_trainer, tmp_path):
    import lab

    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    run = lab.record(make_trainer(rewards=(str(path),), max_steps=1), "mine", tmp_path / "runs")
    assert (run.folder / "rewards" / "mine.py").read_text() == SOURCE


def test_a_branch_holds_its_own_copy(make_trainer, tmp_path):
    import lab
    from lab.store import open_store
    from lab.training.branch import branch

    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    run = lab.record(make_trainer(rewards=(str(path),), max_steps=1), "mine", tmp_path / "runs")
    store = open_store(tmp_path / "runs")
    child = store.run(branch(store, run.run, changes={"max_steps": 3}))
    copy = tmp_path / "runs" / child.id / "rewards" / "mine.py"
    assert child.config["rewards"] == [str(copy.resolve())] and copy.read_text() == SOURCE
