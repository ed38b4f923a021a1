"""`grpo-lab data` as a person types it: prompts as the model reads them, and those that can teach it."""

from __future__ import annotations

import json

import pytest

from lab.cli import main
from lab.tasks import load_task


@pytest.fixture
def sums(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"Compute {n} + 1.", "answer": str(n + 1)} for n in (20, 31, 42)] + [{"prompt": "Compute 2 + 2.", "answer": "never"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_are_shown_as_the_model_reads_them(sums, policy, capsys):
    assert main(["data", "show", str(sums), "--rows", "9", "--system-prompt", "Be brief."]) == 0
    said = capsys.readouterr().out
    assert "sums: 4 rows of your own. Rewards that suit it: accuracy, format." in said and 'Row 1: answer "' in said
    for row in load_task(sums, 42).rows(0, 4):
        assert policy.tokenizer.decode(policy.prompt_ids(row["prompt"], "Be brief.")) in said
    assert "Row 5" not in said, "a file is not gone through twice"


def test_a_model_that_is_not_here_shows_the_prompt_and_says_so(sums, capsys):
    assert main(["data", "show", str(sums), "--rows", "1", "--model", "some/model-nobody-has"]) == 0
    assert "Compute" in (said := capsys.readouterr().out) and "is not on this machine yet" in said


def test_a_scan_writes_the_prompts_that_can_teach_for_train(sums, tmp_path, capsys):
    out = tmp_path / "teachable.jsonl"
    settings = ["--samples", "16", "--max-completion-length", "48"]
    assert main(["data", "scan", str(sums), *settings, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert " 0/16 " in said and "4 of 4 prompts could be judged" in said and "at G = 16" in said and f"train --task {out}" in said
    kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert kept and all(0 < row["pass_rate"] < 1 and row["answer"] != "never" for row in kept)  # no sample can say "never"
    small = ["--max-steps", "1", "--num-generations", "2", "--prompts-per-step", "1", "--max-completion-length", "4"]
    assert main(["train", "--task", str(out), *small, "--name", "kept", "--runs", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["data", "scan", str(sums), *settings, "--out", str(out)]) == 1, "nothing is written over"
    assert capsys.readouterr().err == f"grpo-lab: {out} is there already: name another file.\n"
    assert main(["data", "scan", str(sums), *settings, "--low", "0", "--high", "0", "--out", str(tmp_path / "hard.jsonl")]) == 0
    assert "never" in (tmp_path / "hard.jsonl").read_text(encoding="utf-8")


def test_where_no_reward_applies_a_scan_says_that_nothing_could_be_judged(sums, capsys):
    assert main(["data", "scan", str(sums), "--samples", "2", "--max-completion-length", "4", "--rewards", "code"]) == 0
    assert "0 of 4 prompts could be judged" in (said := capsys.readouterr().out) and "    –" in said


@pytest.mark.parametrize(("arguments", "status", "words"), [
    (["show", "ad2"], 1, "Did you mean add2?"), (["show", "nowhere.jsonl"], 1, "There is no file nowhere.jsonl."),
    (["scan", "add2", "--rewards", "acuracy"], 1, "Did you mean accuracy?"),
    (["scan", "add2", "--out", "no/such/folder.jsonl"], 1, "There is no folder no/such to write folder.jsonl to.")])
def test_bad_input_is_one_sentence(arguments, status, words, capsys):
    assert main(["data", *arguments]) == status
    assert words in capsys.readouterr().err
