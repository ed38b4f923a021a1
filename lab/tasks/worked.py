"""Worked examples: prompts with a completion to imitate, for a cold start.

They come from the training side of the arithmetic tasks, or from rows of your own that have a completion. Leaves out
how they are learned (`lab.training.cold_start`).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from lab.tasks import arithmetic
from lab.tasks.sources import ALIASES, Row, Task, TaskError, load_task, read_jsonl, rows_task

WORKED = "worked"


def load_examples(source: Any, task: Any, seed: int) -> Task:
    """Rows with `prompt` and `completion`, in an endless seeded order.

    `source` is a list of rows, a JSONL file, or "worked" for what the built-in arithmetic `task` works out itself.
    Raises TaskError for examples that cannot be used.
    """
    if source == WORKED:
        return _arithmetic(task, seed)
    if isinstance(source, (str, Path)):
        rows = read_jsonl(Path(source))
    else:
        load_task(source)  # refuses what has no prompt
        rows = [row if isinstance(row, dict) else {"prompt": row} for row in source]
    for number, row in enumerate(rows, start=1):
        if not completion_text(row):
            raise TaskError(f"Example {number} of the cold start has no completion to learn from (columns: {', '.join(row)}). Each "
                            f"example needs a prompt and a completion.")
    return rows_task("cold start", rows, seed)


def completion_text(row: Row) -> str:
    """The completion; of a list of messages, as conversational data has it, the last one's text."""
    completion = row.get("completion") or ""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


def _arithmetic(task: Any, seed: int) -> Task:
    names = ALIASES.get(task, task).split("+") if isinstance(task, str) else []
    if not names or not set(names) <= set(arithmetic.TASKS):
        raise TaskError(f"Only the arithmetic tasks ({', '.join(arithmetic.TASKS)}) work out their own examples. For another task give "
                        f"cold_start rows or a JSONL file with prompt and completion.")

    def row_at(position: int) -> Row:
        problem = arithmetic.draw(names[position % len(names)], random.Random(f"{seed}:worked:{position}"))
        return {**problem.row(), "completion": f"<think>{problem.steps}</think><answer>{problem.answer}</answer>"}

    return Task(name="worked", title="Worked examples", note=f"Worked examples of {task}.", rewards=(), examples=(), _row_at=row_at)
