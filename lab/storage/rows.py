"""Rows of the run store as frozen dataclasses, and their JSON columns. Leaves out every query (`lab.store`)."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Run:
    """A row of `runs`. `step` is the newest step of the newest attempt, 0 before the first."""

    id: str
    owner: str
    name: str
    kind: str  # train, recorded
    config: dict[str, Any]
    status: str
    attempt: int
    error: str | None
    traceback: str | None
    created: float
    updated: float
    parent: str | None
    parent_step: int | None
    info: dict[str, Any]  # what the engine resolved: device, dtype, threads, versions
    step: int


@dataclass(frozen=True)
class Rollout:
    """A row of `rollouts`: completions sampled together, for a training step or for a Sample."""

    id: int
    owner: str
    run: str | None
    attempt: int | None
    step: int | None
    kind: str  # train, sample, eval
    adapter: str  # 'base' or a run id
    adapter_step: int | None
    settings: dict[str, Any]
    prompts: list[str]
    status: str
    error: str | None
    created: float


@dataclass(frozen=True)
class Command:
    """A row of `commands`. `result` of a sample names its rollout from the start."""

    id: int
    owner: str
    run: str | None
    kind: str
    args: dict[str, Any]
    status: str
    result: dict[str, Any]
    error: str | None
    created: float
    taken: float | None
    finished: float | None


@dataclass(frozen=True)
class Process:
    """A row of `processes`: the last sign of life of the engine or the web process."""

    role: str
    pid: int
    started: float
    heartbeat: float
    info: dict[str, Any]
    error: str | None
    traceback: str | None


@dataclass(frozen=True)
class Live:
    """A completion that is being written. `updated` is the cursor for the next `live(after=…)`."""

    rollout: int
    owner: str
    run: str | None
    step: int | None
    kind: str
    prompt: str
    group: int
    index: int
    text: str
    n_tokens: int
    ended: bool
    updated: float


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a run at a step: a live change, a resume, a failed reward, a hand score."""

    id: int
    run: str
    attempt: int
    step: int
    kind: str
    data: dict[str, Any]
    created: float


@dataclass(frozen=True)
class Steps:
    """Metrics of the steps after a cursor, as a table: `rows[i]` is [step, one value per column]; None = not applicable.

    A reader passes `cursor` on as the next `after`. When `attempt` differs from the one it saw, the run was resumed:
    it starts again from 0. `stride` > 1 says that only every stride-th step is there (and the last).
    """

    attempt: int
    columns: list[str]
    rows: list[list[float | None]]
    cursor: int
    stride: int


def record_of(kind: type, row: sqlite3.Row) -> Any:
    """A dataclass from a row; columns that hold JSON are decoded."""
    return kind(**{f.name: json.loads(row[f.name]) if f.name in _JSON_COLUMNS else row[f.name] for f in fields(kind)})


_JSON_COLUMNS = {"config", "info", "settings", "prompts", "args", "result", "data"}


def to_json(value: Any) -> str:
    """Strict JSON: NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """numpy scalars and arrays as numbers; anything else a task's row may hold, as its text."""
    return _finite(value.tolist()) if isinstance(value, (np.generic, np.ndarray)) else str(value)
