"""Built-in reward functions. Each name is a factory: its parameters make a function with TRL's signature.

    reward = accuracy(source="boxed")
    reward(completions=[r"So \\boxed{4}."], answer=["4"])   # [1.0]

Leaves out anything that needs more than the completion, its row and the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lab.rewards.contract import text_of
from lab.rewards.extract import SOURCES, extract, same_answer

RewardFunction = Callable[..., list[float | None]]
BUILTINS: dict[str, Callable[..., RewardFunction]] = {}
UNITS = ("tokens", "words", "characters")


def builtin(factory: Callable[..., RewardFunction]) -> Callable[..., RewardFunction]:
    BUILTINS[factory.__name__] = factory
    return factory


@builtin
def accuracy(source: str = "answer", column: str = "answer", tag: str = "answer", ignore_case: bool = False) -> RewardFunction:
    r"""1 if the answer found in the completion equals the row's answer, else 0.

    `source`: "answer" takes it from exactly one `<answer>…</answer>` (`tag` renames it), "boxed" from the last balanced
    `\boxed{…}`, "number" takes the last number. `column` names the row's column with the right answer; a row without
    one gets None. Numbers are compared as exact fractions, everything else as text with white space tidied.

    >>> accuracy()(completions=["<think>1+1</think><answer>2</answer>", "2"], answer=["2", "2"])
    [1.0, 0.0]

    Source: the rule-based accuracy reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2).
    """
    _check_choice("source", source, SOURCES)

    def accuracy(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        expected = _column(columns, column)
        return [None if right is None else float(_is_right(text_of(completion), right))
                for completion, right in zip(completions, expected, strict=True)]

    def _is_right(text: str, right: Any) -> bool:
        given = extract(text, source, tag)
        return given is not None and same_answer(given, str(right), ignore_case)

    return accuracy


@builtin
def format(think: str | None = "think", answer: str = "answer") -> RewardFunction:
    """1 if the whole completion is `<think>…</think><answer>…</answer>`, one of each tag, nothing else, else 0.

    Neither part may be empty; white space around and between the parts is allowed. `think` and `answer` rename the
    tags; `think=None` asks for the answer tag alone.

    >>> format()(completions=["<think>1+1=2</think> <answer>2</answer>", "<answer>2</answer>"])
    [1.0, 0.0]

    Source: the format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2).
    """
    tags = [tag for tag in (think, answer) if tag]

    def format(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(_has_parts(text_of(completion), tags)) for completion in completions]

    return format


@builtin
def length_target(target: float = 50, width: float = 20, unit: str = "tokens") -> RewardFunction:
    """1 at the target length, falling smoothly on both sides: exp(−½ ((length − target) / width)²).

    `unit` is "tokens" (the stop token included), "words" or "characters".

    >>> length_target(target=2, width=1, unit="words")(completions=["two words", "one"])
    [1.0, 0.6065306597126334]
    """
    _check_choice("unit", unit, UNITS)
    if not width > 0:
        raise ValueError(f"width is {width}: a number above 0 is needed.")

    def length_target(completions: Sequence[Any], completion_ids: Sequence[Any] = (), **columns: Any) -> list[float]:
        lengths = _lengths(completions, completion_ids, unit)
        return [math.exp(-0.5 * ((length - target) / width) ** 2) for length in lengths]

    return length_target


@builtin
def brevity() -> RewardFunction:
    """1 divided by the number of words: one word earns 1, ten words 0.1; an empty completion earns 0.

    >>> brevity()(completions=["Apple", "An apple", ""])
    [1.0, 0.5, 0.0]
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
    """

    def word_penalty(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [-per_word * len(text_of(completion).split()) for completion in completions]

    return word_penalty


def _has_parts(text: str, tags: list[str]) -> bool:
    """Whether `text` is one non-empty part per tag, in order, and each tag occurs once."""
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1 or not rest.startswith(opening):
            return False
        content, found, rest = rest[len(opening):].partition(closing)
        if not found or not content.strip():
            return False
        rest = rest.lstrip()
    return not rest


def _lengths(completions: Sequence[Any], completion_ids: Sequence[Any], unit: str) -> list[int]:
    if unit == "tokens":
        return [len(ids) for ids in completion_ids]
    texts = [text_of(completion) for completion in completions]
    return [len(text.split()) for text in texts] if unit == "words" else [len(text) for text in texts]


def _column(columns: dict[str, Any], name: str) -> Sequence[Any]:
    if name not in columns:
        known = [key for key in columns if key not in ("prompts", "completion_ids", "trainer_state", "log_extra", "log_metric")]
        raise ValueError(f"the task's rows have no column {name!r} (they have {', '.join(known) or 'only prompts'}): "
                         f"choose another task or name the column with column='…'.")
    return columns[name]


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(choices)}.")
