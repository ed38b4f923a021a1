"""Prompts for models that speak: one-word answers, sums of two digits in words of their own, debate topics.

Leaves out how they are ordered and cut into steps (`sources`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class PromptList:
    """A fixed list of rows with what a picker shows about it."""

    title: str
    note: str
    rewards: tuple[str, ...]
    models: tuple[str, ...]
    rows: tuple[dict, ...]
    held_out: tuple[dict, ...] = ()


def _prompts(*texts: str) -> tuple[dict, ...]:
    return tuple({"prompt": text} for text in texts)


def _digit_sums() -> list[dict]:
    return [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(1, 10) for b in range(1, 10)]


def _kept_back(row: dict) -> bool:
    return hashlib.sha256(row["prompt"].encode()).digest()[0] % 10 == 0


NAMED_THINGS = (
    "a fruit", "a colour", "an animal", "a country", "a city", "a vegetable", "a sport", "a planet", "a bird", "a tree",
    "a musical instrument", "a day of the week", "a metal", "a flower", "a river", "a drink", "a piece of clothing",
    "a tool", "a month", "an insect",
)
NAMED_THINGS_HELD_OUT = ("a fish", "a language", "a shape", "a spice")

TASKS = {
    "one_word": PromptList(
        title="One word",
        note="“Name a fruit.” and 19 more. A model that speaks answers in sentences at first; rewarded for brevity, it learns "
             "to say one word.",
        rewards=("brevity",), models=("smollm2-135m",),
        rows=_prompts(*(f"Name {thing}." for thing in NAMED_THINGS)),
        held_out=_prompts(*(f"Name {thing}." for thing in NAMED_THINGS_HELD_OUT))),
    "digit_sum": PromptList(
        title="Sum of two digits",
        note="“What is 3 + 4?” The last number counts, and every word costs a little: answers get short and right.",
        rewards=("accuracy(source='number')", "word_penalty"), models=("smollm2-135m",),
        rows=tuple(row for row in _digit_sums() if not _kept_back(row)),
        held_out=tuple(row for row in _digit_sums() if _kept_back(row))),
    "debate": PromptList(
        title="Debate",
        note="Topics for an opening statement. No rule can score these: rate the completions by hand.",
        rewards=("length_target(target=60, width=20, unit='words')",), models=("smollm2-135m",),
        rows=_prompts(
            "Give a short opening statement for the motion: Schools should not give homework.",
            "Give a short opening statement against the motion: Schools should not give homework.",
            "Give a short opening statement for the motion: Every city should ban cars from its centre.",
            "Give a short opening statement against the motion: Every city should ban cars from its centre.",
            "Give a short opening statement for the motion: Children under 16 should not use social media.",
            "Give a short opening statement for the motion: Students should learn to cook at school.",
            "Give a short opening statement against the motion: Exams should be replaced by projects.",
            "Give a short opening statement for the motion: Public transport should be free."),
        held_out=_prompts("Give a short opening statement for the motion: Museums should be free for everyone.",
                          "Give a short opening statement against the motion: Zoos do more good than harm.")),
}
