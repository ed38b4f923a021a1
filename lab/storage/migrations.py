"""The store's tables, as numbered steps: a file knows how many it has taken (PRAGMA user_version).

A step that was released is never edited; a change is a new step at the end. Leaves out what is written into the
tables and read from them: that is `lab.store`.
"""

from __future__ import annotations

import sqlite3

# Tables with long rows keep SQLite's row ids: without them a row above a quarter page would fill whole pages of its own.
FIRST_TABLES = (
    # status: queued, loading, training, paused, finished, failed, stopped, interrupted
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, config TEXT NOT NULL,
        status TEXT NOT NULL, attempt INTEGER NOT NULL, error TEXT, traceback TEXT,
        created REAL NOT NULL, updated REAL NOT NULL, parent TEXT, parent_step INTEGER, info TEXT NOT NULL)""",
    # an attempt goes on from a checkpoint: rows of earlier attempts after from_step are superseded by it
    """CREATE TABLE attempts (
        run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, from_step INTEGER NOT NULL, created REAL NOT NULL,
        PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
    # status: queued, sampling, done, cancelled, failed, interrupted
    """CREATE TABLE rollouts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, run TEXT REFERENCES runs, attempt INTEGER, step INTEGER,
        kind TEXT NOT NULL, adapter TEXT NOT NULL, adapter_step INTEGER, settings TEXT NOT NULL, prompts TEXT NOT NULL,
        status TEXT NOT NULL, error TEXT, created REAL NOT NULL)""",
    "CREATE INDEX rollouts_of_run ON rollouts (run, attempt, step)",
    "CREATE INDEX open_rollouts ON rollouts (status) WHERE status IN ('queued', 'sampling')",
    """CREATE TABLE groups (
        rollout INTEGER NOT NULL REFERENCES rollouts, idx INTEGER NOT NULL, prompt TEXT NOT NULL, prompt_ids BLOB NOT NULL,
        row TEXT NOT NULL, mean REAL, std REAL, dead INTEGER,
        PRIMARY KEY (rollout, idx))""",
    """CREATE TABLE completions (
        rollout INTEGER NOT NULL REFERENCES rollouts, grp INTEGER NOT NULL, idx INTEGER NOT NULL, text TEXT NOT NULL,
        token_ids BLOB NOT NULL, n_tokens INTEGER NOT NULL, finished INTEGER NOT NULL, rewards TEXT NOT NULL,
        reward REAL, advantage REAL, extra TEXT NOT NULL,
        PRIMARY KEY (rollout, grp, idx))""",
    """CREATE TABLE updates (
        run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, step INTEGER NOT NULL, iteration INTEGER NOT NULL,
        rollout INTEGER NOT NULL REFERENCES rollouts, metrics TEXT NOT NULL, seconds REAL, created REAL NOT NULL,
        PRIMARY KEY (run, step, attempt))""",
    # iteration: the update in which these values were computed; a later use of the rollout adds only what it changed
    """CREATE TABLE token_arrays (
        rollout INTEGER NOT NULL REFERENCES rollouts, grp INTEGER NOT NULL, idx INTEGER NOT NULL, name TEXT NOT NULL,
        iteration INTEGER NOT NULL, dtype TEXT NOT NULL, blob BLOB NOT NULL,
        PRIMARY KEY (rollout, grp, idx, name, iteration))""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
        step INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL, created REAL NOT NULL)""",
    "CREATE INDEX events_of_run ON events (run, id)",
    # status: queued, taken, done, failed, cancelled
    """CREATE TABLE commands (
        id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, run TEXT REFERENCES runs, kind TEXT NOT NULL,
        args TEXT NOT NULL, status TEXT NOT NULL, result TEXT NOT NULL, error TEXT,
        created REAL NOT NULL, taken REAL, finished REAL)""",
    "CREATE INDEX open_commands ON commands (status) WHERE status IN ('queued', 'taken')",
    """CREATE TABLE live (
        rollout INTEGER NOT NULL REFERENCES rollouts, grp INTEGER NOT NULL, idx INTEGER NOT NULL, text TEXT NOT NULL,
        n_tokens INTEGER NOT NULL, ended INTEGER NOT NULL, updated REAL NOT NULL,
        PRIMARY KEY (rollout, grp, idx))""",
    """CREATE TABLE processes (
        role TEXT PRIMARY KEY, pid INTEGER NOT NULL, started REAL NOT NULL, heartbeat REAL NOT NULL,
        info TEXT NOT NULL, error TEXT, traceback TEXT) WITHOUT ROWID""",
)

REWARD_BENCH = (
    # step rewards: {function: [[character where the step ends, value], …]}
    "ALTER TABLE completions ADD COLUMN steps TEXT NOT NULL DEFAULT '{}'",
    # what stands in the reward editor, so that a reload loses nothing
    """CREATE TABLE reward_drafts (
        owner TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL, updated REAL NOT NULL,
        PRIMARY KEY (owner, name))""",
    # frozen: never updated
    """CREATE TABLE reward_versions (
        owner TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, source TEXT NOT NULL, sha256 TEXT NOT NULL,
        note TEXT NOT NULL, created REAL NOT NULL,
        PRIMARY KEY (owner, name, version))""",
    # rows lie as JSONL in `path`, relative to the runs folder; scan: pass rate per row, once it was measured
    """CREATE TABLE datasets (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, path TEXT NOT NULL, n_rows INTEGER NOT NULL,
        meta TEXT NOT NULL, scan TEXT, created REAL NOT NULL)""",
)

MIGRATIONS = (FIRST_TABLES, REWARD_BENCH)


class NewerStoreError(RuntimeError):
    """The file was written by a newer version of the lab."""


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the file to the newest tables; safe when several processes open a new file at once.

    Raises NewerStoreError where the file has taken more steps than this version knows.
    """
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        taken = _version(connection)  # again, under the lock: another process may have been first
        if taken > len(MIGRATIONS):
            raise NewerStoreError(f"The run store has format {taken}, this version knows {len(MIGRATIONS)}. Update GRPO Lab, "
                                  f"or choose another runs folder.")
        for step in MIGRATIONS[taken:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
