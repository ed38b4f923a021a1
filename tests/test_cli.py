"""The commands as a person types them, in real processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from lab import cli
from lab.config import RunConfig
from lab.storage.recorder import open_run


def grpo_lab(*arguments: str, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "lab.cli", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd,
                          encoding="utf-8")


def test_every_setting_is_a_flag_with_its_own_help():
    shown = " ".join(grpo_lab("train", "--help").stdout.replace("│", " ").split())
    for field in dataclasses.fields(RunConfig):
        assert f"--{field.name.replace('_', '-')}" in shown
        assert field.metadata["help"].split(". ")[0].split()[0] in shown


def test_train_writes_a_run_that_can_be_opened_and_says_where(tmp_path):
    settings = tmp_path / "small.toml"
    settings.write_text("max_steps = 9\nprompts_per_step = 2\nnum_generations = 3\n", encoding="utf-8")
    done = grpo_lab("train", "--preset", "first-run", "--config", str(settings), "--max-steps", "2", "--name", "mine",
                    "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    run = open_run("mine", tmp_path / "runs")
    assert str(run.folder) in done.stdout and "Ended after step 2" in done.stdout
    assert len(run.metrics) == 2 and len(run.completions) == 2 * 2 * 3
    # preset, then file, then flag: each overrides the one before
    assert (run.config["learning_rate"], run.config["num_generations"], run.config["max_steps"]) == (2e-3, 3, 2)


def test_a_reward_that_applies_to_nothing_is_shown_as_a_dash_and_ends_nothing(tmp_path, capsys):
    small = ["--max-steps", "1", "--num-generations", "2", "--prompts-per-step", "1", "--max-completion-length", "8"]
    # `code` gives None where the rows have no tests, as those of add2
    assert cli.main(["train", *small, "--rewards", "code", "--name", "none", "--runs", str(tmp_path)]) == 0
    assert "reward –" in capsys.readouterr().err
    assert open_run("none", tmp_path).status == "finished"


def test_a_run_that_needs_a_person_says_where_its_completions_wait(tmp_path, capsys):
    small = ["--max-steps", "1", "--num-generations", "2", "--prompts-per-step", "1", "--max-completion-length", "8"]
    assert cli.main(["train", *small, "--rewards", "by_hand", "--name", "asks", "--runs", str(tmp_path)]) == 1
    assert "Step 1 waits for scores given by hand. Its completions are saved in run asks" in capsys.readouterr().err
    assert open_run("asks", tmp_path).status == "stopped"


def test_a_prompt_without_room_for_an_answer_is_refused_in_a_sentence(tmp_path, capsys):
    rows = tmp_path / "long.jsonl"
    rows.write_text('{"prompt": "' + "word " * 2000 + '", "answer": "1"}', encoding="utf-8")  # the tiny model reads 512 tokens
    assert cli.main(["train", "--task", str(rows), "--max-steps", "1", "--runs", str(tmp_path)]) == 1
    assert "grpo-lab: The longest prompt has" in capsys.readouterr().err


@pytest.mark.parametrize(("toml", "words"), [
    ("learning_rat = 1e-3\n", "Unknown setting learning_rat. Did you mean learning_rate?"),
    ("[train]\nlearning_rate = 1e-3\n", "Unknown setting train"),
    ("learning_rate = \n", "is not TOML"),
])
def test_a_file_with_a_mistake_is_refused_in_a_sentence(toml, words, tmp_path, capsys):
    path = tmp_path / "settings.toml"
    path.write_text(toml, encoding="utf-8")
    assert cli.main(["train", "--config", str(path)]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), [
    (["train", "--config", "nowhere.toml"], "There is no file nowhere.toml"),
    (["train", "--preset", "frist-run"], "There is no preset 'frist-run'. Did you mean first-run?"),
    (["train", "--task", "ad2"], "There is no task 'ad2'. Did you mean add2?"),
    (["train", "--rewards", "acuracy"], "There is no built-in reward 'acuracy'. Did you mean accuracy?"),
    (["train", "--reward-weights", "nan", "1"], "finite numbers are needed"),
])
def test_bad_input_is_one_sentence_and_no_traceback(arguments, words, capsys):
    assert cli.main(arguments) == 1
    said = capsys.readouterr().err
    assert words in said and said.startswith("grpo-lab: ") and said.count("\n") == 1


def test_an_unknown_command_names_the_commands(capsys):
    assert cli.main(["trian"]) == 2
    assert "Did you mean train? Commands: train, " in capsys.readouterr().err


def test_where_no_folder_is_named_the_environments_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_LAB_RUNS", str(tmp_path / "mine"))
    small = ["--max-steps", "1", "--num-generations", "2", "--prompts-per-step", "1", "--max-completion-length", "4"]
    assert cli.main(["train", *small, "--name", "one"]) == 0
    assert open_run("one", tmp_path / "mine").status == "finished" and open_run("one").status == "finished"
    assert cli.main(["rewards", "test", "accuracy", "--no-hostile", "--on", "one"]) == 0 and "accuracy on one" in capsys.readouterr().out
    assert cli.OpenArguments().runs == tmp_path / "mine" and not (tmp_path / "runs").exists()


def test_doctor_tries_everything_and_finds_4_bit_gradients_right():
    done = grpo_lab("doctor")
    assert done.returncode == 0, done.stderr
    assert "check failed" not in done.stdout
    line = next(line for line in done.stdout.splitlines() if "4-bit (NF4)" in line)
    assert line.startswith("ok") and "gradient cosine" in line
    for name in ("python", "torch", "bfloat16 on CPU", "reward sandbox", "disk"):
        assert name in done.stdout


def test_models_lists_what_comes_with_the_lab():
    done = grpo_lab("models")
    assert done.returncode == 0 and "tiny" in done.stdout and "smollm2-135m" in done.stdout
