"""The hostile set is built from the row's own answer, so that each attempt really tempts."""

from __future__ import annotations

from lab.rewards import resolve
from lab.rewards.contract import Batch, call
from lab.rewards.hostile import guesses, honest, hostile_set


def test_every_attempt_says_what_a_reward_that_pays_for_it_overlooked():
    attempts = hostile_set("What is 69 + 13?", {"answer": "82"})
    kinds = [attempt.kind for attempt in attempts]
    assert len(kinds) == len(set(kinds)) == 20 and all(attempt.why.endswith((".", "?")) for attempt in attempts)
    texts = {attempt.kind: attempt.text for attempt in attempts}
    assert texts["empty text"] == "" and texts["prompt copied"] == "What is 69 + 13?"
    assert texts["A or B or C"].endswith("<answer>81 or 82 or 83</answer>")
    assert texts["same answer 50 times"].count("<answer>82</answer>") == 50
    assert texts["underscore in the number"].endswith("<answer>8_2</answer>")
    assert texts["answer in the wrong place"] == "<think>82</think><answer></answer>"
    assert len(texts["very long filler"].split()) > 1000


def test_without_an_answer_those_around_it_are_left_out():
    attempts = hostile_set("Name a fruit.", {})
    assert len(attempts) == 11 and honest({}) is None and honest({"answer": None}) is None


def test_guesses_stand_around_the_answer_and_hold_it():
    for answer in ("82", "1/2", "-3", "B", "d", "no", "TRUE", "Kuala Lumpur"):
        assert answer in guesses(answer) and len(guesses(answer)) >= 2


def test_the_labs_own_rewards_pay_none_of_them_and_pay_the_honest_answer():
    attempts = [honest({"answer": "82"}), *hostile_set("What is 69 + 13?", {"answer": "82"})]
    texts = [attempt.text for attempt in attempts]
    n = len(texts)
    batch = Batch([[{"role": "user", "content": "What is 69 + 13?"}]] * n, texts, [[1]] * n, {"answer": ["82"] * n})
    (accuracy,) = resolve("accuracy")
    values = call("accuracy", accuracy.function, batch).values
    assert values[0] == 1.0 and not any(values[1:])
