"""TRL's contract inside the sandbox: every usual shape of a reward function runs unchanged and gives the same scores."""

# ruff: noqa: E501  (tables of source text)

import inspect
import sys
from pathlib import Path

import numpy
import pytest

from lab.rewards import Batch, RewardNotFound, call, resolve
from lab.rewards.contract import TrainerState
from lab.rewards.sandbox import Limits, RewardError, RewardHost

SHAPES = '''
from __future__ import annotations
import asyncio, functools, re
from dataclasses import dataclass

def text(completions, **kwargs):
    """Length of each text.

    More that nobody needs in a list."""
    return [float(len(c)) for c in completions]

def messages(completions, **kwargs):
    return [float(len(c[0]["content"])) for c in completions]

def named_column(prompts, completions, answer, **kwargs):
    return [1.0 if c == a else 0.0 for c, a in zip(completions, answer)]

def optional_column(completions, answer=None, bonus=0.5, **kwargs):
    return [bonus if answer is None else 1.0 for c in completions]

def only_what_it_names(completions):
    return [0.25] * len(completions)

def keyword_only(*, completions, **kwargs):
    return [0.5] * len(completions)

def column_from_kwargs(completions, **kwargs):
    return [float(kwargs["answer"][i] == c) for i, c in enumerate(completions)]

def every_keyword(completions, **kwargs):
    wanted = {"prompts", "completion_ids", "answer", "trainer_state", "log_extra", "log_metric"}
    return [float(wanted == set(kwargs))] * len(completions)

def token_ids(completion_ids, **kwargs):
    return [float(sum(ids)) for ids in completion_ids]

def not_applicable(completions, **kwargs):
    return [None if c == "b" else 1.0 for c in completions]

def logs(completions, log_extra, log_metric, **kwargs):
    log_extra("upper", [c.upper() for c in completions])
    log_extra("numbers", [1, 2.5, None])
    log_extra("objects", [{"a": 1}, [2], float("nan")])
    log_metric("mean length", sum(map(len, completions)) / len(completions))
    log_metric("twice", 1)
    log_metric("twice", 2)
    return [0.0] * len(completions)

def ramp(completions, trainer_state, **kwargs):
    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

async def asynchronous(completions, **kwargs):
    async def one(c):
        await asyncio.sleep(0.001)
        return float(len(c))
    return await asyncio.gather(*[one(c) for c in completions])

async def with_a_time_limit(completions, **kwargs):
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    except asyncio.TimeoutError:
        return [1.0] * len(completions)

class Scorer:
    def __init__(self, value): self.value = value
    def __call__(self, completions, **kwargs): return [self.value] * len(completions)
an_object = Scorer(0.75)

def scaled(factor):
    def inner(completions, **kwargs): return [factor * len(c) for c in completions]
    return inner
a_closure = scaled(2)
a_partial = functools.partial(text)
a_lambda = lambda completions, **kwargs: [9.0] * len(completions)

def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper

@traced
def decorated(completions, **kwargs):
    return [3.0] * len(completions)

@dataclass
class Verdict:
    good: bool
def with_a_dataclass(completions, **kwargs):
    return [float(Verdict(c == "a").good) for c in completions]

_calls = 0
def remembers(completions, **kwargs):
    global _calls
    _calls += 1
    return [float(_calls)] * len(completions)

def helper(text): return text
class NotAReward: pass
if __name__ == "__main__":
    raise SystemExit("not a script")
'''
EXPECTED = {  # for completions "a", "b", "cc", answers "a", "x", "cc", ids [1], [2, 3], [4]
    "text": [1, 1, 2], "named_column": [1, 0, 1], "optional_column": [1, 1, 1], "only_what_it_names": [0.25] * 3,
    "keyword_only": [0.5] * 3, "column_from_kwargs": [1, 0, 1], "every_keyword": [1] * 3, "token_ids": [1, 5, 4],
    "not_applicable": [1, None, 1], "logs": [0] * 3, "ramp": [0.1] * 3, "asynchronous": [1, 1, 2], "with_a_time_limit": [1] * 3,
    "an_object": [0.75] * 3, "a_closure": [2, 2, 4], "a_partial": [1, 1, 2], "a_lambda": [9] * 3, "decorated": [3] * 3,
    "with_a_dataclass": [1, 0, 0], "remembers": [1] * 3,
}


@pytest.fixture(scope="module")
def host():
    with RewardHost() as host:
        host.load(SHAPES, filename="shapes.py")
        yield host


def ask(host, name, **changes):
    given = {"prompts": ["p"] * 3, "completions": ["a", "b", "cc"], "completion_ids": [[1], [2, 3], [4]],
             "columns": {"answer": ["a", "x", "cc"]}, "trainer_state": {"global_step": 4, "max_steps": 40}}
    return host.call(name, **(given | changes))


@pytest.mark.parametrize("name", EXPECTED)
def test_every_usual_shape_runs_unchanged(host, name):
    assert ask(host, name).scores == EXPECTED[name]


def test_what_a_file_offers_is_described(host):
    functions = host.functions
    assert set(functions) == set(EXPECTED) | {"messages"}
    assert functions["text"].doc == "Length of each text." and functions["text"].line == 6
    assert functions["named_column"].required == ("prompts", "completions", "answer")
    assert functions["optional_column"].parameters == ("completions", "answer", "bonus")
    assert functions["asynchronous"].is_async and not functions["text"].is_async
    assert functions["text"].takes_any and not functions["only_what_it_names"].takes_any


def test_completions_may_be_messages(host):
    completions = [[{"role": "assistant", "content": text}] for text in ("a", "b", "cc")]
    assert ask(host, "messages", completions=completions).scores == [1, 1, 2]


def test_logged_columns_and_metrics_come_back_checked(host):
    result = ask(host, "logs")
    assert result.extra == {"upper": ["A", "B", "CC"], "numbers": [1, 2.5, None], "objects": ["{'a': 1}", "[2]", "nan"]}
    assert result.metrics == {"mean length": pytest.approx(4 / 3), "twice": 1.5}  # TRL averages what one name got


def test_a_long_extra_value_is_cut(host):
    host.load("def long(completions, log_extra, **kwargs):\n    log_extra('x', ['y' * 10**6] * 3)\n    return [0.0] * 3\n", filename="long.py")
    assert ask(host, "long").extra["x"] == ["y" * 2000 + "…"] * 3


def test_a_column_that_is_not_there_is_named(host):
    with pytest.raises(RewardError) as caught:
        ask(host, "named_column", columns={})
    assert caught.value.kind == "signature" and caught.value.line == 15
    assert caught.value.message == "needs 'answer', a column that was not stored; there is prompts, completions, completion_ids."


def test_a_column_that_is_not_json_is_left_out_and_named(host):
    result = ask(host, "text", columns={"answer": [object()] * 3, "image": [{1, 2}] * 3, "fine": [1, 2, 3]})
    assert result.skipped_columns == ("answer", "image")
    with pytest.raises(RewardError, match="needs 'answer', a column that cannot be sent as JSON"):
        ask(host, "named_column", columns={"answer": [object()] * 3})


def test_columns_of_numpy_values_are_sent_as_numbers(host):
    assert ask(host, "column_from_kwargs", completions=[1, 2, 3], columns={"answer": [numpy.int64(1), numpy.float32(2), 5]}).scores == [1, 1, 0]


def test_a_column_of_another_length_is_the_callers_mistake(host):
    with pytest.raises(ValueError, match="column 'answer' has 2 values for 3 completions"):
        ask(host, "text", columns={"answer": [1, 2]})


def test_an_unknown_function_is_named_with_those_that_exist(host):
    with pytest.raises(RewardError, match="no such reward function is loaded; there is text, "):
        ask(host, "texts")


def test_zero_completions_give_zero_scores(host):
    assert ask(host, "text", prompts=[], completions=[], completion_ids=[], columns={}).scores == []


def test_any_text_arrives_as_it_was_sent(host):
    odd = ["\x00", "\ud800", "𝒳" * 3, "e\u0301", "\u2028", "\\", "\"", ""]
    host.load("def points(completions, **kwargs): return [sum(map(ord, c)) for c in completions]\n", filename="points.py")
    assert host.call("points", prompts=odd, completions=odd).scores == [float(sum(map(ord, text))) for text in odd]


def test_a_function_can_be_asked_for_by_name():
    with RewardHost() as host:
        loaded = host.load("def _hidden(completions, **kwargs): return [1.0]\ndef other(completions): return [2.0]\n", "_hidden")
        assert [function.name for function in loaded.functions] == ["_hidden"]
        with pytest.raises(RewardError, match="there is no function 'third' in b.py; it defines f\\(x\\)"):
            host.load("def f(x): pass\n", "third", filename="b.py")


def test_loading_again_replaces_the_file_and_leaves_nothing_of_the_old_one():
    with RewardHost() as host:
        host.load("import json\njson.loads = None\ndef f(completions, **kwargs): return [1.0]\ndef g(completions, **kwargs): return [1.0]\n")
        host.load("def h(completions, **kwargs): return [5.0]\n", filename="other.py")
        host.load("import json\ndef f(completions, **kwargs): return [float(json.loads('2'))]\n")
        assert host.call("f", prompts=["p"], completions=["c"]).scores == [2.0]
        assert sorted(host.functions) == ["f", "h"]
        assert host.call("h", prompts=["p"], completions=["c"]).scores == [5.0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the lock is made of Linux system calls")
@pytest.mark.parametrize("body", ["open('/etc/passwd')", "open('notes.txt', 'w')", "import socket; socket.socket()", "import tempfile; tempfile.mkdtemp()",
                                  "import threading; threading.Thread(target=print).start()", "import subprocess; subprocess.run(['true'])"])
def test_what_the_lock_refuses_is_explained(body):
    with RewardHost() as host:
        host.load(f"def f(completions):\n    {body}\n")
        with pytest.raises(RewardError, match="rewards run locked: they cannot open your files") as caught:
            host.call("f", prompts=["p"], completions=["c"])
        assert (caught.value.kind, caught.value.line) == ("exception", 2)


def test_a_file_that_cannot_replace_another_leaves_it_in_force():
    with RewardHost() as host:
        host.load("def f(completions, **kwargs): return [1.0]\n")
        for broken in ("def f(completions", "import os\nos._exit(0)", "def g(x): pass", "raise ValueError"):
            with pytest.raises(RewardError):
                host.load(broken)
            assert host.call("f", prompts=["p"], completions=["c"]).scores == [1.0]
            assert list(host.functions) == ["f"]


def test_completions_that_are_not_text_are_the_callers_mistake(host):
    with pytest.raises(ValueError, match="completions must be texts or lists of messages"):
        ask(host, "text", completions=[object()] * 3)


def test_built_in_rewards_of_trl_run_unchanged():
    """Their own source text, as a user would paste it. Their tests' values are recomputed outside the sandbox."""
    rewards = pytest.importorskip("trl.rewards", reason="TRL is an extra")
    texts = ["<think>\nso\n</think>\nThe answer is \\boxed{42}", "\\boxed{41}", "no idea " * 30]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {"solution": ["$42$"] * 3}
    cases = {"think_format_reward": (rewards.think_format_reward, "think_format_reward"),
             "repetition": (rewards.get_repetition_penalty_reward, "get_repetition_penalty_reward"),
             "overlong": (rewards.get_soft_overlong_punishment, "get_soft_overlong_punishment")}
    arguments = {"repetition": dict(ngram_size=3, max_penalty=-1.0), "overlong": dict(max_completion_len=100, soft_punish_cache=20)}
    for name, (function, of_trl) in cases.items():
        if of_trl not in dir(rewards):
            continue
        module_source = Path(inspect.getsourcefile(function)).read_text()
        made = of_trl if name not in arguments else f"{of_trl}(**{arguments[name]!r})"
        outside = function if name not in arguments else function(**arguments[name])
        ids = [[1] * 50, [1] * 90, [1] * 150]
        with RewardHost() as host:
            host.load(f"{module_source}\nour_reward = {made}\n", "our_reward", filename=f"{name}.py")
            inside = host.call("our_reward", prompts=["p"] * 3, completions=completions, completion_ids=ids, columns=columns)
        assert inside.scores == outside(prompts=["p"] * 3, completions=completions, completion_ids=ids, **columns)


def test_imports_of_installed_packages_work_and_torch_is_as_if_absent():
    source = """
import importlib.util, sys
import numpy, sympy, math_verify
def checks(completions, **kwargs):
    return [float(importlib.util.find_spec("torch") is None), float(numpy.ones(2).sum()), float("torch" in sys.modules)]
"""
    with RewardHost(Limits(memory_bytes=2 << 30, call_cpu_seconds=20, load_cpu_seconds=30)) as host:
        host.load(source)
        assert ask(host, "checks").scores == [1.0, 2.0, 0.0]


def test_modules_can_be_loaded_before_the_lock_and_our_own_folders_imported(tmp_path):
    (tmp_path / "our_helpers.py").write_text("VALUE = 7\n")
    with RewardHost(import_paths=[tmp_path], preload=["fractions"], lock="nofiles" if sys.platform == "linux" else "auto") as host:
        host.load("import fractions\ndef f(completions, **kwargs): return [float(fractions.Fraction(1, 2))]\n")
        assert host.call("f", prompts=["p"], completions=["c"]).scores == [0.5]
    with RewardHost(import_paths=[tmp_path]) as host:
        host.load("import our_helpers\ndef f(completions, **kwargs): return [our_helpers.VALUE]\n")
        assert host.call("f", prompts=["p"], completions=["c"]).scores == [7.0]


def test_a_module_that_cannot_be_preloaded_is_said_at_once():
    with RewardHost(preload=["no_such_module_here"]) as host:
        with pytest.raises(RewardError, match="no reward process could be started .*no_such_module_here"):
            host.load("def f(completions): return [1.0]")


# reward files as the trainer uses them: `rewards=["my_reward.py"]`


def test_a_reward_file_that_imports_its_neighbour_is_told_that_a_reward_is_one_file(tmp_path):
    path = tmp_path / "my_reward.py"
    path.write_text("from my_helpers import VALUE\ndef my_reward(completions, **kwargs): return [VALUE for c in completions]\n")
    with pytest.raises(RewardNotFound) as nowhere:
        resolve(str(path))
    assert "No module named 'my_helpers'" in str(nowhere.value) and "lies beside it" not in str(nowhere.value)
    (tmp_path / "my_helpers.py").write_text("VALUE = 1.0\n")
    with pytest.raises(RewardNotFound, match="at line 1 of my_reward.py. my_helpers lies beside it, but a reward is one file"):
        resolve(str(path))


def test_a_traceback_shows_the_right_line_behind_a_form_feed():
    with RewardHost() as host:
        host.load("# a section\x0c\n# another\ndef f(completions, **kwargs):\n    raise ValueError('here')\n")
        with pytest.raises(RewardError) as caught:
            host.call("f", prompts=["p"], completions=["c"])
    assert caught.value.line == 4 and "raise ValueError('here')" in caught.value.traceback


def batch(texts):
    return Batch(prompts=[[{"role": "user", "content": "p"}]] * len(texts), texts=texts, completion_ids=[[1]] * len(texts),
                 columns={"answer": texts}, trainer_state=TrainerState(global_step=2, max_steps=4))


@pytest.mark.parametrize("source", [
    "def my_reward(completions, answer, **kwargs):\n    return [float(c[0]['content'] == a) for c, a in zip(completions, answer)]\n",
    "def my_reward(completions: list[str], answer, **kwargs):\n    return [float(c == a) for c, a in zip(completions, answer)]\n",
    "def my_reward(completions, answer, **kwargs):\n    return [float(c.split() == a.split()) for c, a in zip(completions, answer)]\n",
    "import re\ndef my_reward(completions, **kwargs):\n    return [float(bool(re.search('.', c))) for c in completions]\n",
    "def my_reward(completions, **kwargs):\n    return [float(len(c) == 5) for c in completions]\n",
], ids=["messages", "annotated text", "split", "regex", "length"])
def test_a_reward_file_gets_its_completions_in_the_form_it_expects(tmp_path, source):
    path = tmp_path / "my_reward.py"
    path.write_text(source)
    [reward] = resolve([str(path)])
    texts = ["a b c", "d e f"]
    for _ in range(2):
        assert call(reward.name, reward.function, batch(texts)).values == [1.0, 1.0]
    reward.function.host.close()


def test_a_reward_file_logs_and_reads_the_trainers_state(tmp_path):
    path = tmp_path / "logging_reward.py"
    path.write_text("def logs(completions, trainer_state, log_extra, log_metric, **kwargs):\n    'Logs.'\n    log_extra('n', [1] * len(completions))\n"
                    "    log_metric('m', 2)\n    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)\n")
    [reward] = resolve([path])
    outcome = call(reward.name, reward.function, batch(["x"]))
    assert (reward.name, reward.doc) == ("logs", "Logs.")
    assert (outcome.values, outcome.extra, outcome.metrics) == ([0.5], {"n": [1]}, {"m": 2.0})
    reward.function.host.close()


def test_a_reward_file_that_cannot_be_used_says_why(tmp_path):
    path = tmp_path / "my_reward.py"
    path.write_text("def a(completions): pass\ndef b(completions): pass\n")
    with pytest.raises(RewardNotFound, match="several reward functions \\(a, b\\): say which, like .*my_reward.py:a"):
        resolve([str(path)])
    assert resolve([f"{path}:b"])[0].name == "b"
    path.write_text("def a(completions:\n")
    with pytest.raises(RewardNotFound, match="SyntaxError.* at line 1 of my_reward.py"):
        resolve([str(path)])
