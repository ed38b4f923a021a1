"""What cannot be read is refused in one sentence, whatever a path is made of, and by everything that takes a path."""

from __future__ import annotations

import doctest

import pytest

import lab
import lab.errors
from lab import ModelError, RewardError, RunConfig, cli
from lab.errors import Unreadable, read_text, shown_path
from lab.models.registry import resolve as resolve_model
from lab.rewards import resolve
from lab.rewards.completions import read_completions
from lab.tasks import TaskError, load_task

LONG = "a" * 5000


def test_what_the_docstrings_say_is_so():
    assert doctest.testmod(lab.errors).failed == 0


def test_a_text_file_may_begin_with_a_mark_and_end_its_lines_in_any_way(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\r\nb\rc\n\u2028".encode())
    assert read_text(path) == "a\nb\nc\n\u2028"


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Names in the current folder: a folder called as a file, and a file taken for a folder."""
    monkeypatch.chdir(tmp_path)
    for ending in ("jsonl", "csv", "py"):
        (tmp_path / f"folder.{ending}").mkdir()
    (tmp_path / "file").write_text("text")


@pytest.mark.parametrize(("name", "words"), [
    ("a\0b", r"'a\\x00b.*' cannot be a path: it holds a zero byte"), (LONG, "aaa…aaa.* cannot be read: File name too long"),
    ("folder", "folder.* cannot be read: Is a directory"), ("file/below", "file/below.* cannot be read: Not a directory"),
    ("nowhere", "There is no file nowhere")])
@pytest.mark.parametrize(("read", "ending", "error"), [
    (load_task, ".jsonl", TaskError), (load_task, ".csv", TaskError), (lambda name: read_completions(name), ".jsonl", Unreadable)])
def test_whatever_a_path_is_made_of_it_is_refused_in_a_sentence(there, name, words, read, ending, error):
    with pytest.raises(error, match=words) as caught:
        read(f"{name}{ending}")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["a\0b", LONG])
def test_models_rewards_checkpoints_and_runs_folders_refuse_odd_paths_too(there, name):
    for kind, read in ((ModelError, lambda: resolve_model(name)), (RewardError, lambda: resolve(f"{name}.py")),
                       (ModelError, lambda: lab.Trainer.load(name)), (Unreadable, lambda: lab.open_run("mine", name))):
        with pytest.raises(kind) as caught:
            read()
        assert str(caught.value).endswith(".") and "Errno" not in str(caught.value) and len(str(caught.value)) < 400


def test_the_command_line_says_what_is_wrong_with_a_path(there, capsys):
    assert cli.main(["train", "--config", "folder.py"]) == 1
    assert cli.main(["train", "--max-steps", "1", "--runs", "file"]) == 1
    assert cli.main(["rewards", "test", "accuracy", "--no-hostile", "--on", "folder.jsonl"]) == 1
    assert cli.main(["rewards", "test", "accuracy", "--no-hostile", "--csv", "folder.csv"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "grpo-lab: folder.py cannot be read: Is a directory.", "grpo-lab: file cannot be a folder for runs: File exists.",
        "grpo-lab rewards: folder.jsonl cannot be read: Is a directory.", "grpo-lab rewards: folder.csv cannot be written: Is a directory."]


def test_a_path_is_shown_as_one_line():
    assert shown_path("runs/a.jsonl") == "runs/a.jsonl" and shown_path("a\nb") == r"'a\nb'" and shown_path("") == "''"
    assert RunConfig(task="a\0.jsonl").task == "a\0.jsonl", "a config alone reads nothing"
