"""The bench: completions scored as training would, rows that fail named, the hostile set, sources of completions, the CLI."""

from __future__ import annotations

import json

import pytest

from lab.cli import main
from lab.records import Completion, Group
from lab.rewards.bench import bench
from lab.rewards.completions import groups_of, newest_groups, read_completions, typed_group
from lab.rewards.resolve import RewardNotFound
from lab.rewards.scoring import group_totals
from lab.store import open_store
from tests.browser.made_runs import CONFIG, hand_worked_group, write_run

CLOSENESS = '''import re


def closeness(completions, answer, **kwargs):
    """Less the further off."""
    scores = []
    for completion, right in zip(completions, answer):
        found = re.findall(r"<answer>(.*?)</answer>", completion[0]["content"])
        scores.append(max(0.0, 1.0 - abs(int(found[-1]) - int(right)) / 10) if found else 0.0)
    return scores
'''


@pytest.fixture
def closeness(tmp_path):
    path = tmp_path / "closeness.py"
    path.write_text(CLOSENESS)
    return str(path)


def group_of(*texts, answer="82"):
    return typed_group("What is 69 + 13?", texts, {"answer": answer})


def test_a_group_is_scored_as_training_scores_it():
    group = hand_worked_group()  # rewards 0.2, 1, 0, 0.8, 0.2, 0, 1, 0: mean 0.4, sample std √(1.44 / 7)
    result = bench(["accuracy", "format"], [group], weights=[0.8, 0.2])
    assert result.totals[0] == pytest.approx([0.2, 1, 0, 0.8, 0.2, 0, 1, 0])
    std = (1.44 / 7) ** 0.5
    assert result.advantages[0] == pytest.approx([(r - 0.4) / (std + 1e-4) for r in result.totals[0]])
    assert result.groups[0] is not group and group.completions[0].rewards == {"accuracy": 0.0, "format": 1.0}, "stored ones stay"
    table = result.completions
    assert list(table.columns[:5]) == ["group", "prompt", "completion", "accuracy", "format"] and len(table) == 8
    assert list(table["rank"]) == [4, 1, 6, 3, 4, 6, 1, 6]
    summary = result.summary
    assert list(summary.index) == ["accuracy", "format", "reward"] and summary["share"].sum() == pytest.approx(1)
    assert summary.loc["reward", "mean"] == pytest.approx(0.4)


def test_rows_that_fail_are_named_with_their_line_and_the_others_are_scored(closeness):
    texts = ["<answer>82</answer>", "<answer>eight</answer>", "<answer>81</answer>", "<answer>nine</answer>"]
    result = bench(closeness, [group_of(*texts)], hostile=False)
    assert result.columns[0].values == [1.0, None, 0.9, None]
    assert [(f.row, f.line) for f in result.columns[0].failures] == [(1, 9), (3, 9)]
    assert "ValueError: invalid literal for int() with base 10: 'eight' at line 9 of closeness.py" in result.columns[0].failures[0].message
    assert result.totals[0] == [1.0, None, 0.9, None], "a failed row has no total, also not a filled-in one"
    assert list(result.failures["line"]) == [9, 9] and result.summary.loc["closeness", "failed"] == 2


def test_a_failed_row_counts_again_when_its_function_has_no_weight(closeness):
    result = bench([closeness, "accuracy"], [group_of("<answer>x</answer>", "<answer>82</answer>")], weights=[0, 1], hostile=False)
    assert result.totals[0] == [0.0, 1.0]


def test_functions_in_python_lose_only_the_rows_on_which_they_raise():
    def fussy(completions, **kwargs):
        return [1 / (len(c[0]["content"]) - 3) for c in completions]

    result = bench(fussy, [group_of("four", "abc", "fives")], hostile=False)
    assert result.columns[0].values == [1.0, None, 0.5] and result.columns[0].failures[0].row == 1
    assert "ZeroDivisionError" in result.columns[0].failures[0].message and result.columns[0].failures[0].line


def test_many_failing_rows_are_all_found(closeness):
    texts = [f"<answer>{'x' if i % 2 else 82}</answer>" for i in range(60)]
    result = bench(closeness, [group_of(*texts)], hostile=False)
    assert [f.row for f in result.columns[0].failures] == list(range(1, 60, 2)) and result.columns[0].values.count(1.0) == 30


def test_a_function_that_fails_everywhere_says_so_once(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def broken(completions, **kwargs):\n    return [1 / 0 for _ in completions]\n")
    column = bench(str(path), [group_of("a", "b", "c")], hostile=False).columns[0]
    assert [(f.row, f.line) for f in column.failures] == [(None, 2)] and column.values == [None] * 3


def test_a_function_that_works_on_one_alone_and_not_on_all_together_is_not_scored_one_by_one(tmp_path):
    """The commonest slip, one score for the whole batch. A training would stop at it, so the bench must not praise it."""
    path = tmp_path / "short.py"
    path.write_text("def short(completions, **kwargs):\n    return [1.0]\n")
    column = bench(str(path), [group_of("a", "b", "c")], hostile=False).columns[0]
    (failure,) = column.failures
    assert failure.row is None and "1 scores for 3 completions" in failure.message and column.values == [None] * 3


def test_an_endless_loop_is_stopped_once_and_its_line_and_row_are_named(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text("def endless(completions, **kwargs):\n    for c in completions:\n        while 'x' in c[0]['content']: pass\n")
    (failure,) = bench(str(path), [group_of("a", "x")], hostile=False).columns[0].failures
    assert failure.row is None and failure.line in (3, 4) and "at row 1" in failure.message and "stopped" in failure.message


def test_a_missing_column_is_named_and_nothing_is_guessed(tmp_path):
    path = tmp_path / "leveled.py"
    path.write_text("def leveled(completions, level, **kwargs):\n    return [float(x) for x in level]\n")
    (failure,) = bench(str(path), [group_of("a")], hostile=False).columns[0].failures
    assert "'level'" in failure.message and "answer" in failure.message
    path.write_text("def leveled(completions, **kwargs):\n    return [float(x) for x in kwargs['level']]\n")
    (failure,) = bench(str(path), [group_of("a")], hostile=False).columns[0].failures
    assert "stored without a column level; there is answer" in failure.message


def test_the_hostile_set_shows_who_pays_for_what(closeness):
    result = bench([closeness, "accuracy"], [hand_worked_group()], weights=[0.3, 0.7])
    table = result.hostile.set_index("kind")
    assert result.honest_total == pytest.approx(1.0)
    assert table.loc["same answer 50 times", "paid_by"] == "closeness" and table.loc["same answer 50 times", "reward"] == pytest.approx(0.3)
    assert not table.loc["empty text", "earns"] and table.loc["underscore in the number", "paid_by"] == "closeness"
    broken = next(row for row in result.hostile_rows if row.attempt.kind == "A or B or C")
    assert broken.total is None and not broken.earns  # int("81 or 82 or 83") raises: in a training this would stop the run


def test_two_rewards_are_compared_on_the_same_completions(closeness):
    group = hand_worked_group()
    mine, other = bench(closeness, [group]), bench("accuracy", [group])
    table = mine.against(other)
    assert table.loc["mean reward", "other"] == pytest.approx(3 / 8) and table.loc["ranks changed", "this"] == mine.rank_changes(other) > 0
    assert mine.rank_changes(mine) == 0


def test_what_a_function_logs_and_leaves_open_is_kept():
    def logs(completions, log_extra, log_metric, **kwargs):
        log_extra("length", [len(c[0]["content"]) for c in completions])
        log_metric("seen", len(completions))
        return [None, 1.0]

    column = bench(logs, [group_of("ab", "c")], hostile=False).columns[0]
    assert column.extra == {"length": [2, 1]} and column.metrics == {"seen": 2.0} and column.values == [None, 1.0]
    assert group_totals([[None], [1.0]], [1.0])[1] == 1.0


def test_steps_and_groups_of_any_size_are_taken_whole(tmp_path):
    store = open_store(tmp_path)
    run = write_run(store, steps=3)
    assert [len(newest_groups(store, run, count)) for count in (1, 64, 128, 10_000)] == [1, 8, 16, 24]
    assert len(newest_groups(store, run, 128, step=1)) == 8 and newest_groups(store, run, 128, step=0) == []
    empty = store.create_run(CONFIG.to_dict(), name="empty")
    assert newest_groups(store, empty) == []


def test_completions_come_from_texts_groups_and_jsonl(tmp_path):
    path = tmp_path / "some.jsonl"
    rows = [{"prompt": "1 + 1", "completion": "2", "answer": "2"}, {"prompt": "1 + 1", "completion": "3", "answer": "2"},
            {"prompt": [{"role": "user", "content": "2 + 2"}], "completion": [{"role": "assistant", "content": "4"}], "answer": "4"}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    groups = groups_of(path)
    found = [(g.prompt, [c.text for c in g.completions], g.row["answer"]) for g in groups]
    assert found == [("1 + 1", ["2", "3"], "2"), ("2 + 2", ["4"], "4")]
    assert [c.text for c in groups_of(["a", "b"])[0].completions] == ["a", "b"] and groups_of([groups[0]]) == [groups[0]]
    with pytest.raises(ValueError, match="groups, an open run, the path"):
        groups_of([1, 2])


def test_lines_of_a_jsonl_end_at_newlines_and_at_nothing_else(tmp_path):
    path = tmp_path / "separators.jsonl"
    row = {"prompt": "p", "completion": "a\u2028b\x85c"}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    assert read_completions(path)[0].completions[0].text == "a\u2028b\x85c"


@pytest.mark.parametrize(("content", "words"), [
    (b"", "is empty"), (b"\xff\xfe", "not UTF-8"), (b"{", "line 1: not JSON"), (b'{"prompt": "a"}', "line 1: a line needs"),
    (b'[1]', "line 1: a line needs"), (b'{"prompt": "a", "completion": "b"}\n{"prompt": 1, "completion": "b"}', "line 2"),
    (b"[" * 100_000, "line 1: not JSON")])
def test_a_file_of_completions_that_cannot_be_read_says_where(tmp_path, content, words):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_completions(path)


def test_what_cannot_be_a_reward_is_refused():
    with pytest.raises(RewardNotFound):
        bench("no_such", [group_of("a")])
    with pytest.raises(ValueError, match="2 weights for 1"):
        bench("accuracy", [group_of("a")], weights=[1, 2])


def test_lengths_are_tokens_where_they_are_known():
    group = Group(0, "p", [], {"answer": "1"}, [Completion(0, "a b", [5] * 7, True), Completion(1, "c d e", [], True)])
    from lab.rewards.bench import length_of

    assert [length_of(c) for c in group.completions] == [7, 3]


# -- grpo-lab rewards


def test_the_command_prints_table_failures_and_hostile_set(tmp_path, closeness, capsys):
    write_run(open_store(tmp_path / "runs"), steps=2, name="my run")
    status = main(["rewards", "test", closeness, "accuracy", "--weights", "0.3", "0.7", "--on", "my run", "--runs", str(tmp_path / "runs"),
                   "--csv", str(tmp_path / "out.csv"), "--against", "accuracy"])
    out = capsys.readouterr().out
    assert status == 0 and "128 completions in 16 groups" in out and "Hostile set:" in out and "same answer 50 times" in out
    assert "against accuracy" in out and "ranks changed" in out and len((tmp_path / "out.csv").read_text().splitlines()) > 128


def test_the_command_works_on_a_jsonl_and_on_the_recorded_run_and_tells_failures(tmp_path, closeness, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["rewards", "test", "accuracy", "--no-hostile", "--count", "16"]) == 0 and "First run" in capsys.readouterr().out
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"prompt": "69 + 13", "completion": "<answer>x</answer>", "answer": "82"}))
    assert main(["rewards", "test", closeness, "--on", str(path)]) == 1
    assert "closeness, line 9, every row: ValueError" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists(), "looking creates nothing"


def test_a_runs_folder_without_completions_yet_falls_back_to_the_recorded_run(tmp_path, capsys):
    open_store(tmp_path / "runs").create_run({}, name="waits")
    assert main(["rewards", "test", "accuracy", "--no-hostile", "--count", "16", "--runs", str(tmp_path / "runs")]) == 0
    assert "First run" in capsys.readouterr().out
    assert main(["rewards", "test", "accuracy", "--on", "waits", "--runs", str(tmp_path / "runs")]) == 1  # asked for by name: refused


def test_the_command_lists_and_refuses_in_sentences(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["rewards", "list"]) == 0 and "accuracy" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["rewards"])
    assert "Expected one of {list, test}" in capsys.readouterr().err
    assert main(["rewards", "test", "accuracy", "--on", "nothing"]) == 1
    assert main(["rewards", "test", "missing.py"]) == 1
    assert main(["rewards", "test"]) == 1
    assert "There is no reward file missing.py" in capsys.readouterr().err


def test_a_group_is_compared_under_every_advantage_rule(tmp_path, capsys):
    path = tmp_path / "four.jsonl"
    rows = [{"prompt": "69 + 13", "completion": f"<answer>{answer}</answer>", "answer": "82"} for answer in (82, 82, 82, 1)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["rewards", "test", "accuracy", "--on", str(path), "--no-hostile", "--every-rule"]) == 0
    table = capsys.readouterr().out.partition("Every advantage rule on '69 + 13':")[2].strip().splitlines()
    head, right, wrong = table[0].split(), table[1].split(), table[4].split()
    assert head[3:] == ["grpo", "dr_grpo", "rloo", "maxrl", "opo", "rank"]
    # mean 0.75, std 0.5: ±0.25 and 0.75 over it; the others' means 2/3 and 1; over the mean 0.75; equal lengths; share beaten − lost to
    assert right[3:] == ["+0.50", "+0.25", "+0.33", "+0.33", "+0.25", "+0.33"]
    assert wrong[3:] == ["−1.50", "−0.75", "−1.00", "−1.00", "−0.75", "−1.00"]
