"""The run store: one SQLite file that both processes share, the seam between web page and engine.

The engine writes steps, groups, tokens and partial texts and takes commands; the page reads them and sends commands. A
step is one transaction, so a reader never sees half of one. Rows that a resume does again belong to a new attempt:
readers see the newest line of a run, superseded rows stay readable by naming their attempt. Every row has an owner
within reach; whoever answers a request compares it. Leaves out: torch, DataFrames (`lab.frames`), and any judgement of
what the numbers mean. The file must lie on a local disk: SQLite's write-ahead log does not work over a network share.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.records import EvaluationRecord, Group, StepRecord
from lab.storage.database import Database
from lab.storage.evaluations import Evaluation, insert_evaluation, select_evaluations
from lab.storage.groups import drop_arrays, insert_arrays, insert_groups, select_groups
from lab.storage.own_files import at_home
from lab.storage.rows import Command, Live, Process, Rollout, Run, RunEvent, Steps, record_of, to_json

FILE_NAME = "lab.sqlite3"
LOCAL_OWNER = "local"  # whoever runs the lab from Python or the command line
ALIVE_STATUSES = ("queued", "loading", "training", "paused")  # the engine has the run, or will take it
REUSED_ARRAYS = ("sampling_logps", "old_logps", "ref_logps")  # do not change when a rollout is used again


class Store(Database):
    """Records in, records out. May be used from any thread; each thread has its own connection."""

    _last_live = 0.0  # the newest cursor that `write_live` gave out

    # -- runs

    def create_run(self, config: dict[str, Any], *, name: str, owner: str = LOCAL_OWNER, kind: str = "train",
                   status: str = "queued", parent: str | None = None, parent_step: int | None = None,
                   info: dict[str, Any] | None = None) -> str:
        """A new run and its id, which is also the name of its folder."""
        run, now = _new_id(name), time.time()
        with self._write() as db:
            db.execute("INSERT INTO runs VALUES (?,?,?,?,?,?,1,NULL,NULL,?,?,?,?,?)",
                       (run, owner, name, kind, to_json(config), status, now, now, parent, parent_step, to_json(info or {})))
            db.execute("INSERT INTO attempts VALUES (?,1,?,?)", (run, parent_step or 0, now))
        return run

    def run(self, run: str) -> Run | None:
        """The run with this id; None for an unknown one."""
        return _one(self.runs(run=run))

    def runs(self, *, owner: str | None = None, name: str | None = None, run: str | None = None) -> list[Run]:
        """Runs that match, newest first."""
        where, values = _where({"r.owner": owner, "r.name": name, "r.id": run})
        # the newest step of the newest attempt; just after a resume, the step it goes on from
        step = ("COALESCE((SELECT MAX(step) FROM updates u WHERE u.run = r.id AND u.attempt = r.attempt), "
                "(SELECT from_step FROM attempts a WHERE a.run = r.id AND a.attempt = r.attempt), 0) AS step")
        with self._read() as db:
            rows = db.execute(f"SELECT r.*, {step} FROM runs r {where} ORDER BY r.created DESC, r.rowid DESC", values)
            runs = [record_of(Run, row) for row in rows]
        return [replace(run, config=at_home(run.config, self.path.parent / run.id)) for run in runs]

    def set_status(self, run: str, status: str, *, error: str | None = None, traceback: str | None = None) -> None:
        """A new status; error and traceback are those of this status, so None clears them."""
        with self._write() as db:
            db.execute("UPDATE runs SET status=?, error=?, traceback=?, updated=? WHERE id=?",
                       (status, error, traceback, time.time(), run))

    def set_info(self, run: str, info: dict[str, Any]) -> None:
        """What the engine resolved for this run: device, dtype, threads, versions."""
        with self._write() as db:
            db.execute("UPDATE runs SET info=? WHERE id=?", (to_json(info), run))

    def set_config(self, run: str, config: dict[str, Any]) -> None:
        """Settings that the run goes on with from here; what it did before stands in its events and metrics."""
        with self._write() as db:
            db.execute("UPDATE runs SET config=?, updated=? WHERE id=?", (to_json(config), time.time(), run))

    def begin_attempt(self, run: str, from_step: int) -> int:
        """The number of a new attempt that goes on after `from_step`; later rows of earlier attempts are superseded."""
        with self._write() as db:
            (attempt,) = db.execute("UPDATE runs SET attempt = attempt + 1, updated=? WHERE id=? RETURNING attempt",
                                    (time.time(), run)).fetchone()
            db.execute("INSERT INTO attempts VALUES (?,?,?,?)", (run, attempt, from_step, time.time()))
        return attempt

    # -- steps

    def write_step(self, run: str, record: StepRecord, *, attempt: int | None = None, rollout: int | None = None,
                   seconds: float | None = None, tokens: bool = True, keep_token_steps: int = 0) -> int:
        """One step in one transaction: update, rollout, groups, completions, token arrays. Returns the rollout's id.

        `rollout` is the one begun for this step's partial texts, if any; they are cleared here. `attempt` None is the
        run's newest. A record with iteration > 0 used the rollout of the step before again: its groups are not written
        twice, only what the update changed (log-probabilities and entropy). Token arrays of the newest `keep_token_steps`
        steps stay (0: of all). Raises KeyError for an unknown run.
        """
        with self._write() as db:
            owner, newest = self._owner_and_attempt(db, run)
            attempt = attempt or newest
            if record.iteration == 0:
                rollout = rollout or self._insert_rollout(db, owner=owner, kind="train", run=run, attempt=attempt, step=record.step,
                                                          adapter=run, adapter_step=record.step - 1)
                insert_groups(db, rollout, record.groups, tokens)
                _end_rollout(db, rollout, "done", None)
            else:
                (rollout,) = db.execute("SELECT rollout FROM updates WHERE run=? AND attempt=? AND step=?",
                                        (run, attempt, record.step - 1)).fetchone()
                if tokens:
                    insert_arrays(db, rollout, record.groups, record.iteration, skip=REUSED_ARRAYS)
            db.execute("INSERT INTO updates VALUES (?,?,?,?,?,?,?,?)", (run, attempt, record.step, record.iteration, rollout,
                                                                       to_json(record.metrics), seconds, time.time()))
            if keep_token_steps:
                drop_arrays(db, run, record.step - keep_token_steps)
            db.execute("UPDATE runs SET updated=? WHERE id=?", (time.time(), run))
        return rollout

    def steps_after(self, run: str, after: int = 0, *, limit: int | None = 1000) -> Steps:
        """Metrics of the steps after `after` on the run's newest line, evenly thinned to at most `limit` rows.

        The first and the last row are always kept. Raises KeyError for an unknown run.
        """
        with self._read() as db:
            _, attempt = self._owner_and_attempt(db, run)
            line, values = _newest_line(run)
            (count,) = db.execute(f"SELECT COUNT(*) FROM {line} AND step > ?", (*values, after)).fetchone()
            stride = 1 if limit is None or count <= limit else math.ceil((count - 1) / (limit - 1))
            # filter before the metrics are parsed: thinning 5,000 steps reads 1,000 JSON texts
            rows = db.execute(f"SELECT step, metrics FROM (SELECT step, metrics, ROW_NUMBER() OVER (ORDER BY step) - 1 AS place "
                              f"FROM {line} AND step > ?) WHERE place % ? = 0 OR place = ? ORDER BY step",
                              (*values, after, stride, count - 1)).fetchall()
        metrics = [json.loads(row["metrics"]) for row in rows]
        columns = list(dict.fromkeys(name for m in metrics for name in m))
        table = [[row["step"], *(m.get(name) for name in columns)] for row, m in zip(rows, metrics, strict=True)]
        return Steps(attempt, columns, table, rows[-1]["step"] if rows else after, stride)

    def step(self, run: str, step: int, *, attempt: int | None = None, arrays: bool = False) -> StepRecord | None:
        """A step as the trainer gave it: newest line, or the `attempt` asked for. `arrays` adds the token arrays."""
        with self._read() as db:
            line, values = _newest_line(run) if attempt is None else ("updates WHERE run=? AND attempt=?", (run, attempt))
            row = db.execute(f"SELECT * FROM {line} AND step = ?", (*values, step)).fetchone()
            if row is None:
                return None
            groups = select_groups(db, row["rollout"], row["iteration"] if arrays else None)
        metrics = {name: math.nan if value is None else value for name, value in json.loads(row["metrics"]).items()}  # JSON has no nan
        return StepRecord(row["step"], metrics, groups, row["iteration"])

    def tokens(self, run: str, step: int, group: int, *, attempt: int | None = None) -> Group | None:
        """One group of a step with its token arrays; None where there is no such step or group."""
        record = self.step(run, step, attempt=attempt, arrays=True)
        return _one([g for g in record.groups if g.index == group]) if record else None

    # -- evaluations

    def write_evaluation(self, run: str, record: EvaluationRecord, *, attempt: int | None = None) -> None:
        """Answers and metrics of one evaluation in one transaction."""
        with self._write() as db:
            owner, newest = self._owner_and_attempt(db, run)
            insert_evaluation(db, owner, run, attempt or newest, record, time.time())

    def evaluations(self, run: str) -> list[Evaluation]:
        """By step, the base first; of a step and adapter evaluated again only the newest. Groups: `rollout_groups(e.greedy)`."""
        with self._read() as db:
            return select_evaluations(db, run)

    # -- rollouts: partial texts while they are written, samples

    def begin_rollout(self, *, owner: str, kind: str, prompts: list[str], run: str | None = None, attempt: int | None = None,
                      step: int | None = None, adapter: str = "base", adapter_step: int | None = None,
                      settings: dict[str, Any] | None = None) -> int:
        """A rollout whose completions are about to be written; partial texts hang on it."""
        with self._write() as db:
            return self._insert_rollout(db, owner=owner, kind=kind, prompts=prompts, run=run, attempt=attempt, step=step,
                                        adapter=adapter, adapter_step=adapter_step, settings=settings)

    def start_rollout(self, rollout: int, *, prompts: list[str], adapter_step: int | None = None,
                      settings: dict[str, Any] | None = None) -> None:
        """A sample that waited in the queue is now being written."""
        with self._write() as db:
            db.execute("UPDATE rollouts SET status='sampling', prompts=?, adapter_step=?, settings=? WHERE id=?",
                       (to_json(prompts), adapter_step, to_json(settings or {}), rollout))

    def write_live(self, rollout: int, partial: Iterable[tuple[int, int, str, int, bool]]) -> None:
        """Partial texts: (group, completion, text so far, tokens so far, ended), as `TokensSampled` has them."""
        now = self._last_live = max(time.time(), self._last_live + 1e-6)  # a cursor must grow, also if the clock steps back
        with self._write() as db:
            db.executemany("INSERT OR REPLACE INTO live VALUES (?,?,?,?,?,?,?)",
                           [(rollout, g, i, text, n, int(ended), now) for g, i, text, n, ended in partial])

    def finish_rollout(self, rollout: int, groups: list[Group], *, status: str = "done", error: str | None = None) -> None:
        """Groups and completions of a sample, in one transaction with the end of its partial texts."""
        with self._write() as db:
            insert_groups(db, rollout, groups, tokens=True)
            _end_rollout(db, rollout, status, error)

    def rollout(self, rollout: int) -> Rollout | None:
        """The rollout with this number; None for an unknown one."""
        with self._read() as db:
            row = db.execute("SELECT * FROM rollouts WHERE id=?", (rollout,)).fetchone()
            return record_of(Rollout, row) if row else None

    def rollout_groups(self, rollout: int, *, arrays: bool = False) -> list[Group]:
        """The groups of a finished rollout; empty while it is being written."""
        with self._read() as db:
            return select_groups(db, rollout, 0 if arrays else None)

    def samples(self, *, owner: str | None = None, limit: int = 50) -> list[Rollout]:
        """The newest samples."""
        where, values = _where({"kind": "sample", "owner": owner})
        with self._read() as db:
            rows = db.execute(f"SELECT * FROM rollouts {where} ORDER BY id DESC LIMIT ?", (*values, limit))
            return [record_of(Rollout, row) for row in rows]

    def live(self, after: float = 0.0) -> list[Live]:
        """Partial texts that changed after the cursor `after` (the largest `updated` seen so far)."""
        with self._read() as db:
            rows = db.execute("SELECT l.*, r.owner, r.run, r.step, r.kind, r.prompts FROM live l JOIN rollouts r ON r.id = l.rollout "
                              "WHERE l.updated > ? ORDER BY l.rollout, l.grp, l.idx", (after,)).fetchall()
        return [Live(row["rollout"], row["owner"], row["run"], row["step"], row["kind"], _prompt(row), row["grp"], row["idx"],
                     row["text"], row["n_tokens"], bool(row["ended"]), row["updated"]) for row in rows]

    # -- commands

    def send_command(self, kind: str, args: dict[str, Any] | None = None, *, owner: str = LOCAL_OWNER,
                     run: str | None = None) -> Command:
        """Queues a command for the engine. A sample gets its rollout at once: `command.result["rollout"]`."""
        args = args or {}
        with self._write() as db:
            result = {}
            if kind == "sample":
                result["rollout"] = self._insert_rollout(db, owner=owner, kind="sample", run=None, status="queued",
                                                         adapter=args.get("adapter") or "base", settings=args)
            row = db.execute("INSERT INTO commands VALUES (NULL,?,?,?,?,'queued',?,NULL,?,NULL,NULL) RETURNING *",
                             (owner, run, kind, to_json(args), to_json(result), time.time())).fetchone()
            return record_of(Command, row)

    def take_commands(self) -> list[Command]:
        """All queued commands, oldest first; each is given out once. Cheap when there is none."""
        with self._read() as db:
            if db.execute("SELECT 1 FROM commands WHERE status='queued' LIMIT 1").fetchone() is None:
                return []
        with self._write() as db:
            rows = db.execute("UPDATE commands SET status='taken', taken=? WHERE status='queued' RETURNING *", (time.time(),)).fetchall()
        return sorted((record_of(Command, row) for row in rows), key=lambda command: command.id)

    def tell_progress(self, command: int, **result: Any) -> None:
        """What is known of a command while it is carried out, added to its `result`."""
        with self._write() as db:
            (before,) = db.execute("SELECT result FROM commands WHERE id=?", (command,)).fetchone()
            db.execute("UPDATE commands SET result=? WHERE id=?", (to_json({**json.loads(before), **result}), command))

    def finish_command(self, command: int, status: str = "done", *, result: dict[str, Any] | None = None, error: str | None = None) -> None:
        """The end of a command; what `result` names is added to what is there."""
        with self._write() as db:
            (before,) = db.execute("SELECT result FROM commands WHERE id=?", (command,)).fetchone()
            db.execute("UPDATE commands SET status=?, result=?, error=?, finished=? WHERE id=?",
                       (status, to_json({**json.loads(before), **(result or {})}), error, time.time(), command))

    def command(self, command: int) -> Command | None:
        """The command with this number as it stands now; None for an unknown one."""
        with self._read() as db:
            row = db.execute("SELECT * FROM commands WHERE id=?", (command,)).fetchone()
            return record_of(Command, row) if row else None

    def newest_command(self, run: str, kind: str) -> Command | None:
        """The last command of this kind for the run."""
        with self._read() as db:
            row = db.execute("SELECT * FROM commands WHERE run=? AND kind=? ORDER BY id DESC LIMIT 1", (run, kind)).fetchone()
            return record_of(Command, row) if row else None

    def open_commands(self) -> list[Command]:
        """Commands that wait or are being carried out, oldest first."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM commands WHERE status IN ('queued', 'taken') ORDER BY id")
            return [record_of(Command, row) for row in rows]

    # -- events

    def add_event(self, run: str, step: int, kind: str, data: dict[str, Any] | None = None, *, attempt: int | None = None) -> None:
        """Note that something happened to the run; `attempt` None is its newest. KeyError for an unknown run."""
        with self._write() as db:
            _, newest = self._owner_and_attempt(db, run)
            db.execute("INSERT INTO events VALUES (NULL,?,?,?,?,?,?)",
                       (run, attempt or newest, step, kind, to_json(data or {}), time.time()))

    def events(self, run: str, after: int = 0) -> list[RunEvent]:
        """Events of the run with an id above `after`, in the order they happened."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM events WHERE run=? AND id > ? ORDER BY id", (run, after))
            events = [record_of(RunEvent, row) for row in rows]
        return [replace(event, data=at_home(event.data, self.path.parent / run)) for event in events]

    # -- processes

    def register(self, role: str, info: dict[str, Any] | None = None) -> None:
        """This process now plays the role; an error of the one before is forgotten."""
        now = time.time()
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO processes VALUES (?,?,?,?,?,NULL,NULL)", (role, os.getpid(), now, now, to_json(info or {})))

    def beat(self, role: str, info: dict[str, Any] | None = None) -> None:
        """A sign of life; `info` replaces what was there unless it is None."""
        with self._write() as db:
            changed = db.execute("UPDATE processes SET heartbeat=?, info=COALESCE(?, info) WHERE role=? AND pid=?",
                                 (time.time(), None if info is None else to_json(info), role, os.getpid())).rowcount
        if not changed:
            self.register(role, info)

    def report_crash(self, role: str, error: str, traceback: str) -> None:
        """Why the process of this role is about to end, or was found dead."""
        with self._write() as db:
            db.execute("UPDATE processes SET error=?, traceback=? WHERE role=?", (error, traceback, role))

    def process(self, role: str) -> Process | None:
        """The last sign of life of "engine" or "web"; None if there never was one."""
        with self._read() as db:
            row = db.execute("SELECT * FROM processes WHERE role=?", (role,)).fetchone()
            return record_of(Process, row) if row else None

    # -- after a crash

    def abandon_open_work(self, reason: str) -> None:
        """What a dead engine had begun: rollouts become interrupted, their partial texts go, taken commands fail with `reason`."""
        with self._write() as db:
            db.execute("DELETE FROM live")
            db.execute("UPDATE rollouts SET status='interrupted', error=? WHERE status='sampling'", (reason,))
            db.execute("UPDATE rollouts SET status='interrupted', error=? WHERE status='queued' AND id NOT IN "
                       "(SELECT json_extract(result, '$.rollout') FROM commands WHERE status='queued' AND kind='sample')", (reason,))
            db.execute("UPDATE commands SET status='failed', error=?, finished=? WHERE status='taken'", (reason, time.time()))

    @staticmethod
    def _owner_and_attempt(db: sqlite3.Connection, run: str) -> tuple[str, int]:
        row = db.execute("SELECT owner, attempt FROM runs WHERE id=?", (run,)).fetchone()
        if row is None:
            raise KeyError(f"There is no run {run!r} in the store.")
        return row["owner"], row["attempt"]

    @staticmethod
    def _insert_rollout(db: sqlite3.Connection, *, owner: str, kind: str, prompts: list[str] | None = None, run: str | None = None,
                        attempt: int | None = None, step: int | None = None, adapter: str = "base", adapter_step: int | None = None,
                        settings: dict[str, Any] | None = None, status: str = "sampling") -> int:
        values = (owner, run, attempt, step, kind, adapter, adapter_step, to_json(settings or {}), to_json(prompts or []), status,
                  time.time())
        return db.execute("INSERT INTO rollouts VALUES (NULL,?,?,?,?,?,?,?,?,?,?,NULL,?)", values).lastrowid


def open_store(runs_dir: str | os.PathLike) -> Store:
    """The store of a runs folder."""
    return Store(Path(runs_dir) / FILE_NAME)


def _newest_line(run: str) -> tuple[str, tuple]:
    """FROM … WHERE of the run's updates that no later attempt has superseded, and its values."""
    return ("updates u WHERE run = ? AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.run = u.run AND a.attempt > u.attempt "
            "AND a.from_step < u.step)", (run,))


def _end_rollout(db: sqlite3.Connection, rollout: int, status: str, error: str | None) -> None:
    db.execute("DELETE FROM live WHERE rollout=?", (rollout,))
    db.execute("UPDATE rollouts SET status=?, error=? WHERE id=?", (status, error, rollout))


def _prompt(row: sqlite3.Row) -> str:
    prompts = json.loads(row["prompts"])
    return prompts[row["grp"]] if row["grp"] < len(prompts) else ""


def _where(conditions: dict[str, Any]) -> tuple[str, tuple]:
    """WHERE over the conditions that are not None, and their values."""
    asked = {column: value for column, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(f"{column} = ?" for column in asked) if asked else ""), tuple(asked.values())


def _one(found: list) -> Any:
    return found[0] if found else None


def _new_id(name: str) -> str:
    """Readable, safe as a folder name on every system, and not to be guessed from another run's id."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-")
    return f"{words or 'run'}-{secrets.token_hex(4)}"
