"""The code reward on a table of right, wrong and cheating programs written by hand, in real locked processes."""

from __future__ import annotations

import sys

import pytest

from lab.records import Completion, Group
from lab.rewards import RewardError, RewardNotFound, resolve, score
from lab.rewards.code import extract_program
from lab.rewards.sandbox import CodeHost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs of a model run only where the kernel gives a lock")

FOUR = ["assert double(1) == 2", "assert double(0) == 0", "assert double(-3) == -6", "assert double('ab') == 'abab'"]
WORDS = "assert count('a b a') == {'a': 2, 'b': 1}\nassert count('') == {}"
HUMAN_EVAL = "def check(candidate):\n    assert candidate([3, 1, 2]) == [1, 2, 3]\n    assert candidate([]) == []\n"


def fenced(source, language="python"):
    return f"Here it is:\n```{language}\n{source}\n```\nDone."


# completion, the row's columns, expected reward
PROGRAMS = {
    "right": (fenced("def double(x):\n    return 2 * x"), {"tests": FOUR}, 1),
    "right without the word python": (fenced("def double(x):\n    return x + x", ""), {"tests": FOUR}, 1),
    "right in the answer tag": ("<think>x + x</think><answer>def double(x):\n    return x + x</answer>", {"tests": FOUR}, 1),
    "a fence inside the answer tag": (f"<answer>\n{fenced('def double(x): return x * 2')}\n</answer>", {"tests": FOUR}, 1),
    "the last of two fences": (fenced("def double(x): return 0") + fenced("def double(x): return 2 * x"), {"tests": FOUR}, 1),
    "the first of two fences would be right": (fenced("def double(x): return 2 * x") + fenced("def double(x): return 0"),
                                               {"tests": FOUR}, 0.25),
    "right for numbers alone": (fenced("def double(x):\n    return x + x if isinstance(x, int) else None"), {"tests": FOUR}, 0.75),
    "right for nought alone": (fenced("def double(x): return x"), {"tests": FOUR}, 0.25),
    "another name": (fenced("def twice(x): return 2 * x"), {"tests": FOUR}, 0),
    "prints instead of returning": (fenced("def double(x): print(2 * x)"), {"tests": FOUR}, 0),
    "a syntax error": (fenced("def double(x) return 2 * x"), {"tests": FOUR}, 0),
    "no fence": ("def double(x): return 2 * x", {"tests": FOUR}, 0),
    "a fence that is never closed": ("```python\ndef double(x): return 2 * x", {"tests": FOUR}, 0),
    "nothing": ("", {"tests": FOUR}, 0),
    "an empty fence": (fenced(""), {"tests": FOUR}, 0),
    "raises on load": (fenced("raise SystemExit\ndef double(x): return 2 * x"), {"tests": FOUR}, 0),
    "raises for text": (fenced("def double(x): return x * 2 if x + 0 == x else 0"), {"tests": FOUR}, 0.75),
    "endless": (fenced("def double(x):\n    while True: pass"), {"tests": FOUR[:1]}, 0),
    "recursion without end": (fenced("def double(x): return double(x)"), {"tests": FOUR}, 0),
    "eats memory": (fenced("def double(x): return [0] * 10**11"), {"tests": FOUR}, 0),
    "ends itself with success": (fenced("import os\ndef double(x): os._exit(0)"), {"tests": FOUR}, 0),
    "leaves by sys.exit": (fenced("import sys\nsys.exit(0)"), {"tests": FOUR}, 0),
    "equal to everything": (fenced("class All(int):\n    def __eq__(self, other): return True\ndef double(x): return All(7)"),
                            {"tests": FOUR}, 0),
    "True for 1": (fenced("def same(x): return True"), {"tests": ["assert same(1) == 1"]}, 0),
    "2.0 for 2": (fenced("def double(x): return 2.0"), {"tests": ["assert double(1) == 2"]}, 1),
    "a float within rounding": (fenced("def third(x): return x * (1 / 3)"), {"tests": ["assert third(3.3) == 1.1"]}, 1),
    "reads a file": (fenced("def double(x):\n    return open('/etc/passwd').read()"), {"tests": FOUR}, 0),
    "looks for the tests in memory": (fenced("import gc\ndef double(x):\n    return next((o for o in gc.get_objects() if o == 'abab'), 2)"),
                                      {"tests": FOUR[3:]}, 0),
    "a dictionary in any order": (fenced("def count(text):\n    words = text.split()[::-1]\n    return {w: words.count(w) for w in words}"),
                                  {"tests": WORDS}, 1),
    "half of the words": (fenced("def count(text): return {}"), {"tests": WORDS}, 0.5),
    "HumanEval's form": (fenced("def order(xs): return sorted(xs)"), {"tests": HUMAN_EVAL, "entry_point": "order"}, 1),
    "HumanEval's form, sorted in place": (fenced("def order(xs): return xs.sort()"), {"tests": HUMAN_EVAL, "entry_point": "order"}, 0),
    "pairs, right": (fenced("def add(a, b): return a + b"), {"tests": [[[1, 2], 3], [["a", "b"], "ab"]]}, 1),
    "pairs, half right": (fenced("def add(a, b): return 3"), {"tests": [[[1, 2], 3], [["a", "b"], "ab"]]}, 0.5),
    "pairs, one argument that is no list": (fenced("def double(x): return 2 * x"), {"tests": [[1, 2], ["ab", "abab"]]}, 1),
    "pairs, the last function counts": (fenced("def help(x): return x + x\ndef double(x): return help(x)"), {"tests": [[[4], 8]]}, 1),
    "pairs, a named function": (fenced("def double(x): return 2 * x\ndef other(x): return 0"),
                                {"tests": [[[4], 8]], "entry_point": "double"}, 1),
    "pairs, no function": (fenced("double = 8"), {"tests": [[[4], 8]]}, 0),
    "pairs, a tuple is no list": (fenced("def pair(x): return (x, x)"), {"tests": [[[4], [4, 4]]]}, 0),
    "a class with a method": (fenced("class Box:\n    def __init__(self, x): self.x = x\n    def get(self): return self.x"),
                              {"tests": ["assert Box(3).get() == 3"]}, 1),
    "no tests": (fenced("def double(x): return 2 * x"), {"tests": None}, None),
    "tests that would take the program's word": (fenced("def ok(): return True\ndef f(): return 1"),
                                                 {"tests": ["assert f() == ok()"]}, None),
}


def graded(name, completions, **columns):
    """Reward and the note on the tests of each completion, each a group of its own with its own columns."""
    made = [Group(i, "p", [1], {"prompt": "p", **{key: values[i] for key, values in columns.items()}}, [Completion(0, text, [1], True)])
            for i, text in enumerate(completions)]
    metrics = score(resolve(name), None, made)
    return [group.completions[0] for group in made], metrics


@pytest.fixture(scope="module")
def table():
    entries = list(PROGRAMS.values())
    found, metrics = graded("code", [text for text, _, _ in entries], tests=[columns["tests"] for _, columns, _ in entries],
                            entry_point=[columns.get("entry_point") for _, columns, _ in entries])
    return dict(zip(PROGRAMS, found, strict=True)), metrics


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_program_gets_its_share_of_the_tests(table, case):
    found = table[0][case]
    assert found.reward == PROGRAMS[case][2], found.extra


def test_the_table_says_what_became_of_the_tests(table):
    cases, metrics = table
    assert cases["right"].extra["tests"] == "4 of 4 passed"
    assert cases["right for nought alone"].extra["tests"].startswith("1 of 4 passed; double(1) == 2: got 1")
    assert cases["no fence"].extra["tests"] == "no program found"
    assert "more than 2 s of computing" in cases["endless"].extra["tests"]
    assert 0 < metrics["code/suspicious"] < 0.2  # sys.exit, os._exit, __eq__, gc


def test_all_or_nothing():
    found, _ = graded("code(partial=False)", [fenced("def double(x): return x"), fenced("def double(x): return 2 * x")], tests=[FOUR, FOUR])
    assert [c.reward for c in found] == [0, 1]


BUSY = "def double(x):\n    for _ in range({}): pass\n    return 2 * x"


def test_speed_counts_beside_correctness_and_only_for_what_is_right():
    reference, slow = BUSY.format(100_000), BUSY.format(2_000_000)
    wrong = "def double(x): return x"
    found, _ = graded("code(speed=0.5)", [fenced(text) for text in (reference, "def double(x): return 2 * x", slow, wrong)],
                      tests=[FOUR] * 4, reference=[reference] * 4)
    same, faster, slower, half = (c.reward for c in found)
    assert faster == 1
    assert 0.5 < slower < 0.8 and slower < same  # twenty times as slow as the reference: about 0.5 + 0.5 / 20
    assert half == 0.5 * 0.25  # one of four tests, and no speed


def test_a_reference_that_fails_its_own_tests_is_named():
    with pytest.raises(RewardError, match="reference solution that fails its own tests: double"):
        graded("code(speed=0.2)", [fenced("def double(x): return 2 * x")], tests=[FOUR], reference=["def double(x): return x"])
    with pytest.raises(RewardError, match="has no reference solution"):
        graded("code(speed=0.2)", [fenced("def double(x): return 2 * x")], tests=[FOUR])


@pytest.mark.parametrize("tests, said", [
    (["assert double(1) =="], "the tests are not Python"), ([3, 4], "neither asserts nor pairs"),
    ([[1, 2, 3]], "neither asserts nor pairs"),
])
def test_tests_that_cannot_be_read_name_their_row(tests, said):
    with pytest.raises(RewardError, match=said) as told:
        graded("code", [fenced("def double(x): return 2 * x")] * 2, tests=[FOUR, tests])
    assert told.value.row == 1 and told.value.place == "prompt 2, completion 1"


def test_a_function_name_that_is_no_name_never_reaches_a_program():
    with pytest.raises(RewardError, match="no name in Python"):
        graded("code", [fenced("def f(x): return 1")], tests=[[[[1], 1]]], entry_point=["__import__('os').system"])


def test_without_a_lock_nothing_runs_unless_the_owner_says_so(monkeypatch):
    import lab.rewards.code as module

    monkeypatch.setattr(module, "_host", lambda allow_unlocked: CodeHost(lock="off", allow_unlocked=allow_unlocked))
    program = [fenced("def double(x): return 2 * x")]
    with pytest.raises(RewardError, match="gives no lock.*code\\(allow_unlocked=True\\)"):
        graded("code", program, tests=[FOUR])
    assert graded("code(allow_unlocked=True)", program, tests=[FOUR])[0][0].reward == 1


@pytest.mark.parametrize("text, said", [("code(speed=1)", "speed is 1"), ("code(source='x')", "source is 'x'")])
def test_parameters_that_cannot_work_are_refused(text, said):
    with pytest.raises(RewardNotFound, match=said):
        resolve(text)


@pytest.mark.parametrize("text, source, found", [
    ("```python\na\n```", "any", "a\n"), ("```py\na\n```", "fence", "a\n"),
    ("~~~\na\n~~~", "any", None), ("<answer>a</answer>", "any", "a"),
    ("<answer>a</answer>", "fence", None), ("```python\na\n```", "answer", None), ("<answer>```python\na\n```</answer>", "any", "a\n"),
    ("<answer>\n```python\na\n```\n</answer>", "answer", "a\n"), ("``` python\na\n```", "any", "a\n"), ("```json\n{}\n```", "any", None),
    ("1. do\n   ```python\n   a\n   ```", "any", "a\n"), ("<answer></answer>", "any", None),
])
def test_where_a_program_is_found(text, source, found):
    assert extract_program(text, source) == found
