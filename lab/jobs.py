"""The web process's side of the engine: start it, see whether it lives, start it again and say why.

The engine is a session of its own: closing the page or killing the web process does not touch it. Leaves out: torch,
and everything the engine does (`lab.engine`); the two meet in the store.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.store import Process, open_store

STALE_SECONDS = 10.0  # a heartbeat comes every second; older than this, the page says so
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a dead engine is started again; doubles with each death
HEALTHY_SECONDS = 60.0  # an engine that lived this long starts the pauses from the beginning
LOG_NAME = "engine.log"


@dataclass(frozen=True)
class EngineStatus:
    """What the page says about the engine. `state`: starting, running, stale, dead (it fell), off (it ended by itself)."""

    state: str
    sentence: str
    pid: int | None
    heartbeat_age: float | None
    info: dict[str, Any]
    error: str | None
    traceback: str | None
    other_version: bool = False  # it was started by a lab whose code or options differed from this one's


def identity(arguments: Sequence[str] = ()) -> str:
    """What an engine is made of: the lab's code without the page's, the interpreter, and the options it is started with."""
    home = Path(__file__).resolve().parent
    code = [(str(path.relative_to(home)), stat.st_mtime_ns, stat.st_size)
            for path in sorted(home.rglob("*.py")) if path.relative_to(home).parts[0] != "web" for stat in [path.stat()]]
    return hashlib.sha256(repr((code, sys.executable, tuple(arguments))).encode()).hexdigest()[:16]


class Engine:
    """The engine of one runs folder, as the web process sees it. Call `ensure` every second or so."""

    def __init__(self, runs_dir: str | os.PathLike, *, arguments: tuple[str, ...] = ()):
        self.runs_dir = Path(runs_dir).resolve()
        self.store = open_store(self.runs_dir)
        self._arguments = arguments
        self._child: subprocess.Popen | None = None
        self._started, self._pause, self._dead_since = 0.0, FIRST_PAUSE, None
        self._identity, self._log_from = identity(arguments), 0

    def ensure(self) -> EngineStatus:
        """Starts the engine if there is none; after a death, with a growing pause between tries. One of another version is
        exchanged when it has nothing to do."""
        status = self.status()
        if status.other_version and status.info.get("phase") == "idle" and not self.store.open_commands():
            self.end()
        if status.state == "off":
            self.start()
        elif status.state == "dead":
            self._revive()
        return self.status()

    def start(self) -> None:
        """Starts an engine process. Where one already holds the folder, the new one ends at once."""
        self._started, self._dead_since = time.time(), None
        log = self.runs_dir / LOG_NAME
        self._log_from = log.stat().st_size if log.exists() else 0
        self._child = start_engine(self.runs_dir, *self._arguments)

    def end(self) -> None:
        """Asks the engine to end: it saves its runs first. The next `ensure` starts another."""
        import psutil

        known = self.store.process("engine")
        if known and process_is_there(known.pid, known.started):
            psutil.Process(known.pid).terminate()

    def status(self) -> EngineStatus:
        """What is known of the engine now: its heartbeat if it lives, else how it ended or that it is about to start."""
        known = self.store.process("engine")
        if known and process_is_there(known.pid, known.started):
            found = _status(*_alive(time.time() - known.heartbeat), known)
            return replace(found, other_version=self._child is None and known.info.get("identity", self._identity) != self._identity)
        if self._child and not (known and known.started >= self._started):  # it has not shown itself yet
            if self._child.poll() is None:
                return _status("starting", "The engine is starting.", None)
            if self._child.returncode:
                return _status("dead", f"The engine did not start. {self._last_words()}", None)
        if known is None:
            return _status("off", "The engine was not started yet.", None)
        if known.info.get("phase") == "off" and known.error is None:
            return _status("off", "The engine ended because nothing was left to do.", known)
        return _status("dead", self._why(known), known)

    def _revive(self) -> None:
        if self._dead_since is None:
            self._dead_since = time.time()
            lived = self._dead_since - self._started
            self._pause = FIRST_PAUSE if lived > HEALTHY_SECONDS else min(2 * self._pause, LONGEST_PAUSE)
        elif time.time() - self._dead_since > self._pause:
            self.start()

    def _why(self, known: Process) -> str:
        if known.error:
            return f"The engine stopped: {known.error}"
        return f"The engine was ended from outside or ran out of memory. {self._last_words(known)}"

    def _last_words(self, known: Process | None = None) -> str:
        """The last line that this engine left: what an earlier one wrote would mislead."""
        log = self.runs_dir / LOG_NAME
        own = self._child is not None and (known is None or known.started >= self._started)
        written = log.read_bytes()[self._log_from if own else 0:] if log.exists() else b""
        if known and not own and log.exists() and log.stat().st_mtime < known.started:
            written = b""
        lines = written.decode("utf-8", errors="replace").strip().splitlines()
        return f"Its last line in {LOG_NAME}: {lines[-1]}" if lines else f"It left nothing in {LOG_NAME}."


def _status(state: str, sentence: str, known: Process | None) -> EngineStatus:
    if known is None:
        return EngineStatus(state, sentence, None, None, {}, None, None)
    return EngineStatus(state, sentence, known.pid, time.time() - known.heartbeat, known.info, known.error, known.traceback)


def start_engine(runs_dir: str | os.PathLike, *arguments: str) -> subprocess.Popen:
    """`python -m lab.engine` as a session of its own, its output in runs/engine.log."""
    runs = Path(runs_dir).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    own_session = ({"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP} if os.name == "nt"
                   else {"start_new_session": True})
    package_home = str(Path(__file__).resolve().parent.parent)  # a checkout that was never installed works too
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (package_home, os.environ.get("PYTHONPATH"))))}
    with open(runs / LOG_NAME, "a", encoding="utf-8") as log:
        return subprocess.Popen([sys.executable, "-m", "lab.engine", "--runs", str(runs), *arguments], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, env=environment, **own_session)


def process_is_there(pid: int, since: float) -> bool:
    """Whether the process that had this id at the time `since` still runs (ids are given out again)."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < since + 1
    except psutil.NoSuchProcess:
        return False


def _alive(age: float) -> tuple[str, str]:
    if age < STALE_SECONDS:
        return "running", "The engine is running."
    return "stale", f"The engine has given no sign of life for {age:.0f} s. It may be busy or the machine was asleep; nothing was ended."
