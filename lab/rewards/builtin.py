"""The rewards of a first reasoning run: the right answer, in the right form.

Each name is a factory: its parameters make a function with TRL's signature.

    reward = accuracy(source="boxed")
    reward(completions=[r"So \\boxed{4}."], answer=["4"])   # [1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.rewards.common import RewardFunction, answers_of, builtin, check_choice, column_of, texts_of
from lab.rewards.extract import SOURCES, extract, same_answer
from lab.rewards.locked import LockedCheck


@builtin
def accuracy(source: str = "answer", column: str = "answer", tag: str = "answer", ignore_case: bool = False,
             math: bool = False) -> RewardFunction:
    r"""1 if the answer found in the completion equals the row's answer, else 0.

    `source` says where the answer is taken from: "answer" from exactly one `<answer>…</answer>` (`tag` renames it),
    "boxed" from the last balanced `\boxed{…}`, "number" the last number, "hash" what follows the last `####` (GSM8K),
    "choice" the last letter that stands for a choice, as in `(B)` or `Answer: B`; "any" the first of boxed, answer, hash
    and number that is there. `column` names the row's column with the right answer; a row without one gets None.
    Numbers are compared as exact fractions, everything else as text with white space tidied. With `math` what is not
    equal so is compared as mathematics (x = 3 and 3, sets, surds, percent) by math-verify in a locked worker.

    >>> accuracy()(completions=["<think>1+1</think><answer>2</answer>", "2"], answer=["2", "2"])
    [1.0, 0.0]

    Source: the rule-based accuracy reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2).
    """
    check_choice("source", source, SOURCES)
    verify = LockedCheck("check_math.py", preload=("math_verify",), needs="math-verify", memory_gb=2) if math else None

    def accuracy(completions: Sequence[Any], log_extra: Any = None, **columns: Any) -> list[float | None]:
        expected = column_of(columns, column)
        given = [extract(text, source, tag) for text in texts_of(completions)]
        rewards = [None if right is None else float(answer is not None and same_answer(answer, str(right), ignore_case))
                   for answer, right in zip(given, expected, strict=True)]
        if verify is None:
            return rewards
        doubtful = [row for row, reward in enumerate(rewards) if reward == 0.0 and given[row]]
        verdicts = verify([given[row] for row in doubtful], expected=[str(expected[row]) for row in doubtful], at=doubtful,
                          of=len(rewards), log_extra=log_extra)
        for row, verdict in zip(doubtful, verdicts, strict=True):
            rewards[row] = verdict
        return rewards

    return accuracy


@builtin
def format(think: str | None = "think", answer: str = "answer") -> RewardFunction:
    """1 if the whole completion is `<think>…</think><answer>…</answer>`, one of each tag, nothing else, else 0.

    Neither part may be empty; white space around and between the parts is allowed. `think` and `answer` rename the
    tags; `think=None` asks for the answer tag alone. A tag that the chat template opened itself, as thinking models' do,
    counts as written.

    >>> format()(completions=["<think>1+1=2</think> <answer>2</answer>", "<answer>2</answer>"])
    [1.0, 0.0]

    Source: the format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2).
    """
    tags = [tag for tag in (think, answer) if tag]

    def format(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(_has_parts(text, tags)) for text in answers_of(completions, columns)]

    return format


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
