"""Rewards for length: at a target, as short as it goes, not overlong, scaled by whether the answer is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lab.rewards.builtin import accuracy
from lab.rewards.common import UNITS, RewardFunction, builtin, check_choice, check_positive, lengths_of
from lab.rewards.contract import text_of


@builtin
def length_target(target: float = 50, width: float = 20, unit: str = "tokens") -> RewardFunction:
    """1 at the target length, falling smoothly on both sides: exp(−½ ((length − target) / width)²).

    `unit` is "tokens" (the stop token included), "words" or "characters".

    >>> length_target(target=2, width=1, unit="words")(completions=["two words", "one"])
    [1.0, 0.6065306597126334]

    Source: the lab's own; a Gaussian, so that near misses still tell which way to go.
    """
    check_choice("unit", unit, UNITS)
    check_positive("width", width)

    def length_target(completions: Sequence[Any], completion_ids: Sequence[Any] = (), **columns: Any) -> list[float]:
        lengths = lengths_of(completions, completion_ids, unit)
        return [math.exp(-0.5 * ((length - target) / width) ** 2) for length in lengths]

    return length_target


@builtin
def brevity() -> RewardFunction:
    """1 divided by the number of words: one word earns 1, ten words 0.1; an empty completion earns 0.

    >>> brevity()(completions=["Apple", "An apple", ""])
    [1.0, 0.5, 0.0]

    Source: the lab's own, for first runs whose effect can be seen in a few steps.
    """

    def brevity(completions: Sequence[Any], **columns: Any) -> list[float]:
        counts = [len(text_of(completion).split()) for completion in completions]
        return [1 / count if count else 0.0 for count in counts]

    return brevity


@builtin
def word_penalty(per_word: float = 0.02) -> RewardFunction:
    """Minus `per_word` for every word, so that an accuracy reward beside it is not bought with chatter.

    >>> word_penalty(per_word=0.5)(completions=["three little words"])
    [-1.5]

    Source: the lab's own; the length term of Kimi k1.5 (arXiv 2501.12599, section 2.3.3) in its plainest form.
    """

    def word_penalty(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [-per_word * len(text_of(completion).split()) for completion in completions]

    return word_penalty


@builtin
def soft_overlong(max_length: int = 256, cache: int = 64) -> RewardFunction:
    """0 up to `max_length − cache` tokens, then falling in a straight line to −1 at `max_length` and beyond.

    >>> soft_overlong(max_length=100, cache=20)(completions=[""] * 3, completion_ids=[[0] * 80, [0] * 90, [0] * 101])
    [0.0, -0.5, -1.0]

    Source: DAPO (arXiv 2503.14476), equation 13.
    """
    check_positive("max_length", max_length)
    if not 0 <= cache <= max_length:
        raise ValueError(f"cache is {cache}: it must lie between 0 and max_length ({max_length}).")

    def soft_overlong(completions: Sequence[Any], completion_ids: Sequence[Any], **columns: Any) -> list[float]:
        excess = [len(ids) - (max_length - cache) for ids in completion_ids]
        return [0.0 if tokens <= 0 else -1.0 if tokens > cache else -tokens / cache for tokens in excess]

    return soft_overlong


@builtin
def cosine(max_length: int = 256, min_value_wrong: float = -1.0, max_value_wrong: float = -0.5,
           min_value_correct: float = 0.5, max_value_correct: float = 1.0, source: str = "answer",
           column: str = "answer") -> RewardFunction:
    """Right answers earn more the shorter they are, wrong ones lose less the longer they thought, along a cosine.

    A right answer goes from `max_value_correct` at length 0 to `min_value_correct` at `max_length` tokens, a wrong one
    from `min_value_wrong` to `max_value_wrong`. `source` and `column` are those of accuracy.

    >>> cosine(max_length=100)(completions=["<answer>1</answer>", "<answer>2</answer>"], answer=["1", "1"],
    ...                        completion_ids=[[0] * 50, [0] * 50])
    [0.75, -0.75]

    Source: Demystifying Long Chain-of-Thought Reasoning (arXiv 2502.03373), appendix C.1.
    """
    check_positive("max_length", max_length)
    is_right = accuracy(source=source, column=column)

    def value(right: float, length: int) -> float:
        start, end = (max_value_correct, min_value_correct) if right else (min_value_wrong, max_value_wrong)
        share_left = (1 + math.cos(math.pi * min(1.0, length / max_length))) / 2
        return end + (start - end) * share_left

    def cosine(completions: Sequence[Any], completion_ids: Sequence[Any], **columns: Any) -> list[float | None]:
        rights = is_right(completions=completions, **columns)
        return [None if right is None else value(right, len(ids)) for right, ids in zip(rights, completion_ids, strict=True)]

    return cosine
