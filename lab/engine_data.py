"""Two more kinds of work of the engine: a difficulty scan of a data set, and the look before a run.

A scan is patient: samples go before it, and a training has half of the time. What it has found so far is in the store after
every few prompts, so that the page shows it growing and a cancelled scan keeps it. Leaves out the sampling itself
(`lab.training.difficulty`, `lab.training.preflight`).
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from lab.config import RunConfig
from lab.engine_work import awaited
from lab.errors import CommandError, sentence_of
from lab.records import RewardAwaited
from lab.storage.datasets import Datasets
from lab.store import Command
from lab.tasks.difficulty import Difficulty, as_json, scan_of
from lab.training.difficulty import scan_rows
from lab.training.preflight import look

if TYPE_CHECKING:
    from lab.engine import Engine

MOST_PROMPTS, MOST_SAMPLES = 4096, 64


class QueuedWork(ABC):
    """Work that is a generator: each advance takes one event; how it ends goes to its command."""

    patient = False  # whether samples go before it and a training takes turns with it
    awaits: RewardAwaited | None = None  # what its scores wait for

    def __init__(self, engine: Engine, command: Command):
        self.command, self.begun, self.ended = command, False, False
        self.engine = engine
        self.result: dict[str, Any] = {}
        self._events = self.run()

    @abstractmethod
    def run(self) -> Generator[Any, None, None]:
        """The work itself; what it yields is not looked at."""

    def advance(self) -> None:
        """Takes one event. A failure ends this work with a sentence, nothing else."""
        self.begun = True
        try:
            self.awaits = awaited(next(self._events))
        except StopIteration:
            self.finish("done")
        except CommandError as error:
            self.finish("failed", str(error))
        except Exception as error:
            traceback.print_exc()
            self.finish("failed", sentence_of(error))

    def cancel(self) -> None:
        """Ends the work where it is; what was found so far counts."""
        self._events.close()
        self.finish("cancelled")

    def finish(self, status: str, error: str | None = None) -> None:
        """Gives the command its status and `result`; the work wants no more turns."""
        self.ended = True
        self.engine.store.finish_command(self.command.id, status, result=self.result, error=error)

    def policy(self, config: RunConfig):
        """The loaded model of this config, with its number of threads in force."""
        policy = self.engine.models.get(config)
        policy.use_threads(config.num_threads)
        return policy


class ScanWork(QueuedWork):
    """args: dataset, config, samples (K of each prompt), prompts (at most so many). The result is in the data set's `scan`."""

    patient = True

    def __init__(self, engine: Engine, command: Command):
        self._datasets = Datasets(engine.store.path)
        self._dataset = self._datasets.find(str(command.args.get("dataset")), command.owner)
        if self._dataset is None:
            raise CommandError(f"There is no data set {command.args.get('dataset')!r}.")
        self._samples = min(MOST_SAMPLES, max(2, int(command.args.get("samples") or 8)))
        self._most = min(MOST_PROMPTS, max(1, int(command.args.get("prompts") or 64)))
        self._found: list[Difficulty] = []
        self._of = 0
        super().__init__(engine, command)
        self._tell("queued")

    def run(self) -> Generator[Any, None, None]:
        """Samples each prompt that is not held out, and tells what was found after every few."""
        config = RunConfig.from_dict(self.command.args.get("config") or {})
        numbered = [(place, row) for place, row in enumerate(self._datasets.rows(self._dataset)) if row.get("held_out") is not True]
        numbered = numbered[:self._most]
        self._of = len(numbered)
        self._tell("loading")
        policy = self.policy(config)
        self._tell("scanning")
        for event in scan_rows(policy, config, [row for _, row in numbered], self._samples):
            if isinstance(event, list):
                self._found += [Difficulty(**{**as_json(found), "row": numbered[found.row][0]}) for found in event]
                self._tell("scanning")
            yield event

    def finish(self, status: str, error: str | None = None) -> None:
        """The data set keeps how the scan ended; the command's result counts the prompts."""
        self._tell(status, error)
        self.result = {"prompts": len(self._found)}
        super().finish(status, error)

    def _tell(self, status: str, error: str | None = None) -> None:
        config = self.command.args.get("config") or {}
        settings = {name: config[name] for name in ("model", "rewards", "temperature", "max_completion_length") if name in config}
        self._datasets.set_scan(self._dataset.id, {
            "status": status, "error": error, "command": self.command.id, "settings": settings, "samples": self._samples, "of": self._of,
            "prompts": [as_json(found) for found in self._found], "summary": scan_of([as_json(f) for f in self._found]).summary()})


class PreflightWork(QueuedWork):
    """args: config. The result is the pre-flight as a dict; nothing else is kept."""

    def run(self) -> Generator[Any, None, None]:
        """Samples a few groups; what they promise becomes the result."""
        config = RunConfig.from_dict(self.command.args.get("config") or {})
        self.result = (yield from look(self.policy(config), config)).to_dict()
