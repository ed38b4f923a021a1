"""The commands as a person types them, in real processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from lab import cli
from lab.config import RunConfig
from lab.storage.recorder import open_run, recording
from lab.store import open_store
from lab.trainer import Trainer


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
    assert done.stdout.count("Planned ") == 1, "what was measured is said once, when it is known"
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


@pytest.mark.parametrize(("command", "kinds"), [("rewards", ("list", "test")), ("data", ("show", "scan"))])
def test_the_help_of_a_command_with_kinds_says_what_each_does(command, kinds, capsys):
    for written, status in (([], 2), (["lst"], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, *written])
        said = capsys.readouterr()
        assert ended.value.code == status and all(kind in said.out + said.err for kind in kinds)
    assert "subcommands" in said.out


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


# -- resume

SMALL = ["--num-generations", "2", "--prompts-per-step", "1", "--max-completion-length", "8", "--reward-weights", "0.8", "0.2"]


def test_ctrl_c_saves_and_the_command_it_names_goes_on_to_the_same_steps_as_a_run_that_never_stopped(tmp_path):
    runs = tmp_path / "runs"
    training = subprocess.Popen([sys.executable, "-m", "lab.cli", "train", *SMALL, "--max-steps", "100000", "--save-steps", "100000",
                                 "--name", "mine", "--runs", str(runs)], stdout=subprocess.PIPE, text=True, encoding="utf-8",
                                # Tests that a shell runs in the background ignore Ctrl-C, and a child would inherit that.
                                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    store = open_store(runs)
    try:
        wait_for(lambda: (found := store.runs(name="mine")) and found[0].step >= 2)
        training.send_signal(signal.SIGINT)
        said, _ = training.communicate(timeout=120)
    finally:
        training.kill()
    (stopped,) = store.runs(name="mine")
    assert training.returncode == 0 and stopped.status == "stopped" and stopped.step >= 2
    named = f"grpo-lab resume {stopped.id} --runs {runs}"
    assert f"`{named}` goes on from there." in said
    done = grpo_lab(*named.split()[1:], "--more", "2")
    assert done.returncode == 0 and f"Run mine goes on after step {stopped.step}" in done.stdout, done.stderr
    (resumed,) = store.runs(name="mine")
    assert (resumed.status, resumed.attempt, resumed.step) == ("finished", 2, stopped.step + 2)
    plain = Trainer(RunConfig.from_dict(resumed.config))
    for step in plain:
        repeated = {**store.step(resumed.id, step.step).metrics, "step_time": 0}
        assert repeated == pytest.approx({**step.metrics, "step_time": 0}, rel=0, abs=0, nan_ok=True), step.step


def test_a_run_that_broke_off_goes_on_from_its_checkpoint_and_repeats_the_changes_made_after_it(tmp_path, capsys):
    trainer = Trainer(RunConfig(num_generations=2, prompts_per_step=1, max_completion_length=8, max_steps=5, save_steps=2))
    steps = recording(trainer, "broken off", tmp_path)
    for _ in range(3):
        next(steps)
    store = open_store(tmp_path)
    (run,) = store.runs()
    assert cli.main(["resume", "broken off", "--runs", str(tmp_path)]) == 1
    assert f"Run 'broken off' is still training: process {os.getpid()} has it." in capsys.readouterr().err
    store.add_event(run.id, 4, "change", {"learning_rate": 5e-4})  # as the engine writes what the page asks for
    store.set_info(run.id, {})  # the process that had it is gone
    assert cli.main(["resume", "broken off", "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Run broken off goes on after step 2; steps: 5" in said
    done = store.run(run.id)
    assert (done.status, done.attempt, done.step) == ("finished", 2, 5)
    rates = [store.step(run.id, n).metrics["learning_rate"] for n in (3, 4, 5)]
    assert rates == [trainer.config.learning_rate, 5e-4, 5e-4]
    assert cli.main(["resume", "broken off", "--runs", str(tmp_path)]) == 1
    assert f"has done its 5 steps. `grpo-lab resume {run.id} --more 50` adds some." in capsys.readouterr().err
    assert cli.main(["resume", "broken of", "--runs", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"grpo-lab: There is no run 'broken of' in {tmp_path}. Runs there: broken off.\n"
    steps.close()


def test_a_run_that_fell_before_its_first_checkpoint_begins_again(tmp_path, capsys):
    store = open_store(tmp_path)
    config = RunConfig(num_generations=2, prompts_per_step=1, max_completion_length=8, max_steps=1)
    run = store.create_run(config.to_dict(), name="fell", status="training", info={"driver": {"pid": os.getpid(), "since": 0}})
    assert cli.main(["resume", run, "--runs", str(tmp_path)]) == 0
    assert "Run fell goes on after step 0" in capsys.readouterr().out
    assert store.run(run).status == "finished" and store.run(run).step == 1


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"Waited {seconds} s in vain."
        time.sleep(0.05)
    return found
