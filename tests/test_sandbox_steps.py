"""Step rewards from a reward file: its code runs locked, and what comes back is checked value by value."""

from __future__ import annotations

import os

import pytest

from lab.config import RunConfig
from lab.rewards import Batch, RewardError, call, resolve
from lab.rewards.sandbox import RewardError as SandboxError
from lab.rewards.sandbox import RewardHost
from lab.rewards.sandbox.results import checked_reply
from lab.storage.recorder import open_run, record
from lab.trainer import Trainer

WORDS = '''
def words(completions, **kwargs):
    """Each word is a step: 1 if it is short, else 0. Of a text without words nothing is said."""
    return [steps_of(completion[0]["content"]) for completion in completions]

def steps_of(text):
    ends = [i for i in range(1, len(text) + 1) if (i == len(text) or text[i] == " ") and text[i - 1] != " "]
    return [(end, float(end % 2)) for end in ends] or None
'''
TEXTS = ["one three", "", "four", " "]
BATCH = Batch(prompts=[[{"role": "user", "content": "p"}]] * 4, texts=TEXTS, completion_ids=[[1]] * 4)


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    return str(tmp_path / "words.py:words")


def reply(*scores):
    return {"scores": list(scores), "extra": {}, "metrics": {}}


def test_a_file_may_reward_steps_and_gives_what_it_gives_outside_the_sandbox(words):
    namespace = {}
    exec(WORDS, namespace)
    [locked] = resolve([words])
    inside, outside = (call("words", function, BATCH) for function in (locked.function, namespace["words"]))
    # "one three" has ends 3 and 9, "four" 4; odd ends are worth 1
    assert inside.steps == outside.steps == [[(3, 1.0), (9, 1.0)], None, [(4, 0.0)], None]
    assert inside.values == outside.values == [1.0, None, 0.0, None]


@pytest.mark.parametrize("given, row, words", [
    ("[(4, 1.0)], [(1, 1.0)]", 0, "a step ends at int 4; a character position from 1 to 3 is needed"),
    ("[(0, 1.0)], None", 0, "a step ends at int 0"),
    ("[(True, 1.0)], None", 0, "a step ends at a bool"),
    ("[(1.0, 1.0)], None", 0, "a step ends at float 1.0"),
    ("[(10**400, 1.0)], None", 0, "a step ends at int 1"),
    ("[(1, None)], None", 0, "a step has no value"),
    ("[(1, 'good')], None", 0, "a step's value is str 'good'"),
    ("[(1, float('nan'))], None", 0, "a step's value is nan"),
    ("[(2, 1.0), (2, 0.0)], None", 0, "two steps end at character 2"),
    ("[(1, 1.0)], 0.5", 1, "expected a list of (end, value), as other completions got, but there is float 0.5"),
    ("[(1, 1.0)], [3]", 1, "but there is a list of 1"),
    ("[(1, 2, 3)], None", 0, "expected a number, but the score is a list of 1"),  # nobody gave steps, so it counts as a bad score
])
def test_steps_that_cannot_be_used_are_named_for_the_author(given, row, words):
    with RewardHost() as host:
        host.load(f"def odd(completions, **kwargs):\n    return [{given}]")
        with pytest.raises(SandboxError) as caught:
            host.call("odd", prompts=["p", "p"], completions=["abc", "abc"])
    assert (caught.value.kind, caught.value.row) == ("value", row) and words in caught.value.message


@pytest.mark.parametrize("scores", [
    ([[1, 1.0]], [[1, 1.0], [1, 2.0]]),  # ends that do not rise
    ([[2, 1.0], [1, 1.0]], None),
    ([[0, 1.0]], None),
    ([[-1, 1.0]], None),
    ([[6, 1.0]], None),  # after the end of a text of 5
    ([[True, 1.0]], None),
    ([[1.0, 1.0]], None),
    ([["1", 1.0]], None),
    ([[1, "1"]], None),
    ([[1, True]], None),
    ([[1, None]], None),
    ([[1, 10**400]], None),
    ([[1, float("inf")]], None),
    ([[1, float("nan")]], None),
    ([[1, [2]]], None),
    ([[1]], None),
    ([[1, 1.0, 1.0]], None),
    ([1, 1.0], None),
    ([{"0": 1, "1": 1.0}], None),
    ([[1, 1.0]], 0.5),  # steps for one and a number for another
    ([[1, 1.0]], "a"),
    ([[1, 1.0]], {}),
    ([[[]]], None),
    ("[[1, 1.0]]", [[1, 1.0]]),
])
def test_steps_from_a_worker_that_was_taken_over_are_refused(scores):
    with pytest.raises(RewardError) as caught:
        checked_reply(reply(*scores), ["a b c", "a b c"])
    assert caught.value.kind == "protocol"


def test_steps_in_order_within_the_text_are_taken_as_they_are():
    scores, steps, _, _ = checked_reply(reply([[1, 1], [5, 0.5]], None, []), ["a b c", "a b c", ""])
    assert steps == [[(1, 1.0), (5, 0.5)], None, []] and scores == [0.75, None, None]
    assert checked_reply(reply(1, None), ["a b c", "a b c"])[:2] == ([1.0, None], None)


def test_more_steps_than_a_reply_may_hold_end_the_worker_and_not_the_lab():
    with RewardHost() as host:
        host.load("def many(completions, **kwargs):\n    return [[(i + 1, 1.0) for i in range(len(c))] for c in completions]")
        with pytest.raises(SandboxError) as caught:
            host.call("many", prompts=["p"], completions=["x" * 800_000])
        assert caught.value.kind == "protocol" and "at most" in caught.value.message
        assert host.call("many", prompts=["p"], completions=["xy"]).steps == [[(1, 1.0), (2, 1.0)]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the forged reply is written by hand to descriptor 3, as on Linux and macOS")
def test_a_file_that_forges_the_reply_cannot_place_a_step_after_the_end():
    forging = ("import json, os, struct, sys\n"
               "def forge(completions, **kwargs):\n"
               "    f = sys._getframe()\n"
               "    while 'request' not in f.f_locals: f = f.f_back\n"
               "    b = json.dumps({'id': f.f_locals['request']['id'], 'scores': [[[999, 1.0]]], 'extra': {}, 'metrics': {}}).encode()\n"
               "    os.write(3, struct.pack('>I', len(b)) + b)\n"
               "    return [1.0]\n")
    with RewardHost() as host:
        host.load(forging)
        with pytest.raises(SandboxError) as caught:
            host.call("forge", prompts=["p"], completions=["abc"])
    assert caught.value.kind == "protocol" and "within the text" in caught.value.message


def test_steps_of_a_file_reach_every_token_and_the_store(words, policy, tmp_path):
    config = RunConfig(model="tiny", task="add2", rewards=(words,), num_generations=4, prompts_per_step=2, max_completion_length=12,
                       max_steps=1, lora_r=4)
    trainer = Trainer(config, policy=policy, adapter="file-steps")
    record(trainer, "steps", tmp_path)
    trainer.close()
    stored = open_run("steps", tmp_path).step(1)
    completions = [c for group in stored.groups for c in group.completions]
    namespace = {}
    exec(WORDS, namespace)
    assert any(c.steps for c in completions)
    for c in completions:
        expected = namespace["steps_of"](c.text)
        assert c.steps == ({} if expected is None else {"words": expected})
        assert len(c.arrays["advantages"]) == len(c.token_ids)
    assert any(len(set(c.arrays["advantages"].tolist())) > 1 for c in completions)  # steps differ within a completion
