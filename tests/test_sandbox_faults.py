"""Reward functions that fail: each gives its one clear error, and the next good call works."""

# ruff: noqa: E501  (tables of source text)

import resource

import pytest

from lab.rewards.sandbox import Limits, RewardError, RewardHost
from tests.sandbox_cases import FAULTS, SLOW_FAULTS, fault_source
from tests.sandbox_leaks import nothing_left_behind

SOURCE, MARKED = fault_source()
CPU_SECONDS = 0.15
COMPLETIONS = ["one", "two", "four"]


@pytest.fixture(scope="module")
def hosts():
    """One host with short deadlines, for what hangs, and one with ample ones, for what only computes."""
    short = Limits(call_cpu_seconds=CPU_SECONDS, cpu_seconds_per_completion=0.0, wall_seconds=2.0)
    ample = Limits(call_cpu_seconds=20.0, wall_seconds=60.0)
    with RewardHost(short) as first, RewardHost(ample) as second:
        first.load(SOURCE, filename="faults.py")
        second.load(SOURCE, filename="faults.py")
        yield first, second


def call(host, name, completions=COMPLETIONS):
    name = f"fault_{name}" if name in FAULTS else name
    return host.call(name, prompts=["p"] * len(completions), completions=completions, trainer_state={"global_step": 3})


def assert_next_call_works(host):
    assert call(host, "good").scores == [3.0, 3.0, 4.0]


def check(host, name):
    body, kind, piece = FAULTS[name]
    if kind == "ok":
        assert call(host, name).scores == piece
    else:
        with pytest.raises(RewardError) as caught:
            call(host, name)
        error = caught.value
        assert error.kind in kind.split("|"), (error.kind, error.message, error.traceback)
        assert any(part in error.message for part in str(piece).split("|")), error.message
        assert error.function == f"fault_{name}"
        if MARKED[name] is not None and error.kind != "memory":
            assert error.line == MARKED[name], (error.message, error.traceback, error.printed)
        assert len(str(error)) < 3000 and len(error.traceback) < 10_000 and len(error.printed) < 20_000
        assert "sandbox/" not in error.traceback or error.kind in ("crashed", "timeout")
    if name == "floods_with_old_replies":  # still at it when the next call comes, which gets the blame, once
        with pytest.raises(RewardError, match="wrote over the connection"):
            call(host, "good")
    assert_next_call_works(host)


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW_FAULTS])
def test_a_failing_function_gives_its_error_and_the_next_call_works(hosts, name):
    hangs = "timeout" in FAULTS[name][1]
    check(hosts[0] if hangs else hosts[1], name)


@pytest.mark.parametrize("name", SLOW_FAULTS)
def test_a_function_that_waits_is_stopped_by_the_clock(hosts, name):
    check(hosts[0], name)


@pytest.mark.soak
@pytest.mark.parametrize("lock", ["abi1", "nofiles", "off"])
def test_faults_end_the_same_way_behind_weaker_locks(lock):
    preload = ("numpy", "sympy", "math_verify")  # nothing can be imported later where files are shut
    with RewardHost(Limits(call_cpu_seconds=2.0, wall_seconds=4.0, memory_bytes=2 << 30), lock=lock, preload=preload) as host:
        host.load(SOURCE, filename="faults.py")
        for name in FAULTS:
            check(host, name)


def test_an_endless_loop_uses_no_more_cpu_time_than_it_may(hosts):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name in ("endless_loop", "blocks_signals"):
        with pytest.raises(RewardError):
            call(hosts[0], name)
    hosts[0].close()  # its time counts once it has been waited for
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # two times the limit, 0.25 s and 0.1 s to answer the two signals of the second, and less than 0.6 s for the starts
    assert used < 2 * CPU_SECONDS + 0.35 + 1.0


def test_the_row_that_hangs_is_named():
    host = RewardHost(Limits(call_cpu_seconds=0.3, cpu_seconds_per_completion=0.0))
    with host:
        host.load("def slow(prompts, completions, **kwargs):\n    for p, c in zip(prompts, completions):\n        while c == 'two': pass\n", filename="slow.py")
        with pytest.raises(RewardError) as caught:
            call(host, "slow")
    assert (caught.value.row, caught.value.line) == (1, 3)


def test_the_row_that_raises_is_named():
    with RewardHost() as host:
        host.load("""
def score(completions, answer, **kwargs):
    texts = [c.upper() for c in completions]
    return [float(text == right.upper()) for text, right in zip(texts, answer)]
def broken(completions, **kwargs):
    return [1 / 0 for c in completions]
""")
        with pytest.raises(RewardError) as caught:
            host.call("score", prompts=["p"] * 3, completions=COMPLETIONS, columns={"answer": ["a", "b", None]})
        assert caught.value.row == 2 and caught.value.line == 4
        with pytest.raises(RewardError) as caught:
            host.call("broken", prompts=["p"] * 3, completions=COMPLETIONS)
        assert caught.value.row is None  # every row fails, so none is the cause


def test_the_row_of_a_wrong_value_is_named(hosts):
    with pytest.raises(RewardError) as caught:
        call(hosts[1], "number_as_text")
    assert caught.value.row == 1


def test_what_was_printed_arrives_with_result_and_error():
    with RewardHost(Limits(output_bytes=1000, call_cpu_seconds=0.3)) as host:
        loaded = host.load("""
import sys
print("loading")
def fine(completions, **kwargs):
    print("scores are fine \\u00e9\\ud800")
    print("on the other stream", file=sys.stderr)
    return [0.0]
def wrong(completions, **kwargs):
    print("before")
    raise ValueError
def loud(completions, **kwargs):
    print("x" * 5000)
    return [0.0]
def raw(completions, **kwargs):
    import os
    os.write(1, b"y" * 5000)
    print()
    return [0.0]
def hung(completions, **kwargs):
    print("then nothing")
    while True:
        try:
            while True: pass
        except BaseException: pass
""")
        assert loaded.printed == "loading\n"
        assert call(host, "fine", ["a"]).printed == "scores are fine é\\ud800\non the other stream\n"
        with pytest.raises(RewardError) as caught:
            call(host, "wrong", ["a"])
        assert caught.value.printed == "before\n"
        assert call(host, "loud", ["a"]).printed == "x" * 1000
        assert call(host, "raw", ["a"]).printed.startswith("y" * 1000 + "\n… (4,0")
        with pytest.raises(RewardError) as caught:
            call(host, "hung", ["a"])
        assert caught.value.printed == "then nothing\n"


def test_the_lab_grows_by_nothing_while_a_reward_fills_its_memory(hosts):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("giant_bytes", "giant_text", "giant_list", "much_raw_output"):
        try:
            call(hosts[1], name)
        except RewardError:
            pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10  # KiB


def test_timeouts_and_crashes_leave_nothing_behind(tmp_path, monkeypatch):
    with nothing_left_behind(tmp_path, monkeypatch):
        with RewardHost(Limits(call_cpu_seconds=0.05, cpu_seconds_per_completion=0.0)) as host:
            host.load("import os\ndef good(completions, **kwargs): return [1.0]\ndef loop(completions, **kwargs):\n    while True: pass\n"
                      "def crash(completions, **kwargs): os._exit(1)\n")
            for name in ["loop"] * 3 + ["crash"] * 7:
                with pytest.raises(RewardError):
                    call(host, name, ["a"])
            assert call(host, "good", ["a"]).scores == [1.0]


@pytest.mark.soak
def test_ten_timeouts_and_hundreds_of_crashes_leave_nothing_behind(tmp_path, monkeypatch):
    with nothing_left_behind(tmp_path, monkeypatch):
        with RewardHost(Limits(call_cpu_seconds=0.2, cpu_seconds_per_completion=0.0)) as host:
            host.load(SOURCE, filename="faults.py")
            for name in ("os_exit", "segfault", "closes_everything", "garbage_reply", "endless_loop"):
                for _ in range(10 if name == "endless_loop" else 100):
                    with pytest.raises(RewardError):
                        call(host, name)
                assert_next_call_works(host)


# What cannot even be loaded: (source, kind, line, piece of the message)
UNLOADABLE = {
    "syntax": ("def f(completions:\n    pass", "syntax", 1, "SyntaxError"),
    "syntax_further_down": ("x = 1\n\ndef f(completions, **kwargs):\n    return [1.0 for c in completions\n", "syntax", 4, "'[' was never closed"),
    "indentation": ("def f(completions, **kwargs):\nreturn [1.0]", "syntax", 2, "indented block"),
    "tabs_and_spaces": ("def f(completions, **kwargs):\n\tx = 1\n        return [x]", "syntax", 3, "tabs and spaces"),
    "null_byte": ("def f(completions): pass\0", "syntax", None, "null"),
    "nested_too_deeply": ("x = " + "(" * 5000 + ")" * 5000, "syntax", None, "SyntaxError"),
    "nested_lists": ("x = " + "-" * 100_000 + "1", "syntax", None, "SyntaxError"),
    "lone_surrogate": ("x = '\ud800'\ndef f(completions, **kwargs): return [1.0]", "syntax", None, "surrogates"),
    "not_python": ("<html>", "syntax", 1, "SyntaxError"),
    "markdown": ("```python\ndef f(completions): pass\n```", "syntax", 1, "SyntaxError"),
    "empty": ("", "signature", None, "no reward function found: define one like def my_reward(completions, **kwargs)"),
    "only_text": ("'''just words'''", "signature", None, "no reward function found"),
    "wrong_parameter": ("def score(text): return 1.0", "signature", None, "score(text) does not take `completions`"),
    "private": ("def _score(completions): return 1.0", "signature", None, "no reward function found"),
    "class_only": ("class Reward:\n    def __call__(self, completions): pass", "signature", None, "no reward function found"),
    "by_position_only": ("def score(completions, /, **kwargs): return [1.0]", "signature", 1, "by position only"),
    "raises": ("import math\nmath.sqrt(-1)\n", "exception", 2, "ValueError"),
    "raises_in_a_function": ("def f():\n    raise KeyError('x')\nf()", "exception", 2, "KeyError: 'x'"),
    "exits": ("import sys\nsys.exit('bye')", "exception", 2, "SystemExit: bye"),
    "missing_import": ("import pandas_of_mine", "exception", 1, "No module named 'pandas_of_mine'"),
    "torch": ("import re\nimport torch\n", "exception", 2, "torch isn't available in rewards"),
    "relative_import": ("from . import x", "exception", 1, "ImportError"),
    "endless": ("x = 0\nwhile True:\n    x += 1\n", "timeout", None, "s of computing"),
    "process_ends": ("import os\nos._exit(0)", "crashed", None, "exit code 0"),
    "too_much_memory": ("x = bytearray(1 << 40)", "memory", 1, "MemoryError"),
    "too_large_a_file": ("#" * (2 << 20), "syntax", None, "larger than 1 MB"),
    "breaks_the_worker": ("import builtins\nbuiltins.__dict__.clear()", "crashed|exception|signature|protocol", None, ""),
}


@pytest.fixture(scope="module")
def loader():
    with RewardHost(Limits(load_cpu_seconds=0.5)) as host:
        host.load("def good(completions, **kwargs): return [1.0]", filename="good.py")
        yield host


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_file_that_cannot_be_used_says_why_and_where(loader, name):
    source, kind, line, piece = UNLOADABLE[name]
    with pytest.raises(RewardError) as caught:
        loader.load(source, filename="reward_under_test.py")
    assert caught.value.kind in kind.split("|"), caught.value.message
    assert piece in caught.value.message
    if line is not None:
        assert caught.value.line == line
    assert list(loader.functions) == ["good"]
    assert loader.call("good", prompts=["p"], completions=["c"]).scores == [1.0]
