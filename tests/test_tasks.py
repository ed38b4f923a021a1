"""Prompt sources: the same rows for the same seed and position, nothing held out among them, bad input named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lab.tasks import BUILTIN_TASKS, TaskError, load_task, prompt_text, task_table
from lab.tasks.typed import typed_table


@pytest.mark.parametrize("name", [*BUILTIN_TASKS, "add2+sub2", "arithmetic"])
def test_rows_depend_on_seed_and_position_only(name):
    whole = load_task(name, 3).rows(0, 40)
    later = load_task(name, 3).rows(17, 5)
    assert later == whole[17:22]
    assert load_task(name, 4).rows(0, 40) != whole


def test_rows_are_the_same_in_another_process():
    code = ("from lab.tasks import load_task; import json;"
            "print(json.dumps([load_task('add2', 1).rows(0, 3), load_task(['a', 'b', 'c'], 1).rows(0, 6)]))")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}, cwd=".")
    assert json.loads(printed.stdout) == [load_task("add2", 1).rows(0, 3), load_task(["a", "b", "c"], 1).rows(0, 6)]


@pytest.mark.parametrize("name", [*BUILTIN_TASKS, "add2+sub2"])
def test_held_out_prompts_never_occur_in_training(name):
    task = load_task(name, 0)
    held_out = task.held_out(64)
    prompts = [row["prompt"] for row in held_out]
    assert prompts and len(set(prompts)) == len(prompts)
    assert held_out == load_task(name, 9).held_out(64)
    assert not set(prompts) & {row["prompt"] for row in task.rows(0, 2000)}


@pytest.mark.parametrize("name, right", [
    ("add2", lambda a, b: a + b), ("sub2", lambda a, b: a - b), ("digit_sum", lambda a, b: a + b)])
def test_answers_are_right(name, right):
    import re

    for row in load_task(name, 5).rows(0, 50):
        assert right(*map(int, re.findall(r"\d+", row["prompt"]))) == int(row["answer"])


def test_a_mixture_takes_turns():
    rows = load_task("add2+sub2+parity", 1).rows(0, 6)
    assert [row["task"] for row in rows] == ["add2", "sub2", "parity"] * 2
    assert rows[4] == load_task("sub2", 1).rows(1, 1)[0]


def test_a_list_is_gone_through_once_per_epoch_in_a_new_order():
    prompts = [f"prompt {i}" for i in range(10)]
    task = load_task(prompts, 2)
    epochs = [[row["prompt"] for row in task.rows(10 * e, 10)] for e in range(3)]
    assert all(sorted(epoch) == prompts for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs[0] != prompts
    assert [row["prompt"] for row in task.rows(5, 10)] == epochs[0][5:] + epochs[1][:5]


def test_rows_keep_their_columns_and_cannot_be_changed_from_outside():
    task = load_task([{"prompt": "p", "answer": 4, "level": "hard"}])
    task.rows(0, 1)[0]["answer"] = 5
    assert task.rows(0, 1) == [{"prompt": "p", "answer": 4, "level": "hard"}]


def test_messages_are_prompts_too():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hello?"}]
    task = load_task([{"prompt": messages}])
    assert task.rows(0, 1)[0]["prompt"] == messages and task.examples == ("Hello?",)
    assert prompt_text("plain") == "plain"


def test_a_share_can_be_held_out_and_does_not_depend_on_order():
    prompts = [f"prompt {i}" for i in range(400)]
    task, turned = load_task(prompts, 0, held_out_share=0.25), load_task(prompts[::-1], 1, held_out_share=0.25)
    held_out = {row["prompt"] for row in task.held_out(400)}
    assert held_out == {row["prompt"] for row in turned.held_out(400)}
    assert 60 < len(held_out) < 140  # 100 expected, standard deviation 8.7
    assert task.size == 400 - len(held_out)
    assert not held_out & {row["prompt"] for row in task.rows(0, 800)}


def test_a_jsonl_file_is_read_with_blank_lines_skipped(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b", "answer": "2"}\r\n', encoding="utf-8")
    task = load_task(str(path))
    assert task.name == "mine" and task.size == 2 and task.rewards == ("accuracy", "format")
    assert sorted(row["answer"] for row in task.rows(0, 2)) == ["1", "2"]


@pytest.mark.parametrize("content, said", [
    ("", "is empty"), ("\n \n", "is empty"),
    ('{"prompt": "a"}\n{"prompt": }\n', "line 2: not valid JSON"),
    ('{"prompt": "a"}\n\n[1]\n', "line 3: a list; expected an object with a prompt"),
    ('{"question": "a", "answer": 1}\n', "line 1: there is no column prompt (columns: question, answer)"),
    ('{"prompt": ""}\n', "line 1: the prompt is empty"), ('{"prompt": 5}\n', "line 1: the prompt is empty or not text"),
    ('{"prompt": [{"role": "system", "content": "x"}]}\n', "line 1: the prompt is empty"),
    ("[" * 100_000 + "\n", "line 1: not valid JSON"),
    (b"\xff\xfe{", "not UTF-8"),
])
def test_a_bad_file_is_refused_with_its_line(tmp_path, content, said):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskError) as caught:
        load_task(path)
    assert said in str(caught.value) and "bad.jsonl" in str(caught.value)


@pytest.mark.parametrize("task, said", [
    ("nope", "no task 'nope'. Built-in: add2"), ("add2+nope", "no task 'nope'"), ([], "no rows"), (7, "not int"),
    ([{"q": 1}], "Row 1: there is no column prompt"), (["a", ""], "Row 2: the prompt is empty"), ("no/such.jsonl", "There is no file"),
])
def test_a_bad_task_is_refused_in_a_sentence(task, said):
    with pytest.raises(TaskError) as caught:
        load_task(task)
    assert said in str(caught.value)


def test_typed_prompts_end_at_line_ends_and_at_nothing_else():
    # vertical tab, form feed, file separator, next line, line separator: all of them text inside a prompt
    inside = "a\x0bb\x0cc\x1cd\x85e\u2028f"
    assert typed_table(f"{inside} => 1\r\ntwo => 2\rthree => 3\n").rows == [
        {"prompt": inside, "answer": "1"}, {"prompt": "two", "answer": "2"}, {"prompt": "three", "answer": "3"}]


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_a_file_of_rows_may_have_any_line_end_and_a_byte_order_mark(tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    path.write_bytes('\ufeff{"prompt": "a\u2028b"}\r{"prompt": "c"}\r\n{"prompt": "d"}\n'.encode())
    assert {row["prompt"] for row in load_task(path).rows(0, 3)} == {"a\u2028b", "c", "d"}


def test_everything_held_out_leaves_nothing_to_train_on():
    with pytest.raises(TaskError, match="Holding out 100%"):
        load_task(["a", "b"], held_out_share=1.0)


@pytest.mark.parametrize("name", ["exam_en", "exam_ms"])
def test_examination_questions_have_one_right_letter_and_no_two_equal_choices(name):
    from lab.tasks.exam import questions

    rows = questions(name)
    assert len(rows) >= 20 and len({row["question"] for row in rows}) == len(rows)
    for row in rows:
        assert len(set(row["choices"])) == 4 and row["answer"] in "ABCD" and row["subject"]
        assert f"{row['answer']}. {row['choices']['ABCD'.index(row['answer'])]}" in row["prompt"]
    letters = [row["answer"] for row in rows]
    assert all(letters.count(letter) >= 5 for letter in "ABCD")  # always answering the same letter is no way to be right


def test_an_examination_is_scored_by_its_letter():
    from lab.rewards import resolve

    task = load_task("exam_ms")
    row = next(row for row in task.rows(0, task.size) if "ibu negara" in row["prompt"])
    assert row["answer"] == "B" and row["prompt"].endswith("Jawab dengan satu huruf.")
    reward = resolve(task.rewards)[0].function
    assert reward(completions=["Jawapan: B", "C", "(B)"], answer=["B"] * 3) == [1.0, 0.0, 1.0]


def test_csv_and_parquet_files_are_tasks_too(tmp_path):
    import pandas

    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "level": "easy"} for n in range(4)]
    pandas.DataFrame(rows).to_parquet(tmp_path / "sums.parquet")
    pandas.DataFrame(rows).to_csv(tmp_path / "sums.csv", index=False)
    for path in (tmp_path / "sums.csv", str(tmp_path / "sums.parquet")):
        task = load_task(path)
        assert task.name == "sums" and sorted(task.rows(0, 4), key=lambda row: row["prompt"]) == rows
    (tmp_path / "other.csv").write_text("question\nWhy?\n")
    with pytest.raises(TaskError, match="other.csv, row 1: there is no column prompt"):
        load_task(tmp_path / "other.csv")


def test_rows_marked_as_held_out_are_never_trained_on():
    rows = [{"prompt": f"p{n}", "held_out": n % 3 == 0} for n in range(12)]
    task = load_task(rows)
    assert task.size == 8 and [row["prompt"] for row in task.held_out()] == ["p0", "p3", "p6", "p9"]
    assert not {row["prompt"] for row in task.rows(0, 40)} & {"p0", "p3", "p6", "p9"}


def test_every_builtin_says_what_it_is_and_names_rewards_that_exist():
    from lab.rewards import resolve

    for entry in task_table():
        assert entry["title"] and entry["note"].endswith(".") and len(entry["examples"]) >= 2, entry["name"]
        resolve(entry["rewards"])
