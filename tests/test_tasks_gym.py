"""reasoning-gym's tasks: drawn the same every time, right answers full marks, nonsense none, and no answer runs as code."""

from __future__ import annotations

import json

import pytest

from lab.tasks import TaskError, gym, load_task

pytest.importorskip("reasoning_gym", reason="the extra gym is not installed: some of its packages are built with a C compiler")


@pytest.fixture(scope="module")
def rows():
    return [row for name in gym.VETTED for row in (*load_task(gym.PREFIX + name, 3).rows(0, 3), *gym.held_out_rows(name, 1))]


@pytest.fixture(scope="module")
def marks(rows):
    """marks(answers, **parameters): what gym_score gives to these answers, one for each row."""
    from lab.rewards import resolve

    functions = {}

    def ask(answers, call="gym_score"):
        function = functions.setdefault(call, resolve(call)[0].function)
        columns = {name: [row[name] for row in rows] for name in ("task", "answer", "metadata")}
        return function(completions=[f"<answer>{answer}</answer>" for answer in answers], **columns)

    return ask


def test_between_20_and_30_tasks_are_offered():
    assert 20 <= len(gym.VETTED) <= 30


def test_its_own_answer_gets_full_marks_also_after_a_file(rows, marks):
    assert json.loads(json.dumps(rows)) == rows
    wrong = [row["task"] for row, mark in zip(rows, marks([row["answer"] for row in rows]), strict=True) if mark != 1.0]
    assert wrong == []


@pytest.mark.parametrize("nonsense", ["banana", "None", "True or False or 7 or A", "__import__('os').system('touch /tmp/lab-gym-ran')",
                                      "().__class__", "x" * 5000])
def test_nonsense_gets_nothing(rows, marks, nonsense, tmp_path):
    given = [row["task"] for row, mark in zip(rows, marks([nonsense] * len(rows)), strict=True) if mark != 0.0]
    assert given == []
    from pathlib import Path

    assert not Path("/tmp/lab-gym-ran").exists()


def test_more_behind_the_right_answer_costs_the_marks(rows, marks):
    given = [row["task"] for row, mark in zip(rows, marks([f"{row['answer']} or 7" for row in rows]), strict=True) if mark != 0.0]
    assert given == []


def test_partial_marks_are_the_scorers_own(rows, marks):
    partial = marks([f"{row['answer']} or 7" for row in rows], "gym_score(partial=True)")
    assert any(0 < mark < 1 for mark in partial) and all(0 <= mark <= 1 for mark in partial)


def test_a_row_of_another_task_has_no_marks():
    from lab.rewards import resolve

    function = resolve("gym_score")[0].function
    assert function(completions=["<answer>5</answer>"], task=["add2"], answer=["5"], metadata=[None]) == [None]


def test_rows_depend_on_seed_and_position_only_and_held_out_ones_never_occur():
    whole = load_task("gym/chain_sum", 3).rows(0, 60)
    assert load_task("gym/chain_sum", 3).rows(20, 5) == whole[20:25] and load_task("gym/chain_sum", 4).rows(0, 5) != whole[:5]
    held_out = load_task("gym/chain_sum", 9).held_out(16)
    assert len({row["prompt"] for row in held_out}) == 16 and held_out == load_task("gym/chain_sum", 1).held_out(16)
    assert not {row["prompt"] for row in held_out} & {row["prompt"] for row in whole}


def test_dangerous_and_wrong_tasks_are_not_offered():
    for name in ("countdown", "puzzle24", "game_of_life_halting", "polynomial_multiplication", "spell_backward", "no_such"):
        with pytest.raises(TaskError, match=f"There is no task 'gym/{name}' among the"):
            load_task(f"gym/{name}")


def test_tasks_can_be_mixed_with_the_labs_own():
    rows = load_task("add2+gym/gcd", 1).rows(0, 4)
    assert [row["task"] for row in rows] == ["add2", "gym/gcd"] * 2


def test_the_page_draws_rows_without_loading_the_package(tmp_path):
    import subprocess
    import sys

    code = ("import sys; from lab.tasks.read_apart import drawn_apart; from lab.tasks import load_task; load_task('gym/gcd')\n"
            "rows, held_out = drawn_apart('gym/gcd', 8); print(len(rows), len(held_out), 'reasoning_gym' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["8", "1", "False"]
