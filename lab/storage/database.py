"""The file under the run store: a connection for each thread, transactions, a copy. Leaves out what is in the tables (`lab.store`)."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import opening
from lab.storage.migrations import migrate

BUSY_SECONDS = 30


class Database:
    """One SQLite file. May be used from any thread; each thread has its own connection."""

    def __init__(self, path: str | os.PathLike, *, read_only: bool = False):
        """Opens or creates the file. `read_only` is for files that never change, such as the recorded demo run."""
        self.path, self.read_only = Path(path), read_only
        self._thread, self._handles = threading.local(), weakref.WeakSet()
        if read_only:
            if not self.path.is_file():
                raise FileNotFoundError(f"There is no run store at {self.path}.")
        else:
            with opening(self.path.parent, to="a folder for runs"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            migrate(self._connection)

    def close(self) -> None:
        """Closes every thread's connection. The store opens them again when it is used again."""
        for handle in list(self._handles):
            handle.close()
        self._thread = threading.local()

    def copy_to(self, target: Path) -> None:
        """A compact copy in a file of its own, with nothing beside it; `target` must not exist."""
        self._connection.execute("VACUUM INTO ?", (str(target),))

    @property
    def _connection(self) -> sqlite3.Connection:
        handle = getattr(self._thread, "handle", None)
        if handle is None:
            handle = self._thread.handle = _Handle(self.path, self.read_only)
            self._handles.add(handle)
        return handle.connection

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees everything committed before it and becomes visible as a whole, or not at all."""
        yield from _transaction(self._connection, "BEGIN IMMEDIATE")

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """One consistent picture of the file, whatever is written meanwhile."""
        yield from _transaction(self._connection, "BEGIN")


class _Handle:
    """One thread's connection: closed with the store, or when its thread is gone."""

    def __init__(self, path: Path, read_only: bool):
        target = f"{path.resolve().as_uri()}?mode=ro&immutable=1" if read_only else path
        self.connection = sqlite3.connect(target, uri=read_only, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self.connection.row_factory = sqlite3.Row
        if not read_only:
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last step, never the file

    def close(self) -> None:
        self.connection.close()

    __del__ = close


def _transaction(db: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    db.execute(begin)
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has taken it back by itself
            db.execute("ROLLBACK")
        raise
