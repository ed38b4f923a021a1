"""An evaluation asked for from outside: base and tuned on the same held-out prompts, one event at a time.

The third kind of work of the engine, beside runs and samples; it waits in their queue. Evaluations that a run makes by
itself are events of its trainer (`lab.engine_work`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from lab.config import RunConfig
from lab.engine_work import adapter_of, awaited
from lab.errors import CommandError, sentence_of
from lab.records import EvaluationProgress, RewardAwaited
from lab.store import Command, Run
from lab.training.evaluation import Evaluating, evaluate

if TYPE_CHECKING:
    from lab.engine import Engine

BOTH = ("base", "tuned")
TOLD_EVERY = 0.3  # seconds between two rows of progress


class EvaluationWork:
    """Evaluates a run's adapter as it is now, or its last checkpoint, beside the base."""

    awaits: RewardAwaited | None = None  # what its scores wait for

    def __init__(self, engine: Engine, command: Command, run: Run):
        self.command, self.begun, self.ended = command, False, False
        self._engine, self._store, self._run_row = engine, engine.store, run
        self._metrics: dict[str, dict[str, float]] = {}
        self._share, self._told = 0.0, 0.0  # of what is to be answered; when it was last told
        self._events = self._run()

    def advance(self) -> None:
        """Takes one event; now and then the share that is done is told. A failure ends this work alone."""
        self.begun = True
        try:
            event = next(self._events, None)
            self.awaits = awaited(event)
            if event is None:
                self._finish("done")
            elif time.monotonic() - self._told > TOLD_EVERY:
                self._tell()
        except CommandError as error:
            self._finish("failed", str(error))
        except Exception as error:
            traceback.print_exc()
            self._finish("failed", sentence_of(error))

    def _tell(self) -> None:
        """The share done of all there is to answer, for whoever waits."""
        self._told = time.monotonic()
        self._store.tell_progress(self.command.id, share=self._share)

    def cancel(self) -> None:
        """Ends it; an adapter that was answered already keeps its numbers."""
        self._events.close()
        self._finish("cancelled")

    def _run(self) -> Generator[Any, None, None]:
        """`config` in the command's args changes settings of the evaluation; `adapters` names what to evaluate."""
        run, args = self._run_row, self.command.args
        config = RunConfig.from_dict({**run.config, **_only_evaluation(args.get("config") or {})})
        policy = self._engine.models.get(config)
        policy.use_threads(config.num_threads)
        tuned = adapter_of(self._engine, policy, config, run)
        asked = args.get("adapters") or BOTH
        for done, which in enumerate(asked):
            adapter = tuned.name if which == "tuned" else None
            record = yield from self._watched(evaluate(policy, config, adapter, step=tuned.step), done, len(asked))
            self._store.write_evaluation(run.id, record)
            self._metrics[which] = record.metrics

    def _watched(self, evaluating: Evaluating, done: int, of: int) -> Evaluating:
        while True:
            try:
                event = next(evaluating)
            except StopIteration as stop:
                return stop.value
            if isinstance(event, EvaluationProgress):
                self._share = (done + event.share) / of
            yield event

    def _finish(self, status: str, error: str | None = None) -> None:
        self.ended = True
        self._store.finish_command(self.command.id, status, result={"metrics": self._metrics}, error=error)


def _only_evaluation(settings: dict[str, Any]) -> dict[str, Any]:
    others = sorted(name for name in settings if not name.startswith("eval_"))
    if others:
        raise CommandError(f"{', '.join(others)} is no setting of an evaluation; those begin with eval_.")
    return settings
