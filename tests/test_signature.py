"""Reading a reward without running it."""

from __future__ import annotations

import pytest

from lab.rewards.signature import MAX_SOURCE, check_source

GOOD = "def good(completions, answer, **kwargs):\n    return [1.0 for _ in completions]\n"


def errors(source, columns=("answer",)):
    return [(p.line, p.message) for p in check_source(source, columns).problems if p.severity == "error"]


def test_a_good_source_has_a_name_and_no_problem():
    check = check_source(GOOD, ["answer"])
    assert check.ok and check.main.name == "good" and check.problems == [] and check.main.required == ["completions", "answer"]


def test_a_syntax_error_has_its_line_and_column():
    (problem,) = check_source("def f(completions, **kwargs):\n    return [1.0 for _ in completions\n").problems
    assert problem.line == 2 and problem.column and "never closed" in problem.message


def test_a_column_that_was_not_stored_is_named():
    source = "def f(completions, level, answer, **kwargs):\n    return [1.0] * len(completions)\n"
    assert errors(source) == [(1, "f needs the column level, which was not stored with these completions; stored are answer.")]
    assert errors(source, None) == []  # nothing is known of the columns: nothing is said
    assert "only the prompts" in errors(source, [])[0][1]


def test_a_column_with_a_default_is_not_missed():
    assert errors("def f(completions, level=None, *, depth=2, **kwargs):\n    return [1.0] * len(completions)\n") == []


@pytest.mark.parametrize(("source", "words"), [
    ("", "nothing here yet"),
    ("x = 1\n", "No reward function yet"),
    ("def f(text):\n    return 1\n", "f does not take `completions`"),
    ("def _hidden(completions):\n    return [1]\n", "No reward function yet"),
    ("def f(completions, /, **kwargs):\n    return [1]\n", "by position only"),
    ("def f(completions, **kwargs):\n    x = 1\n", "returns nothing"),
    ("import torch\ndef f(completions, **kwargs):\n    return [1]\n", "torch is not available"),
    ("from torch import nn\ndef f(completions, **kwargs):\n    return [1]\n", "torch is not available"),
    ("def f(completions, **kwargs):\n    return [" + "-" * 50_000 + "1]\n", "cannot be read"),
    ("x" * (MAX_SOURCE + 1), "at most"),
    ("def f(completions):\n    return '\0'", "null bytes"),
])
def test_what_cannot_be_a_reward_is_said_in_a_sentence(source, words):
    found = errors(source)
    assert any(words in message for _, message in found), found


def test_without_kwargs_it_runs_here_and_trl_would_refuse_it():
    check = check_source("def f(completions):\n    return [1.0] * len(completions)\n", [])
    assert check.ok and "TRL" in check.problems[0].message and check.problems[0].severity == "note"


def test_helpers_above_and_async_functions_are_understood():
    source = "def helper(completions):\n    return 1\n\n\nasync def main(completions: list[str], **kwargs):\n    return [1]\n"
    check = check_source(source, [])
    assert check.main.name == "main" and check.main.wants_text and [f.name for f in check.functions] == ["helper", "main"]
