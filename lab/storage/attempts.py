"""Going on with a run: a new attempt after its last checkpoint, in which live changes made after it are made again.

For the engine, which resumes from the page, and for the recorder, which resumes from Python and the command line. Leaves out
what a checkpoint holds (`training.checkpoint`) and more steps than a run was meant to have (`training.branch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lab.errors import CommandError
from lab.jobs import process_is_there
from lab.storage.rows import Run, RunEvent
from lab.storage.run_folder import RunFolder
from lab.store import ALIVE_STATUSES, Store

if TYPE_CHECKING:
    from lab.trainer import Trainer


def refuse_if_going(run: Run) -> None:
    """Raises CommandError for a recording, and for a run that a living process has or the engine is about to take."""
    if run.kind == "recorded":
        raise CommandError(f"Run {run.name!r} is a recording and cannot go on. Start a run with its settings instead.")
    driver = run.info.get("driver")
    driven = driver and process_is_there(driver["pid"], driver["since"])
    if run.status in ALIVE_STATUSES and (driven or run.status == "queued"):
        where = f"process {driver['pid']} has it" if driven else "it waits for the engine"
        raise CommandError(f"Run {run.name!r} is still {run.status}: {where}. Stop it there first.")


def begin_attempt(store: Store, folder: RunFolder, run: Run, trainer: Trainer) -> None:
    """Changes made and scores given after the checkpoint come again at their steps, so that the steps done again are the same."""
    from_step = trainer.step
    again = [e for e in store.events(run.id) if e.kind in ("change", "scores") and e.attempt == run.attempt and e.step > from_step]
    attempt = store.begin_attempt(run.id, from_step)
    folder.drop_files_after(from_step)
    store.add_event(run.id, from_step, "resumed", {"attempt": attempt, "reached_before": run.step, "not_as_before": trainer.not_as_before})
    for event in again:
        store.add_event(run.id, event.step, event.kind, event.data)


class ChangesAgain:
    """The changes among `events` of a new attempt, which its trainer has still to make."""

    def __init__(self, events: Iterable[RunEvent]):
        self._left = sorted(((e.step, e.data) for e in events if e.kind == "change"), key=lambda change: change[0])

    def make(self, trainer: Trainer) -> None:
        """Those that hold from the trainer's next step."""
        while self._left and self._left[0][0] <= trainer.step + 1:
            trainer.change(**{name: tuple(v) if isinstance(v, list) else v for name, v in self._left.pop(0)[1].items()})
