"""Rewards that people write on the page: the draft as it is typed, and frozen versions, which never change.

A frozen version is a row and a read-only file, `<runs>/rewards/<owner>/<name>@<version>.py`; a run that uses one keeps a copy
in its own folder, so that it survives (`own_files`). Leaves out running them (`lab.rewards`) and runs (`lab.store`).
"""

from __future__ import annotations

import hashlib
import keyword
import os
import re
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from lab.storage.database import Database
from lab.storage.own_files import READ_ONLY
from lab.store import FILE_NAME, LOCAL_OWNER

FOLDER = "rewards"
VERSION = re.compile(r"(?P<name>[A-Za-z_]\w{0,63})@(?P<version>[1-9]\d{0,8})", re.ASCII)


class ShelfError(ValueError):
    """A version that cannot be frozen or is not there, in a sentence."""


@dataclass(frozen=True)
class Version:
    """A frozen reward. `name` is the function's."""

    owner: str
    name: str
    version: int
    source: str
    sha256: str
    note: str
    created: float

    @property
    def label(self) -> str:
        """`name@version`, as settings name it."""
        return f"{self.name}@{self.version}"


class RewardShelf(Database):
    """Drafts and versions in the file of the run store."""

    @classmethod
    def beside(cls, runs_dir: str | os.PathLike) -> RewardShelf:
        """The shelf of a runs folder."""
        return cls(Path(runs_dir) / FILE_NAME)

    def save_draft(self, owner: str, source: str, name: str = "draft") -> None:
        """Keep a draft, in place of the owner's last one of this name."""
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO reward_drafts VALUES (?,?,?,?)", (owner, name, source, time.time()))

    def draft(self, owner: str, name: str = "draft") -> str | None:
        """The draft as it was last saved; None where there is none."""
        with self._read() as db:
            row = db.execute("SELECT source FROM reward_drafts WHERE owner=? AND name=?", (owner, name)).fetchone()
            return row["source"] if row else None

    def freeze(self, owner: str, name: str, source: str, note: str = "") -> Version:
        """The next version of `name`. The same source as its newest version is that version again."""
        if not VERSION.fullmatch(f"{name}@1") or keyword.iskeyword(name):
            raise ShelfError(f"{name!r} cannot name a frozen reward: use the name of its function, in letters, digits and _.")
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        with self._write() as db:
            newest = _newest(db, owner, name)
            if newest is None or newest["sha256"] != digest:
                number = newest["version"] + 1 if newest else 1
                db.execute("INSERT INTO reward_versions VALUES (?,?,?,?,?,?,?)", (owner, name, number, source, digest, note, time.time()))
                newest = _newest(db, owner, name)
        version = Version(**newest)
        self.file(version)
        return version

    def versions(self, owner: str | None = None) -> list[Version]:
        """What this owner may use, the newest first: their own and those frozen on this machine without the page. None: all."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM reward_versions WHERE ? IS NULL OR owner IN (?, ?) ORDER BY created DESC, rowid DESC",
                              (owner, owner, LOCAL_OWNER))
            return [Version(**row) for row in rows]

    def version(self, owner: str | None, label: str) -> Version:
        """`name@version` of this owner's; ShelfError lists what there is."""
        found = [version for version in self.versions(owner) if version.label == label]
        if not found:
            there = ", ".join(version.label for version in self.versions(owner)) or "none yet"
            raise ShelfError(f"There is no frozen reward {label}. Frozen: {there}.")
        return next((version for version in found if version.owner == owner), found[0])

    def file(self, version: Version) -> Path:
        """The version's file, written again if somebody removed or changed it: the row is what holds."""
        path = self.path.parent.resolve() / FOLDER / version.owner / f"{version.label}.py"
        if not path.is_file() or path.read_bytes() != version.source.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
            unfinished.write_bytes(version.source.encode())
            unfinished.chmod(READ_ONLY)
            path.unlink(missing_ok=True)
            unfinished.replace(path)
        return path

    def reward_of(self, owner: str | None, written: str) -> str:
        """What the engine resolves for `name@version`: its file and function. Anything else stays as it is."""
        match = VERSION.fullmatch(written.strip())
        return written if match is None else f"{self.file(self.version(owner, match[0]))}:{match['name']}"


def _newest(db: sqlite3.Connection, owner: str, name: str) -> sqlite3.Row | None:
    return db.execute("SELECT * FROM reward_versions WHERE owner=? AND name=? ORDER BY version DESC LIMIT 1", (owner, name)).fetchone()
