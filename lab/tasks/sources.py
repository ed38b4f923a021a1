"""Where prompts come from: built-in tasks, reasoning-gym's, examinations, typed prompts, rows of your own, files.

A task is endless and has a cursor: `rows(start, count)` gives the same rows for the same seed and position on every
machine, so a resumed run meets the prompts it would have met. Held-out rows never occur among them.
Leaves out rewards, chat templates, and anything that needs torch.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.errors import Unreadable, did_you_mean, read_text
from lab.tasks import arithmetic, exam, free, gym
from lab.tasks.errors import TaskError
from lab.tasks.tables import FORMATS, read_table

Row = dict[str, Any]


@dataclass
class Task:
    """An endless, seeded stream of rows; each row has a `prompt` and the columns its rewards need."""

    name: str
    title: str
    note: str  # one sentence: what is asked, and of which model
    rewards: tuple[str, ...]  # names that suit this task
    examples: tuple[str, ...]  # prompts to show
    system_prompt: str | None = None  # None: the model's own default
    models: tuple[str, ...] = ()  # models it is made for; empty: any
    size: int | None = None  # number of different training rows; None: drawn without end
    _row_at: Callable[[int], Row] = field(default=lambda position: {}, repr=False)
    _held_out: Callable[[int], list[Row]] = field(default=lambda count: [], repr=False)

    def rows(self, start: int, count: int) -> list[Row]:
        """The rows at positions start … start + count − 1 of the stream."""
        return [self._row_at(position) for position in range(start, start + count)]

    def held_out(self, count: int = 64) -> list[Row]:
        """At most `count` rows that never occur in `rows`, always the same ones; empty if nothing is held out."""
        return self._held_out(count)


def load_task(task: str | Path | Sequence[Any], seed: int = 0, *, held_out_share: float = 0.0) -> Task:
    """A Task from a built-in name, a mixture `"add2+sub2"`, `"gym/chain_sum"`, a list of prompts or of dict rows, or a path
    to a JSONL, CSV or Parquet file with a column prompt.

    `held_out_share` keeps that part of a list or file out of training, chosen by the prompt's text alone; rows whose
    column `held_out` is true are kept out as well. Raises TaskError.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, Path) or (isinstance(task, str) and task.lower().endswith(tuple(FORMATS))):
        path = Path(task)
        return rows_task(path.stem, read_rows(path), seed, held_out_share)
    if isinstance(task, str):
        return _builtin(task, seed)
    if isinstance(task, Sequence):
        return rows_task("prompts", [_as_row(row, number) for number, row in enumerate(task, start=1)], seed, held_out_share)
    raise TaskError(f"A task is a name, a list of prompts or rows, or a path to a file of rows, not {type(task).__name__}.")


def task_table() -> list[dict[str, Any]]:
    """Name, title, note, suitable rewards, models and examples of every built-in task, for pickers and documentation."""
    return [dict(name=task.name, title=task.title, note=task.note, rewards=task.rewards, models=task.models,
                 examples=task.examples) for task in (load_task(name) for name in BUILTIN_TASKS)]


def task_name(task: Any) -> str:
    """A task in a few words, for lists and titles: a file by its name alone."""
    if isinstance(task, list):
        return f"{len(task)} rows"
    text = str(task)
    return re.sub(r"-[0-9a-f]{8}$", "", Path(text).stem) if text.lower().endswith(tuple(FORMATS)) else text


def rows_task(name: str, rows: list[Row], seed: int, held_out_share: float = 0.0) -> Task:
    """A Task that goes through `rows` in a new seeded order each epoch."""
    kept_back = [row for row in rows if row.get("held_out") is True or is_held_out(row["prompt"], held_out_share)]
    training = [row for row in rows if not (row.get("held_out") is True or is_held_out(row["prompt"], held_out_share))]
    if not training:
        raise TaskError(f"Task {name} has no rows to train on." if not rows else
                        f"Holding out {held_out_share:.0%} of task {name} leaves no rows to train on: give more rows.")
    has_answers = any(row.get("answer") is not None for row in rows)
    return Task(name=name, title=name, note=f"{len(training)} rows of your own.",
                rewards=_rewards_for(rows, has_answers),
                examples=tuple(prompt_text(row["prompt"]) for row in training[:5]), size=len(training),
                _row_at=_shuffled(training, seed), _held_out=lambda count: kept_back[:count])


def read_rows(path: Path) -> list[Row]:
    """The rows of a file: JSONL, JSON, CSV or Parquet with a column prompt; empty cells are not there. Raises TaskError."""
    if path.suffix.lower() == ".jsonl":
        return read_jsonl(path)
    rows = [{column: value for column, value in row.items() if value not in (None, "")} for row in read_table(path).rows]
    return [_as_row(row, number, f"{path}, row") for number, row in enumerate(rows, start=1)]


def read_jsonl(path: Path) -> list[Row]:
    """The rows of a JSONL file, one object with a `prompt` per line; blank lines are skipped. Raises TaskError."""
    try:
        text = read_text(path)
    except Unreadable as error:
        raise TaskError(str(error)) from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise TaskError(f"{path} is empty: it needs one JSON object with a prompt per line.")
    return [_row_of_line(path, number, line) for number, line in lines]


def prompt_text(prompt: str | Sequence[Row]) -> str:
    """What the user says: the prompt itself, or the last user message of a list of messages."""
    if isinstance(prompt, str):
        return prompt
    return next((str(message.get("content")) for message in reversed(prompt) if message.get("role") == "user"), "")


def _rewards_for(rows: list[Row], has_answers: bool) -> tuple[str, ...]:
    if all(str(row.get("task", "")).startswith(gym.PREFIX) for row in rows):
        return (gym.REWARD, "format")
    if all(row.get("choices") for row in rows):
        return (exam.REWARD,)
    return ("accuracy", "format") if has_answers else ("brevity",)


def _row_of_line(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deeply nested"
        raise TaskError(f"{path}, line {number}: not valid JSON ({reason}). Each line is one object, such as "
                        f'{{"prompt": "What is 2 + 3?", "answer": "5"}}.') from error
    return _as_row(row, number, f"{path}, line")


def _as_row(row: Any, number: int, where: str = "Row") -> Row:
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, dict):
        raise TaskError(f"{where} {number}: a {type(row).__name__}; expected an object with a prompt.")
    if "prompt" not in row:
        raise TaskError(f"{where} {number}: there is no column prompt (columns: {', '.join(map(str, row)) or 'none'}). Rename "
                        f"the column that holds the question to prompt.")
    if not _is_prompt(row["prompt"]):
        raise TaskError(f"{where} {number}: the prompt is empty or not text; expected a text or a list of messages with "
                        f"role and content.")
    return dict(row)


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return (isinstance(prompt, list) and all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in prompt)
            and bool(prompt_text(prompt).strip()))


def is_held_out(prompt: Any, share: float) -> bool:
    """Whether a prompt belongs to the held-out share of a list or file. Depends on its text alone, on every machine."""
    digest = hashlib.sha256(json.dumps(prompt).encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def _shuffled(rows: list[Row], seed: int) -> Callable[[int], Row]:
    """Row at a position of an endless stream in which every epoch is its own seeded permutation."""
    orders: dict[int, list[int]] = {}

    def row_at(position: int) -> Row:
        epoch, place = divmod(position, len(rows))
        if epoch not in orders:
            orders.clear()
            order = list(range(len(rows)))
            random.Random(f"{seed}:{epoch}").shuffle(order)
            orders[epoch] = order
        return dict(rows[orders[epoch][place]])

    return row_at


# -- built-in tasks


def _builtin(name: str, seed: int) -> Task:
    parts = [part.strip() for part in ALIASES.get(name, name).split("+")]
    for part in parts:
        if part not in BUILTIN_TASKS and not part.startswith(gym.PREFIX):
            raise TaskError(f"There is no task {part!r}.{did_you_mean(part, BUILTIN_TASKS)} Built-in: {', '.join(BUILTIN_TASKS)}; several "
                            f"can be mixed as in add2+sub2. A file must end in {', '.join(FORMATS)}; prompts of your own go in a list.")
    tasks = [BUILTIN_TASKS.get(part, _gym)(part, seed) for part in parts]
    return tasks[0] if len(tasks) == 1 else _mixture(name, tasks)


def _mixture(name: str, tasks: list[Task]) -> Task:
    """Tasks taking turns, row by row."""
    count = len(tasks)

    def held_out(wanted: int) -> list[Row]:
        parts = [task.held_out(-(-wanted // count)) for task in tasks]
        return [row for turn in zip(*parts, strict=False) for row in turn][:wanted]

    first = tasks[0]
    return Task(name=name, title=" + ".join(task.title for task in tasks), note=" ".join(task.note for task in tasks),
                rewards=first.rewards, examples=tuple(example for task in tasks for example in task.examples[:1]), models=first.models,
                system_prompt=first.system_prompt,
                _row_at=lambda position: tasks[position % count]._row_at(position // count), _held_out=held_out)


def _arithmetic(name: str, seed: int) -> Task:
    title, note = ARITHMETIC[name]

    def row_at(position: int) -> Row:
        return arithmetic.draw(name, random.Random(f"{seed}:{name}:{position}")).row()

    def held_out(count: int) -> list[Row]:
        # parity and the like have few held-out prompts, so the search ends after enough draws without a new one
        rng, found = random.Random(f"held out:{name}"), {}
        for _ in range(20 * count):
            row = arithmetic.draw(name, rng, held_out=True).row()
            found.setdefault(row["prompt"], row)
            if len(found) == count:
                break
        return list(found.values())

    examples = tuple(row_at(position)["prompt"] for position in range(4))
    return Task(name=name, title=title, note=note, rewards=("accuracy", "format"), examples=examples, models=("tiny",),
                _row_at=row_at, _held_out=held_out)


def _free(name: str, seed: int) -> Task:
    source = free.TASKS[name]
    return Task(name=name, title=source.title, note=source.note, rewards=source.rewards, models=source.models,
                examples=tuple(row["prompt"] for row in source.rows[:4]), size=len(source.rows),
                _row_at=_shuffled(list(source.rows), seed), _held_out=lambda count: [dict(row) for row in source.held_out[:count]])


def _exam(name: str, seed: int) -> Task:
    rows = list(exam.questions(name))
    training, kept_back = [r for r in rows if not _kept_back(r)], [r for r in rows if _kept_back(r)]
    return Task(name=name, title=exam.LANGUAGES[name][0], note=f"{len(rows)} multiple-choice questions; the answer is a letter.",
                rewards=(exam.REWARD,), models=("smollm2-135m",), examples=tuple(row["prompt"] for row in training[:4]),
                size=len(training), _row_at=_shuffled(training, seed), _held_out=lambda count: [dict(row) for row in kept_back[:count]])


def _kept_back(row: Row) -> bool:
    return hashlib.sha256(row["question"].encode()).digest()[0] % 6 == 0


def _gym(task: str, seed: int) -> Task:
    """A task of reasoning-gym. Its problems are drawn when rows are asked for; until then the package is not imported."""
    name = gym.check_name(task)
    return Task(name=task, title=f"reasoning-gym: {name.replace('_', ' ')}", note=gym.VETTED[name], rewards=(gym.REWARD, "format"),
                examples=(), _row_at=lambda position: gym.row(name, seed, position), _held_out=lambda count: gym.held_out_rows(name, count))


ARITHMETIC = {
    "add2": ("Add two numbers", "Sums of two numbers from 1 to 99."),
    "sub2": ("Subtract", "Differences of two numbers from 1 to 99, never below zero."),
    "add3": ("Add three numbers", "Sums of three numbers from 1 to 30."),
    "chain": ("Chain of four", "Four one-digit numbers added and subtracted: guessing fails, working it out succeeds."),
    "parity": ("Even or odd", "Whether a number is even or odd."),
    "cmp": ("Compare", "Whether one number is greater than another."),
}
BUILTIN_TASKS: dict[str, Callable[[str, int], Task]] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(free.TASKS, _free),
    **dict.fromkeys(exam.LANGUAGES, _exam),
}
ALIASES = {"arithmetic": "add2+sub2"}
