"""What is going on now: the engine's state, the shown run, partial texts, who waits for what. One answer per poll.

Keeps the engine going from a thread of its own; a poll only reads. Leaves out everything that a run remembers: steps
and groups have routes of their own.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any

from lab.jobs import Engine, EngineStatus
from lab.store import Command, Run
from lab.web import views
from lab.web.actions import Lab

BEAT_SECONDS = 1.0
_PHASES = {"queued": "loading", "loading": "loading", "training": "training", "paused": "paused", "finished": "finished",
           "stopped": "finished", "failed": "failed", "interrupted": "failed"}


class Keeper:
    """Starts the engine, starts it again when it fell, and tells it that a web process is there."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.status = EngineStatus("starting", "The engine is starting.", None, None, {}, None, None)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="engine keeper", daemon=True)

    def start(self) -> None:
        """Begins to keep the engine, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; the engine goes on."""
        self._over.set()
        self._thread.join(timeout=2 * BEAT_SECONDS)

    def restart(self) -> None:
        """Does not wait for the pause after a death, nor for an engine of another version to have nothing to do."""
        status = self.engine.status()
        if status.state in ("dead", "off"):
            self.engine.start()
        elif status.other_version:
            self.engine.end()
        self.status = self.engine.status()

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                self.engine.store.beat("web")
                self.status = self.engine.ensure()
            except Exception:  # a full disk, a locked file: the next beat tries again
                traceback.print_exc()
            self._over.wait(BEAT_SECONDS)


def now(lab: Lab, keeper: Keeper, owner: str, run_id: str | None, after: float) -> dict[str, Any]:
    """Everything the page polls for. `after` is the cursor of the partial texts."""
    run = lab.find(owner, run_id)[1] if run_id else lab.current_run(owner)
    commands = lab.store.open_commands()
    partials = [live for live in lab.store.live(after) if live.owner == owner]
    return {"phase": _phase(keeper.status, run, [c for c in commands if c.owner == owner]), "engine": engine_view(keeper.status),
            "run": views.run_view(run) if run else None, "partials": [views.live_view(live) for live in partials],
            "after": max([after, *(live.updated for live in partials)]), "queue": [_queued(c, owner) for c in commands], "now": time.time()}


def engine_view(status: EngineStatus) -> dict[str, Any]:
    """The engine's state in a word and a sentence, and what its last heartbeat said."""
    return {"state": status.state, "sentence": status.sentence, "heartbeat_age": status.heartbeat_age, "error": status.error,
            "other_version": status.other_version, "traceback": status.traceback, "info": status.info}


def _phase(engine: EngineStatus, run: Run | None, own: list[Command]) -> str:
    """idle, loading, sampling, training, paused, finished or failed: what the strip's data-state says."""
    if engine.state == "dead":
        return "failed"
    phase = _PHASES[run.status] if run and run.kind != "recorded" else "idle"
    if phase in ("training", "paused", "loading"):
        return phase
    if any(command.kind in ("sample", "evaluate") for command in own):
        return "sampling" if engine.info.get("phase") != "loading" else "loading"
    if engine.state == "starting":
        return "loading"
    return phase


def _queued(command: Command, owner: str) -> dict[str, Any]:
    """A command in the queue. Of other people's commands only the kind is told: it is what one waits for."""
    shown = {"kind": command.kind, "status": command.status, "mine": command.owner == owner}
    return shown | ({"id": command.id, "run": command.run, "result": command.result} if command.owner == owner else {})
