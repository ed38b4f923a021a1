"""The reward bench: given completions scored by reward functions, with everything that tells a good reward from a bad one.

    result = bench("my_reward.py", open_run("my-run"))     # or a JSONL of completions, or groups, or plain texts
    result.summary, result.completions, result.hostile     # DataFrames
    print(result)                                           # the same as `grpo-lab rewards test` prints

Page, notebook and command line use the same call. Unlike training, a function that breaks on a completion loses only that
completion: the others are scored, and the failure names its row and the line of the function's file. Leaves out where
completions come from (`completions`), the statistics (`relative`) and the sandbox that files run in (`sandbox`).
"""

from __future__ import annotations

import dataclasses
import re
import time
import traceback
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lab.records import Completion, Group
from lab.rewards import relative
from lab.rewards.completions import groups_of
from lab.rewards.contract import Batch, Outcome, RewardError, TrainerState, call
from lab.rewards.hostile import Attempt, honest, hostile_set
from lab.rewards.resolve import Reward, resolve
from lab.rewards.scoring import batch_of

if TYPE_CHECKING:
    import pandas as pd

MOST_TRIES = 12  # rows left out one after the other before each row is asked alone
STOPPED = ("timeout", "memory", "crashed", "protocol")  # each costs a deadline or a new worker, so the others are not asked again
WHOLE = (*STOPPED, "syntax", "signature", "unavailable")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A completion that a function could not score; `row` counts through all of them from 0, None is every one."""

    row: int | None
    line: int | None  # of the function's file
    message: str
    traceback: str = ""


@dataclasses.dataclass
class Column:
    """What one function said about every completion, row by row."""

    name: str
    values: list[float | None]
    failures: list[Failure]
    seconds: float  # of the whole call, or of all calls where rows had to be left out
    doc: str = ""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)  # log_metric
    extra: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # log_extra
    printed: str = ""


@dataclasses.dataclass
class HostileRow:
    """One text of the hostile set and what each function gave it; `values` are in the order of the functions, None where one failed."""

    attempt: Attempt
    values: list[float | None]
    total: float | None
    earns: bool  # more than the least that any of them gets
    paid_by: list[str]


@dataclasses.dataclass
class BenchResult:
    """Scored completions. `columns` and `weights` are one per function; rows go through the groups in order."""

    groups: list[Group]
    columns: list[Column]
    weights: list[float]
    scale_rewards: str
    hostile_rows: list[HostileRow] = dataclasses.field(default_factory=list)
    honest_total: float | None = None  # of the right answer in its place; None where no answer is known

    @property
    def names(self) -> list[str]:
        """The functions' names, in the order in which they were given."""
        return [column.name for column in self.columns]

    @cached_property
    def rows(self) -> list[list[list[float | None]]]:
        """rows[group][completion][function]"""
        return by_group(list(zip(*(column.values for column in self.columns), strict=True)), self.groups)

    @cached_property
    def weighed_rows(self) -> list[list[list[float | None]]]:
        """`rows` as totals are made from them: a completion on which a function with a weight failed has nothing to be added up."""
        broken = {row for column, weight in zip(self.columns, self.weights, strict=True) if weight for row in failed_rows(column)}
        flat = [row for group in self.rows for row in group]
        return by_group([[None] * len(row) if place in broken else row for place, row in enumerate(flat)], self.groups)

    @cached_property
    def totals(self) -> list[list[float | None]]:
        """totals[group][completion]: the weighted reward as training counts it; None where no function applies."""
        return relative.totals_of(self.weighed_rows, self.weights)

    @cached_property
    def statistics(self) -> dict[str, relative.Statistics]:
        """Of each function by name, and of the total as "reward"."""
        lengths = [[length_of(c) for c in group.completions] for group in self.groups]
        of_each = {c.name: relative.describe(by_group(c.values, self.groups), lengths) for c in self.columns}
        return {**of_each, "reward": relative.describe(self.totals, lengths)}

    @cached_property
    def advantages(self) -> list[list[float]]:
        """As training weighs them by default: the sum of the rewards compared within its group."""
        return relative.sum_then_normalize(self.totals, self.scale_rewards)

    @property
    def summary(self) -> pd.DataFrame:
        """One row per function and one for the total."""
        import pandas as pd

        shares = dict(zip(self.names, relative.variance_shares(self.weighed_rows, self.weights), strict=True))
        weights = dict(zip(self.names, self.weights, strict=True))
        timed = {c.name: c for c in self.columns}
        rows = {name: {"weight": weights.get(name), "scored": s.scored, "failed": len(failed_rows(timed[name])) if name in timed else None,
                       "mean": s.mean, "std": s.std, "within": s.within, "dead": s.dead, "dead_low": s.dead_low, "dead_high": s.dead_high,
                       "groups": s.groups, "length": s.length_correlation, "share": shares.get(name),
                       "ms": 1000 * timed[name].seconds if name in timed else None} for name, s in self.statistics.items()}
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def completions(self) -> pd.DataFrame:
        """One row per completion: prompt, completion, each function, reward, both advantages, rank, and why one failed."""
        import pandas as pd

        other = relative.normalize_then_sum(self.weighed_rows, self.weights)
        failed = {(f.row, c.name): f for c in self.columns for f in c.failures}
        table, row = [], 0
        for k, (group, places) in enumerate(zip(self.groups, relative.ranks(self.totals), strict=True)):
            for i, completion in enumerate(group.completions):
                why = "; ".join(f"{name}: {f.message}" for name in self.names if (f := failed.get((row, name)) or failed.get((None, name))))
                table.append({"group": k, "prompt": group.prompt, "completion": completion.text,
                              **dict(zip(self.names, self.rows[k][i], strict=True)), "reward": self.totals[k][i],
                              "advantage": self.advantages[k][i], "advantage_normalize_then_sum": other[k][i], "rank": places[i],
                              "failure": why or None})
                row += 1
        return pd.DataFrame(table)

    @property
    def failures(self) -> pd.DataFrame:
        """One row per failure: function, row (empty: every one), line, message."""
        import pandas as pd

        found = [{"function": c.name, "row": f.row, "line": f.line, "message": f.message} for c in self.columns for f in c.failures]
        return pd.DataFrame(found, columns=["function", "row", "line", "message"]).astype({"row": "Int64", "line": "Int64"})

    @property
    def hostile(self) -> pd.DataFrame:
        """One row per hostile text: what it gets from each function, whether it earns, who pays, and what was overlooked."""
        import pandas as pd

        rows = [{"kind": h.attempt.kind, "text": h.attempt.text, **dict(zip(self.names, h.values, strict=True)), "reward": h.total,
                 "earns": h.earns, "paid_by": ", ".join(h.paid_by), "why": h.attempt.why} for h in self.hostile_rows]
        return pd.DataFrame(rows, columns=["kind", "text", *self.names, "reward", "earns", "paid_by", "why"])

    def against(self, other: BenchResult) -> pd.DataFrame:
        """This result beside another on the same completions: one row per measure, with both values."""
        import pandas as pd

        mine, theirs = self.statistics["reward"], other.statistics["reward"]
        rows = {"groups with signal": (mine.groups - mine.dead, theirs.groups - theirs.dead),
                "dead groups, all lowest": (mine.dead_low, theirs.dead_low), "dead groups, all highest": (mine.dead_high, theirs.dead_high),
                "mean reward": (mine.mean, theirs.mean), "mean std within groups": (mine.within, theirs.within),
                "correlation with length": (mine.length_correlation, theirs.length_correlation),
                "hostile texts that earn": (sum(h.earns for h in self.hostile_rows), sum(h.earns for h in other.hostile_rows)),
                "ranks changed": (self.rank_changes(other), None)}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["this", "other"])

    def rank_changes(self, other: BenchResult) -> int:
        """How many completions have another place in their group than under `other`."""
        pairs = zip(relative.ranks(self.totals), relative.ranks(other.totals), strict=True)
        return sum(a != b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))

    def __str__(self) -> str:
        from lab.rewards.report import report

        return report(self)


def bench(rewards: Any, on: Any, *, weights: Sequence[float] | None = None, scale_rewards: str = "group", count: int = 128,
          hostile: bool = True, system_prompt: str | None = None) -> BenchResult:
    """Scores completions with reward functions, as training would call them.

    rewards: names, functions with TRL's signature, or paths to `.py` files, as in `RunConfig`. on: groups, an open run (its newest
    `count` completions), the path of a JSONL with prompt and completion, or a list of texts. `hostile` adds the fixed
    hostile set for the first prompt. Raises RewardNotFound for a reward that cannot be made, ValueError for `on`.
    """
    resolved = resolve(rewards)
    weights = [1.0] * len(resolved) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(resolved):
        raise ValueError(f"There are {len(weights)} weights for {len(resolved)} reward functions: give one each.")
    groups = fresh(groups_of(on, count))
    result = BenchResult(groups, [score_rows(reward, groups, system_prompt) for reward in resolved], weights, scale_rewards)
    _fill_in(result)
    if hostile and groups:
        attempts, texts = hostile_texts(groups[0])
        add_hostile(result, attempts, [score_rows(reward, texts, system_prompt) for reward in resolved])
    return result


def score_rows(reward: Reward, groups: Sequence[Group], system_prompt: str | None = None) -> Column:
    """One function on all completions. A row that raises is left out and the rest is asked again; whoever fails on every row, or
    has to be stopped, is asked no further."""
    batch = batch_of(groups, TrainerState(), system_prompt)
    asked = _Asking(reward, batch)
    started = time.perf_counter()
    asked.ask(list(range(len(batch))))
    return Column(reward.name, asked.values, sorted(asked.failures, key=lambda f: -1 if f.row is None else f.row),
                  time.perf_counter() - started, reward.doc, asked.metrics, asked.extra)


def hostile_texts(group: Group) -> tuple[list[Attempt], list[Group]]:
    """The hostile set for a group's prompt, the honest answer first where it is known, as one group to score."""
    attempts = [attempt for attempt in (honest(group.row),) if attempt] + hostile_set(group.prompt, group.row)
    completions = [Completion(i, a.text, list(range(len(a.text.split()))), True) for i, a in enumerate(attempts)]
    return attempts, [Group(0, group.prompt, [], group.row, completions)]


def add_hostile(result: BenchResult, attempts: Sequence[Attempt], columns: Sequence[Column]) -> None:
    """A text earns if it gets more than the least that any of them gets; the functions that give it more pay for it."""
    rows = [list(row) for row in zip(*(column.values for column in columns), strict=True)]
    broken = {row for column, weight in zip(columns, result.weights, strict=True) if weight for row in failed_rows(column)}
    totals = [None if place in broken else relative.totals_of([[row]], result.weights)[0][0] for place, row in enumerate(rows)]
    known = [total for total in totals if total is not None]
    floor = min(known, default=0.0)
    least = [min((value for value in column.values if value is not None), default=0.0) for column in columns]
    for attempt, values, total in zip(attempts, rows, totals, strict=True):
        if attempt.kind == "right answer":
            result.honest_total = total
            continue
        earns = total is not None and total > floor + relative.DEAD_TOLERANCE
        payers = [name for name, weight, value, low in zip(result.names, result.weights, values, least, strict=True)
                  if weight and value is not None and weight * (value - low) > relative.DEAD_TOLERANCE]
        result.hostile_rows.append(HostileRow(attempt, values, total, earns, payers if earns else []))


def failed_rows(column: Column) -> list[int]:
    """The rows that a function could not score."""
    if any(failure.row is None for failure in column.failures):
        return list(range(len(column.values)))
    return [failure.row for failure in column.failures]


def fresh(groups: Sequence[Group]) -> list[Group]:
    """Copies without anybody's scores, numbered from 0, so that scoring changes nothing that was stored."""
    return [Group(place, g.prompt, g.prompt_ids, g.row, [Completion(c.index, c.text, c.token_ids, c.finished) for c in g.completions])
            for place, g in enumerate(groups)]


def by_group(values: Sequence[Any], groups: Sequence[Group]) -> list[list[Any]]:
    """A value per row, cut into groups."""
    taken = iter(values)
    return [[next(taken) for _ in group.completions] for group in groups]


def length_of(completion: Completion) -> int:
    """In tokens where they are known, else in words."""
    return len(completion.token_ids) or len(completion.text.split())


class _Asking:
    """Asks one function about rows until all have a value or a failure."""

    def __init__(self, reward: Reward, batch: Batch):
        self.reward, self.batch = reward, batch
        self.values: list[float | None] = [None] * len(batch)
        self.failures: list[Failure] = []
        self.metrics: dict[str, float] = {}
        self.extra: dict[str, list[Any]] = {}

    def ask(self, rows: list[int]) -> None:
        for _ in range(MOST_TRIES):
            error = self._try(rows)
            if error is None:
                return
            if getattr(error, "kind", "") in WHOLE or _misses_a_column(error):
                return self._fail(None, error)
            if error.row is None:
                return self._one_by_one(rows, error)
            self._fail([rows[error.row]], error)
            rows = rows[:error.row] + rows[error.row + 1:]
        self._one_by_one(rows)

    def _one_by_one(self, rows: list[int], together: RewardError | None = None) -> None:
        """Looks for the rows that fail. Where none does, what was wrong with them `together` would stop a training too."""
        errors: dict[int, RewardError] = {}
        for row in rows:
            if (error := self._try([row])) is not None:
                errors[row] = error
                if getattr(error, "kind", "") in WHOLE:
                    return self._fail(None, error)
        if len(errors) == len(self.batch) and len({(error.message, _line_of(error)) for error in errors.values()}) == 1:
            return self._fail(None, next(iter(errors.values())))
        if together is not None and not errors:
            self.values = [None] * len(self.batch)
            return self._fail(None, together)
        for row, error in errors.items():
            self._fail([row], error)

    def _try(self, rows: list[int]) -> RewardError | None:
        """Fills in what the function says about these rows, or returns what went wrong."""
        if not rows:
            return None
        try:
            outcome = call(self.reward.name, self.reward.function, _only(self.batch, rows))
        except RewardError as error:
            return error
        self._take(rows, outcome)
        return None

    def _take(self, rows: list[int], outcome: Outcome) -> None:
        for row, value in zip(rows, outcome.values, strict=True):
            self.values[row] = value
        for column, values in outcome.extra.items():
            whole = self.extra.setdefault(column, [None] * len(self.batch))
            for row, value in zip(rows, values, strict=True):
                whole[row] = value
        self.metrics.update(outcome.metrics)

    def _fail(self, rows: list[int] | None, error: RewardError) -> None:
        message = error.message + _missing_column(error, self.batch) + _stopped_at(error)
        failed = Failure(None, _line_of(error), message, getattr(error, "traceback", "") or _traceback_of(error))
        self.failures += [failed] if rows is None else [dataclasses.replace(failed, row=row) for row in rows]


def _only(batch: Batch, rows: list[int]) -> Batch:
    """The batch of these rows alone."""
    if len(rows) == len(batch):
        return batch

    def pick(values: list) -> list:
        return [values[row] for row in rows]

    lists = {f.name: pick(value) for f in dataclasses.fields(batch)
             if isinstance(value := getattr(batch, f.name), list) and len(value) == len(batch)}
    return dataclasses.replace(batch, **lists, columns={name: pick(values) for name, values in batch.columns.items()})


def _misses_a_column(error: RewardError) -> bool:
    return "which this task's rows do not have" in error.message


def _missing_column(error: RewardError, batch: Batch) -> str:
    """Says so where a KeyError asked for a column that the rows do not have."""
    found = re.search(r"KeyError: '(\w+)'", error.message)
    if not found or found[1] in batch.columns:
        return ""
    return f" The completions were stored without a column {found[1]}; there is {', '.join(batch.columns) or 'none besides the prompt'}."


def _stopped_at(error: RewardError) -> str:
    if error.row is None or getattr(error, "kind", "") not in STOPPED:
        return ""
    return f" It was at row {error.row}; no completion has a score until that is mended."


def _line_of(error: RewardError) -> int | None:
    if (line := getattr(error, "line", None)) is not None:
        return line
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    return frames[-1].lineno if frames else None


def _traceback_of(error: RewardError) -> str:
    return "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""


def _fill_in(result: BenchResult) -> None:
    """The scores also in the groups, as a trainer leaves them: for `lab.frames`, charts, and whoever draws a group."""
    from lab.rewards.scoring import summarise

    for group, rows, totals, advantages in zip(result.groups, result.rows, result.totals, result.advantages, strict=True):
        for completion, values, total, advantage in zip(group.completions, rows, totals, advantages, strict=True):
            completion.rewards = dict(zip(result.names, values, strict=True))
            completion.reward, completion.advantage = total, advantage
        summarise(group)
