"""Groups, completions and token arrays in the tables of the run store, and back.

Token ids are int32 blobs; token arrays are float32 blobs, exact, so that sums on the page are exact too. The functions
work inside the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3

import numpy as np

from lab.records import Completion, Group
from lab.storage.rows import to_json


def insert_groups(db: sqlite3.Connection, rollout: int, groups: list[Group], tokens: bool) -> None:
    """Groups and completions of a rollout; with `tokens` their token arrays as well."""
    db.executemany("INSERT INTO groups VALUES (?,?,?,?,?,?,?,?)",
                   [(rollout, g.index, g.prompt, _ids(g.prompt_ids), to_json(g.row), g.mean, g.std, g.dead) for g in groups])
    db.executemany("INSERT INTO completions VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                   [(rollout, g.index, c.index, c.text, _ids(c.token_ids), len(c.token_ids), c.finished, to_json(c.rewards),
                     c.reward, c.advantage, to_json(c.extra), to_json(c.steps)) for g in groups for c in g.completions])
    if tokens:
        insert_arrays(db, rollout, groups, iteration=0)


def insert_arrays(db: sqlite3.Connection, rollout: int, groups: list[Group], iteration: int, skip: tuple[str, ...] = ()) -> None:
    """Token arrays of every completion, as of this use of the rollout; those named in `skip` did not change."""
    db.executemany("INSERT INTO token_arrays VALUES (?,?,?,?,?,?,?)",
                   [(rollout, g.index, c.index, name, iteration, *_array(name, c.arrays))
                    for g in groups for c in g.completions for name in c.arrays if name not in skip])


def drop_arrays(db: sqlite3.Connection, run: str, step: int) -> None:
    """Take the token arrays off one step of a run, unless the next step used its rollout too. SQLite fills the room again."""
    db.execute("DELETE FROM token_arrays WHERE rollout IN (SELECT rollout FROM updates WHERE run=? AND step=? AND rollout NOT IN "
               "(SELECT rollout FROM updates WHERE run=? AND step=?))", (run, step, run, step + 1))


def _array(name: str, arrays: dict[str, np.ndarray]) -> tuple[str, bytes]:
    """dtype and blob. On-policy the old log-probabilities are the new ones: then only that is written, a fifth less."""
    values = np.ascontiguousarray(arrays[name], dtype="<f4").tobytes()
    if name == "old_logps" and "logps" in arrays and values == np.ascontiguousarray(arrays["logps"], dtype="<f4").tobytes():
        return "logps", b""
    return "f4", values


def select_groups(db: sqlite3.Connection, rollout: int, iteration: int | None) -> list[Group]:
    """Groups with their completions; `iteration` adds the token arrays as they were in that use of the rollout."""
    groups = [Group(row["idx"], row["prompt"], _from_ids(row["prompt_ids"]), json.loads(row["row"]), [], row["mean"], row["std"],
                    None if row["dead"] is None else bool(row["dead"]))
              for row in db.execute("SELECT * FROM groups WHERE rollout=? ORDER BY idx", (rollout,))]
    by_index = {group.index: group for group in groups}
    completions = {}
    for row in db.execute("SELECT * FROM completions WHERE rollout=? ORDER BY grp, idx", (rollout,)):
        completion = Completion(row["idx"], row["text"], _from_ids(row["token_ids"]), bool(row["finished"]), json.loads(row["rewards"]),
                                row["reward"], row["advantage"], json.loads(row["extra"]), steps=_steps(row["steps"]))
        completions[row["grp"], row["idx"]] = completion
        by_index[row["grp"]].completions.append(completion)
    if iteration is not None:
        rows = db.execute("SELECT * FROM token_arrays WHERE rollout=? AND iteration <= ? ORDER BY iteration, name", (rollout, iteration))
        for row in rows:  # logps before old_logps, which may refer to it; a later iteration's values replace the earlier ones
            arrays = completions[row["grp"], row["idx"]].arrays
            arrays[row["name"]] = np.frombuffer(row["blob"], dtype="<f4") if row["dtype"] == "f4" else arrays[row["dtype"]]
    return groups


def _steps(text: str) -> dict[str, list[tuple[int, float]]]:
    return {name: [(end, value) for end, value in steps] for name, steps in json.loads(text).items()}


def _ids(token_ids: list[int]) -> bytes:
    return np.asarray(token_ids, dtype="<i4").tobytes()


def _from_ids(blob: bytes) -> list[int]:
    return np.frombuffer(blob, dtype="<i4").tolist()
