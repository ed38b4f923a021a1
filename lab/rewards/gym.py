"""Scores for the tasks of reasoning-gym (`lab.tasks.gym`): the package's own scorer, run in the locked worker.

Some of its scorers were written for answers that are meant well. What reaches them here is short and plain, and whatever
they do, they do it behind the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.rewards.common import RewardFunction, builtin, check_choice, column_of, texts_of
from lab.rewards.extract import SOURCES, extract
from lab.rewards.locked import LockedCheck


@builtin
def gym_score(source: str = "answer", tag: str = "answer", partial: bool = False) -> RewardFunction:
    """1 if reasoning-gym's own scorer gives the answer in the completion full marks, else 0. For tasks named gym/….

    `source` and `tag` say where the answer is taken from, as in accuracy. With `partial` the scorer's own marks between
    0 and 1 count; many of its scorers give them to any text that contains the answer, which a model learns to abuse.

    >>> row = dict(task=["gym/gcd"], answer=["6"], metadata=[{}], prompts=["GCD of 12 and 18?"])
    >>> gym_score()(completions=["<answer>6</answer>"], **row)  # doctest: +SKIP
    [1.0]

    Source: reasoning-gym 0.1.25 (arXiv 2505.24760), `score_answer` of each task.
    """
    check_choice("source", source, SOURCES)
    check = LockedCheck("check_gym.py", preload=("reasoning_gym",), needs='"grpo-lab[gym]"', memory_gb=2)

    def gym_score(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        tasks, answers, metadata = (column_of(columns, name) for name in ("task", "answer", "metadata"))
        given = [extract(text, source, tag) for text in texts_of(completions)]
        mine = [row for row, task in enumerate(tasks) if isinstance(task, str) and task.startswith("gym/")]
        scores: list[float | None] = [0.0 if row in set(mine) else None for row in range(len(tasks))]
        asked = [row for row in mine if given[row]]
        marks = check([given[row] for row in asked], tasks=[tasks[row].removeprefix("gym/") for row in asked],
                      answers=[answers[row] for row in asked], metadata=[metadata[row] for row in asked]) if asked else []
        for row, mark in zip(asked, marks, strict=True):
            scores[row] = mark if partial or mark is None else float(mark > 0.999)
        return scores

    return gym_score
