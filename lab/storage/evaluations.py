"""Evaluations in the tables of the run store: a rollout of kind "eval" for each set of answers, an event with the metrics.

An evaluation of a step that a resume has superseded is left out, and so is an earlier one of the same step and adapter.
The functions work inside the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from lab.records import EvaluationRecord
from lab.storage.groups import insert_groups
from lab.storage.rows import to_json

KIND = "evaluation"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run. `greedy` and `sampled` are ids for `Store.rollout_groups`; sampled is None if nothing was."""

    step: int
    adapter: str  # base, tuned
    metrics: dict[str, float | None]
    greedy: int
    sampled: int | None
    created: float


def insert_evaluation(db: sqlite3.Connection, owner: str, run: str, attempt: int, record: EvaluationRecord, now: float) -> None:
    """An evaluation as a row and its answers as rollouts of their own; token arrays are not kept."""
    rollouts = {}
    for name in ("greedy", "sampled"):
        groups = getattr(record, name)
        rollouts[name] = _insert_rollout(db, owner, run, attempt, record, [g.prompt for g in groups], now) if groups else None
        insert_groups(db, rollouts[name], groups, tokens=False)
    data = {"adapter": record.adapter, "metrics": record.metrics, **rollouts}
    db.execute("INSERT INTO events VALUES (NULL,?,?,?,?,?,?)", (run, attempt, record.step, KIND, to_json(data), now))


def select_evaluations(db: sqlite3.Connection, run: str) -> list[Evaluation]:
    """Those of the run's newest line, by step, the base first."""
    rows = db.execute("SELECT step, data, created FROM events e WHERE run=? AND kind=? AND NOT EXISTS (SELECT 1 FROM attempts a "
                      "WHERE a.run = e.run AND a.attempt > e.attempt AND a.from_step < e.step) ORDER BY id", (run, KIND))
    newest = {}
    for row in rows:
        data: dict[str, Any] = json.loads(row["data"])
        newest[row["step"], data["adapter"]] = Evaluation(step=row["step"], created=row["created"], **data)
    return [newest[key] for key in sorted(newest)]


def _insert_rollout(db: sqlite3.Connection, owner: str, run: str, attempt: int, record: EvaluationRecord, prompts: list[str],
                    now: float) -> int:
    adapter = "base" if record.adapter == "base" else run
    values = (owner, run, attempt, record.step, "eval", adapter, record.step, "{}", to_json(prompts), "done", now)
    return db.execute("INSERT INTO rollouts VALUES (NULL,?,?,?,?,?,?,?,?,?,?,NULL,?)", values).lastrowid
