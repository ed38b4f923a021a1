"""Prepared data sets: rows as JSONL under `<runs>/data/`, a line about each in the run store, seen by their owner alone.

A file is written whole before its line appears, so nothing is ever half there; it is never changed afterwards: filtering
makes a new one. Beside them lies, for each owner, the last file they uploaded, until another one takes its place.
Leaves out where rows come from (`lab.tasks`) and sampling them (`lab.training.difficulty`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.storage.database import Database
from lab.store import FILE_NAME, LOCAL_OWNER
from lab.tasks.errors import TaskError
from lab.tasks.tables import Table

FOLDER, UPLOADS = "data", "uploads"
MOST_SETS, MOST_BYTES = 50, 200 << 20  # of one owner


@dataclass(frozen=True)
class Dataset:
    """A row of `datasets`. `task` is what a form, a command line or Python may name; `file` is where the rows are."""

    id: str
    owner: str
    name: str
    file: Path
    task: str  # relative to the runs folder, with / on every system
    n_rows: int
    meta: dict[str, Any]  # source, columns, held_out (rows), rewards, notes
    scan: dict[str, Any] | None  # as lab.training.difficulty tells it
    created: float


class Datasets(Database):
    """The data sets in the file of a run store."""

    @classmethod
    def beside(cls, runs_dir: str | os.PathLike) -> Datasets:
        """The data sets of a runs folder."""
        return cls(Path(runs_dir) / FILE_NAME)

    def add(self, name: str, rows: list[dict[str, Any]], meta: dict[str, Any], *, owner: str = LOCAL_OWNER) -> Dataset:
        """Stores the rows. Raises TaskError where the owner has too many, or too much."""
        text = jsonl_text(rows)
        self._check_quota(owner, len(text))
        dataset = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:40] or 'data'}-{secrets.token_hex(4)}"
        path = f"{FOLDER}/{dataset}.jsonl"
        _write_whole(self.path.parent / path, text)
        with self._write() as db:
            db.execute("INSERT INTO datasets VALUES (?,?,?,?,?,?,NULL,?)", (dataset, owner, name.strip()[:80] or "data", path, len(rows),
                                                                           json.dumps(meta), time.time()))
        return self.find(dataset, owner)

    def of(self, owner: str) -> list[Dataset]:
        """Those the owner may see: their own and those of the command line, newest first."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM datasets WHERE owner IN (?, ?) ORDER BY created DESC, rowid DESC", (owner, LOCAL_OWNER))
            return [self._dataset(row) for row in rows]

    def find(self, dataset: str, owner: str) -> Dataset | None:
        """The data set with this id or task; another owner's is as unknown as one that never was."""
        return next((found for found in self.of(owner) if dataset in (found.id, found.task)), None)

    def rows(self, dataset: Dataset) -> list[dict[str, Any]]:
        """All rows of a data set, held-out ones included, in the file's order."""
        with dataset.file.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def set_scan(self, dataset: str, scan: dict[str, Any]) -> None:
        """Replaces what is known about difficulty; called again and again while a scan goes on."""
        with self._write() as db:
            db.execute("UPDATE datasets SET scan=? WHERE id=?", (json.dumps(scan), dataset))

    def delete(self, dataset: Dataset) -> None:
        """Runs that used it keep their records, but cannot go on with it."""
        with self._write() as db:
            db.execute("DELETE FROM datasets WHERE id=?", (dataset.id,))
        dataset.file.unlink(missing_ok=True)

    def keep_upload(self, table: Table, source: str, *, owner: str) -> str:
        """The table of a file just uploaded, in place of the one before; returns the token that names it."""
        token = secrets.token_hex(8)
        _write_whole(self._upload(owner), json.dumps({"token": token, "source": source, **vars(table)}))
        return token

    def upload(self, token: str, *, owner: str) -> tuple[Table, str]:
        """That table and where it came from. Raises TaskError when another file has taken its place."""
        try:
            kept = json.loads(self._upload(owner).read_text(encoding="utf-8"))
        except FileNotFoundError:
            kept = {}
        if not token or kept.get("token") != token:
            raise TaskError("Choose a file first; of several, the last one counts.")
        return Table(kept["columns"], kept["rows"], kept["notes"]), kept["source"]

    def _upload(self, owner: str) -> Path:
        return self.path.parent / FOLDER / UPLOADS / f"{hashlib.sha256(owner.encode()).hexdigest()[:24]}.json"

    def _check_quota(self, owner: str, size: int) -> None:
        own = [dataset for dataset in self.of(owner) if dataset.owner == owner]
        used = sum(dataset.file.stat().st_size for dataset in own if dataset.file.is_file())
        if len(own) >= MOST_SETS or used + size > MOST_BYTES:
            raise TaskError(f"You have {len(own)} data sets of {used / 1e6:,.0f} MB together; at most {MOST_SETS} and "
                            f"{MOST_BYTES / 1e6:,.0f} MB are kept. Delete one first.")

    def _dataset(self, row: Any) -> Dataset:
        return Dataset(row["id"], row["owner"], row["name"], self.path.parent / row["path"], row["path"], row["n_rows"],
                       json.loads(row["meta"]), json.loads(row["scan"]) if row["scan"] else None, row["created"])


def jsonl_text(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as JSONL, a line each."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    unfinished.replace(path)
