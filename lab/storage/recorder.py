"""Recording a trainer from Python, and reading runs back: the store without the page.

    record(trainer, "my-run")                       # trains to the end, every step into ./runs
    for step in recording(trainer, "my-run"): ...   # the same, step by step
    run = open_run("my-run")
    run.metrics                                     # a DataFrame with TRL's metric names
    for step in resuming(run.trainer(), run): ...   # goes on from its last checkpoint

Leaves out: the engine (runs started from the page), figures (`lab.charts`).
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.config import RunConfig
from lab.records import AwaitingScores, ColdStartStep, EvaluationFailed, EvaluationRecord, ScoringFailed, StepRecord
from lab.rewards.by_hand import ScoresAwaited
from lab.storage import default_runs_dir
from lab.storage.attempts import ChangesAgain, begin_attempt, refuse_if_going
from lab.storage.plans import corrections, form_of, keep_plan
from lab.storage.run_folder import RunFolder, driver_info
from lab.store import Run, Store, open_store

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lab.trainer import Trainer

SECONDS_BETWEEN_DRAWINGS = 0.5


def record(trainer: Trainer, name: str, runs_dir: str | os.PathLike | None = None) -> OpenRun:
    """Trains to the end and writes every step to the store of `runs_dir` (default: `default_runs_dir()`)."""
    for _ in recording(trainer, name, runs_dir):
        pass
    return open_run(name, runs_dir)


def recording(trainer: Trainer, name: str, runs_dir: str | os.PathLike | None = None) -> Iterator[StepRecord]:
    """Yields the trainer's steps, each already in the store.

    Checkpoints are written as the config says, and one when the loop ends: at the last step (the run is "finished"), or
    when the caller leaves the loop or interrupts it ("stopped"; `resuming`, the command line and the page go on with it). An
    exception from the trainer is stored with its traceback ("failed") and goes on to the caller.
    """
    store = open_store(runs_dir or default_runs_dir())
    run = store.create_run(trainer.config.to_dict(), name=name, status="training", info=driver_info() | trainer.policy.resolved)
    with _driving(store, run, trainer) as folder:
        folder.keep_rewards(trainer)
        store.set_config(run, trainer.config.to_dict())
        yield from _kept_steps(trainer, store, folder)


def resuming(trainer: Trainer, run: OpenRun) -> Iterator[StepRecord]:
    """As `recording`, into `run`, as a new attempt of it: its steps after the trainer's are superseded. The trainer is
    `run.trainer()`, or `Trainer.load` of one of its checkpoints. Raises CommandError for a run that another process has."""
    store = run.store
    before = store.run(run.id)
    refuse_if_going(before)
    begin_attempt(store, RunFolder(store, run.id), before, trainer)
    store.set_info(run.id, {**before.info, **driver_info(), **trainer.policy.resolved})
    store.set_status(run.id, "training")
    with _driving(store, run.id, trainer) as folder:
        yield from _kept_steps(trainer, store, folder)


@contextmanager
def _driving(store: Store, run: str, trainer: Trainer) -> Iterator[RunFolder]:
    """However the block ends, the store says so, and what can be gone on with has a checkpoint."""
    folder, status = RunFolder(store, run), "failed"
    try:
        yield folder
        status = "finished"
    except (GeneratorExit, KeyboardInterrupt, ScoresAwaited):
        status = "stopped"
        raise
    except BaseException as error:  # whatever it is, the run must not look as if it still went
        store.set_status(run, "failed", error=str(error) or type(error).__name__, traceback=traceback.format_exc())
        raise
    finally:
        # one of this step may lack what came after it: completions that wait for scores
        if status == "stopped" or (status == "finished" and trainer.step not in dict(folder.checkpoints())):
            folder.checkpoint(trainer)
        if status != "failed":
            store.set_status(run, status, error=trainer.stopped)
        store.close()


def _kept_steps(trainer: Trainer, store: Store, folder: RunFolder) -> Iterator[StepRecord]:
    """Every step in the store, a checkpoint where one is due, the plan with what was measured beside it; changes that an
    earlier attempt made are made again."""
    run, attempt = folder.run, store.run(folder.run).attempt
    again = ChangesAgain(event for event in store.events(run) if event.attempt == attempt)
    again.make(trainer)
    report = plan_with(store, trainer)
    keep_plan(store, run, report)
    for step in _steps(trainer, store, run):
        if trainer.planning.report is not report:
            report = trainer.planning.report
            keep_plan(store, run, report)
        store.write_step(run, step, seconds=step.metrics.get("step_time"), tokens=trainer.config.store_tokens,
                         keep_token_steps=trainer.config.keep_token_steps)
        again.make(trainer)
        if trainer.step % trainer.config.save_steps == 0:
            folder.checkpoint(trainer)
        yield step


def plan_with(store: Store, trainer: Trainer) -> dict[str, Any] | None:
    """The trainer's plan, corrected by what earlier runs of the store measured."""
    if trainer.planning is None:
        trainer.corrections = corrections(store.runs(), model=trainer.config.model, **form_of(trainer.policy.resolved))
    return trainer.plan_ahead().report


def _steps(trainer: Trainer, store: Store, run: str) -> Iterator[StepRecord]:
    """As iterating over the trainer; evaluations and the cold start go to the store."""
    for event in trainer.events():
        match event:
            case StepRecord():
                yield event
            case EvaluationRecord():
                store.write_evaluation(run, event)
            case EvaluationFailed():
                store.add_event(run, event.step, "evaluation_failed", {"message": event.message})
            case ColdStartStep():
                store.add_event(run, 0, "cold_start", {"step": event.step, "of": event.of, "loss": event.loss})
            case ScoringFailed():
                raise event.error
            case AwaitingScores():
                raise ScoresAwaited(event.step, event.groups, event.criteria)


def open_run(name: str, runs_dir: str | os.PathLike | None = None) -> OpenRun:
    """The newest run of this name (or the run with this id). KeyError lists the names there are."""
    store = open_store(runs_dir or default_runs_dir())
    found = store.runs(name=name) or store.runs(run=name)
    if not found:
        known = ", ".join(dict.fromkeys(run.name for run in store.runs())) or "none yet"
        raise KeyError(f"There is no run {name!r} in {store.path.parent}. Runs there: {known}.")
    return OpenRun(store, found[0])


class OpenRun:
    """A stored run. Frames are read once; open the run again to see later steps.

    A branch begins at `parent_step` of the run with the id `parent`, and holds the steps after it: for those before,
    `open_run(run.parent)`. Both are None for a run of its own.
    """

    def __init__(self, store: Store, run: Run):
        self.store, self.run = store, run
        self.id, self.name, self.status, self.config = run.id, run.name, run.status, run.config
        self.parent, self.parent_step = run.parent, run.parent_step

    def __repr__(self) -> str:
        branch = f", branched from {self.parent} at step {self.parent_step}" if self.parent else ""
        return f"<run {self.name!r} ({self.id}): {self.status}, step {self.run.step}{branch}>"

    @property
    def folder(self) -> Path:
        """Where its checkpoints, reward files and TRL's files are."""
        return RunFolder(self.store, self.id).path

    def trainer(self) -> Trainer:
        """A trainer that stands where the last checkpoint does, or at the beginning where there is none.

        Raises RewardNotFound where the run had reward functions written in Python: `Trainer.load` takes them.
        """
        from lab.trainer import Trainer

        checkpoints = RunFolder(self.store, self.id).checkpoints()
        return Trainer.load(checkpoints[-1][1]) if checkpoints else Trainer(RunConfig.from_dict(self.config))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per step, TRL's metric names as columns. A branch's rows begin after `parent_step`."""
        from lab.frames import metrics_frame

        return metrics_frame(self.store.steps_after(self.id, limit=None))

    @cached_property
    def completions(self) -> pd.DataFrame:
        """One row per completion, TRL's columns: step, prompt, completion, one per reward function, advantage."""
        from lab.frames import completions_frame

        return completions_frame(list(self.steps()))

    @cached_property
    def marks(self) -> list[tuple[int, str]]:
        """Live changes as (step from which they hold, words), for `lab.charts.training_figure`."""
        from lab.storage.changes import changes_made, marks

        return marks(changes_made(self.run, self.store.events(self.id)))

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row per evaluation: step, adapter (base or tuned), eval_accuracy, eval_pass@k and the other metrics."""
        import pandas as pd

        return pd.DataFrame([{"step": e.step, "adapter": e.adapter, **e.metrics} for e in self.store.evaluations(self.id)])

    def steps(self, *, arrays: bool = False) -> Iterator[StepRecord]:
        """Every step of the newest line, as the trainer gave it; `arrays` adds the token arrays."""
        for row in self.store.steps_after(self.id, limit=None).rows:
            yield self.step(int(row[0]), arrays=arrays)

    def step(self, step: int, *, arrays: bool = True) -> StepRecord:
        """One step as the trainer gave it, with the token arrays. KeyError where the run has no such step."""
        found = self.store.step(self.id, step, arrays=arrays)
        if found is None:
            raise KeyError(f"Run {self.name!r} has no step {step}; its newest is {self.run.step}.")
        return found

    def tokens(self, step: int) -> pd.DataFrame:
        """One row per completion token of a step: log-probabilities, entropy, and the ratio, KL and clip that follow from them.

        Under the settings of that step, live changes included. KeyError where the run has no such step; empty where its token
        arrays are not kept any more (`keep_token_steps`) or never were (`store_tokens`).
        """
        from lab.frames import tokens_frame
        from lab.storage.changes import settings_now

        settings = settings_now(self.run, [event for event in self.store.events(self.id) if event.step <= step])
        return tokens_frame(self.step(step), settings)


def watch(steps: Iterable[StepRecord], metrics: tuple[str, ...] = ("reward", "kl")) -> list[StepRecord]:
    """Goes through `steps` (a trainer, or `recording(...)`) and keeps one live figure in the notebook's cell.

    Returns the records. `metrics` are those the lab draws; ValueError names them if one is not. Needs IPython.
    """
    from IPython.display import display

    from lab.charts import CRITIC_CURVES, CURVES

    known = [curve.metric for curve in (*CURVES, *CRITIC_CURVES)]
    if not set(metrics) <= set(known):
        raise ValueError(f"Metrics that can be watched: {', '.join(known)}.")
    seen, handle, drawn = [], None, 0.0
    for step in steps:
        seen.append(step)
        if handle is None:
            handle = display(_figure(seen, metrics), display_id=True)
        elif time.monotonic() - drawn > SECONDS_BETWEEN_DRAWINGS:
            handle.update(_figure(seen, metrics))
            drawn = time.monotonic()
    if handle is not None:
        handle.update(_figure(seen, metrics))
    return seen


def _figure(steps: list[StepRecord], metrics: tuple[str, ...]) -> go.Figure:
    import pandas as pd

    from lab.charts import part_columns, training_figure

    shown = [*metrics, *(part_columns(steps[0].metrics) if "reward" in metrics else [])]
    return training_figure(pd.DataFrame([{"step": s.step, **{name: s.metrics.get(name) for name in shown}} for s in steps]))
