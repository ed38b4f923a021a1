"""The two kinds of work the engine does, each advanced by one event at a time: a run that trains, a group to sample.

Here events of a trainer become rows of the store. A piece of work that breaks stores why and ends; it never takes the
engine with it. Leaves out: whose turn it is, and commands (`lab.engine`).
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.config import RunConfig
from lab.errors import CommandError, sentence_of
from lab.records import (
    AwaitingScores,
    ColdStartStep,
    Completion,
    EvaluationFailed,
    EvaluationProgress,
    EvaluationRecord,
    Group,
    GroupSampled,
    MemoryRanShort,
    RewardAwaited,
    ScoringFailed,
    StepRecord,
    TokensSampled,
)
from lab.rewards.by_hand import digest
from lab.storage.attempts import ChangesAgain, begin_attempt
from lab.storage.own_files import kept
from lab.storage.plans import corrections, form_of, keep_plan
from lab.storage.run_folder import RunFolder, driver_info
from lab.store import Command, Run, Store
from lab.trainer import Trainer
from lab.training.checkpoint import as_before
from lab.training.sampling import sample_group

if TYPE_CHECKING:
    from lab.engine import Engine
    from lab.policy import Policy

WAITING = "Waiting for scores given by hand."


def start_run(engine: Engine, run: Run, *, resume: bool) -> RunWork:
    """Loads what the run needs. A resume goes on from its last checkpoint as a new attempt, or from the beginning; a branch
    begins at the checkpoint it was given.

    Raises ModelError, ConfigError, TaskError or RewardNotFound for a run that cannot start.
    """
    store, folder = engine.store, RunFolder(engine.store, run.id)
    checkpoint = folder.checkpoints()[-1][1] if (resume or run.parent) and folder.checkpoints() else None
    before = run.info or (store.run(run.parent).info if run.parent and store.run(run.parent) else {})
    config = as_before(RunConfig.from_dict(run.config), before) if checkpoint else RunConfig.from_dict(run.config)
    policy = engine.models.get(config, way=before.get("way") if checkpoint else None)
    policy.use_threads(config.num_threads)
    if checkpoint:
        trainer = Trainer.load(checkpoint, policy=policy, adapter=run.id)
    else:
        trainer = Trainer(config, policy=policy, adapter=run.id)
    if resume:
        begin_attempt(store, folder, run, trainer)
    resolved = policy.resolved
    trainer.corrections = corrections(store.runs(), model=config.model, **form_of(resolved))
    store.set_info(run.id, {**run.info, **driver_info(), **engine.models.info(), **resolved})
    return RunWork(engine, run.id, trainer, folder)


class RunWork:
    """A run in the engine. `playing` says that it wants turns; `ended`, that it is out of the engine."""

    awaits: RewardAwaited | None = None  # what its scores wait for

    def __init__(self, engine: Engine, run: str, trainer: Trainer, folder: RunFolder):
        self.run, self.trainer = run, trainer
        self.playing, self.ended = False, False
        self._engine, self._store, self._folder = engine, engine.store, folder
        self._owner, self._attempt = self._store.run(run).owner, self._store.run(run).attempt
        events = [e for e in self._store.events(run) if e.attempt == self._attempt]
        self._again = ChangesAgain(events)
        self._given = {e.data["id"]: e.data["scores"] for e in events if e.kind == "scores"}  # by hand, for the completions they tell
        self._steps_left: int | None = None
        self._live: LiveTexts | None = None
        self._saved_at: int | None = None
        self._unscored = False  # completions wait for their scores
        self._asked: tuple[str, dict[str, float]] | None = None  # completions and criteria that a person was last asked about
        self._planned: dict[str, Any] | None = None  # the plan as it stands in the store
        self._again.make(self.trainer)

    def play(self, steps: int | None = None) -> None:
        """Goes on: to the end, or for a number of steps and then pauses."""
        self.playing, self._steps_left = True, steps
        self._store.set_status(self.run, "training")

    def pause(self, why: str | None = None) -> None:
        """No turns until `play`. `why` is shown where the run did not pause because somebody asked."""
        self.playing = False
        self._store.set_status(self.run, "paused", error=why)

    def change(self, settings: dict[str, Any]) -> int:
        """Live settings, from the step that is returned; stored, so that a resume makes them again. Raises ConfigError.

        A checkpoint is saved first, from which the run can be branched as it was without them.
        """
        settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        if "rewards" in settings:
            settings["rewards"] = kept(settings["rewards"], self._folder.path)
        self.save()
        first = self.trainer.change(**settings)
        if self._unscored:  # then they apply at once, to the completions that wait
            first = self.trainer.step + 1
        self._store.add_event(self.run, first, "change", settings, attempt=self._attempt)
        return first

    def give_scores(self, args: dict[str, Any]) -> None:
        """`scores` that a person gave to the completions told by `id`; stored, so that a resume gives them again. The run goes on.

        Raises ScoreError, or CommandError where these completions no longer wait.
        """
        if not self.trainer.waiting or args.get("id") != digest(self.trainer.waiting):
            raise CommandError("These completions no longer wait for scores. Look at the run again.")
        scores = self.trainer.give_scores(args.get("scores"))
        self._store.add_event(self.run, self.trainer.step + 1, "scores", {"id": args["id"], "scores": scores}, attempt=self._attempt)
        self.play(self._steps_left)

    def advance(self) -> None:
        """Takes one event from the trainer. A failure is stored and ends the run, nothing else."""
        try:
            self.trainer.policy.use_threads(self.trainer.config.num_threads)
            self._keep_plan()
            event = next(self.trainer.events(), None)
            self.awaits = awaited(event)
            self._take(event)
        except Exception as error:
            self.awaits = None
            self._fail(error)

    def save(self) -> None:
        """A checkpoint of the step reached, unless there is one."""
        if self._saved_at != self.trainer.step:
            self._folder.checkpoint(self.trainer)
            self._saved_at = self.trainer.step
            self._store.add_event(self.run, self.trainer.step, "checkpoint", attempt=self._attempt)

    def end(self, status: str, why: str | None = None) -> None:
        """Saves and leaves the engine."""
        self.save()
        self._leave(status, why)

    def _take(self, event: Any) -> None:
        self._tell_evaluating(event)
        match event:
            case None:
                self.end("finished", self.trainer.stopped)
            case TokensSampled():
                self._live = self._live or self._begin_live(event)
                self._live.write(event.partial)
            case StepRecord():
                self._keep(event)
            case ScoringFailed():
                self._unscored = True
                self._store.add_event(self.run, event.step, "scoring_failed", {"error": str(event.error)}, attempt=self._attempt)
                self.pause(str(event.error))
            case EvaluationRecord():
                self._store.write_evaluation(self.run, event, attempt=self._attempt)
            case EvaluationFailed():
                self._store.add_event(self.run, event.step, "evaluation_failed", {"message": event.message}, attempt=self._attempt)
            case MemoryRanShort():
                self._store.add_event(self.run, event.step, "memory", {"message": event.message}, attempt=self._attempt)
            case ColdStartStep():
                self._store.add_event(self.run, 0, "cold_start", {"step": event.step, "of": event.of, "loss": event.loss},
                                      attempt=self._attempt)
            case AwaitingScores():
                self._ask_for_scores(event)

    def _ask_for_scores(self, event: AwaitingScores) -> None:
        """The run waits; the checkpoint holds the completions, so that they are the same ones after a crash."""
        told = digest(event.groups)
        if told in self._given:
            self.trainer.give_scores(self._given.pop(told))
            return
        self._unscored = True
        if (asked := (told, event.criteria)) == self._asked:  # told to go on without them
            return self.pause(WAITING)
        self._asked = asked
        self._folder.checkpoint(self.trainer)
        self._saved_at = self.trainer.step
        shown = [{"index": g.index, "prompt": g.prompt, "completions": [
            {"index": c.index, "text": c.text, "tokens": len(c.token_ids), "finished": c.finished} for c in g.completions]}
            for g in event.groups]
        self._store.add_event(self.run, event.step, "awaiting_scores", {"id": told, "criteria": event.criteria, "groups": shown},
                              attempt=self._attempt)
        self.pause(WAITING)

    def _begin_live(self, event: TokensSampled) -> LiveTexts:
        rollout = self._store.begin_rollout(owner=self._owner, kind="train", prompts=event.prompts, run=self.run, attempt=self._attempt,
                                            step=event.step, adapter=self.run, adapter_step=event.step - 1)
        return LiveTexts(self._store, rollout)

    def _keep(self, step: StepRecord) -> None:
        rollout = self._live.rollout if self._live else None
        config = self.trainer.config
        self._store.write_step(self.run, step, attempt=self._attempt, rollout=rollout, seconds=step.metrics.get("step_time"),
                               tokens=config.store_tokens, keep_token_steps=config.keep_token_steps)
        self._live, self._unscored = None, False
        self._again.make(self.trainer)
        if self.trainer.step % config.save_steps == 0:
            self.save()
        if self._steps_left is not None and self.trainer.step < config.max_steps:  # after the last the stream still has an evaluation
            self._steps_left -= 1
            if self._steps_left == 0:
                self.pause()

    def _tell_evaluating(self, event: Any) -> None:
        if isinstance(event, RewardAwaited):  # also within an evaluation
            return
        if isinstance(event, EvaluationProgress):
            self._engine.evaluating = {"run": self.run, "share": event.share}
        elif self._engine.evaluating and self._engine.evaluating["run"] == self.run:
            self._engine.evaluating = None

    def _keep_plan(self) -> None:
        report = self.trainer.plan_ahead().report
        if report is not self._planned:
            self._planned = report
            keep_plan(self._store, self.run, report)

    def _fail(self, error: Exception) -> None:
        traceback.print_exc()
        self._leave("failed", sentence_of(error), traceback.format_exc())

    def _leave(self, status: str, why: str | None = None, trace: str | None = None) -> None:
        self.playing, self.ended = False, True
        if self._live:
            self._store.finish_rollout(self._live.rollout, [], status="cancelled")
        self._store.set_status(self.run, status, error=why, traceback=trace)
        self.trainer.close()


class SampleWork:
    """A group (or several) to be sampled and scored, without learning from it."""

    awaits: RewardAwaited | None = None  # what its scores wait for

    def __init__(self, engine: Engine, command: Command):
        self.command, self.begun, self.ended = command, False, False
        self._engine, self._store, self._rollout = engine, engine.store, command.result["rollout"]
        self._groups: list[Group] = []
        self._of_run: str | None = None  # the run in the engine whose adapter writes
        self._events = self._run()

    def advance(self) -> None:
        """Takes one event. A failure ends this sample with a sentence; texts that are complete stay."""
        self.begun = True
        try:
            event = next(self._events, None)
            self.awaits = awaited(event)
            if event is None:
                self._finish("done")
        except CommandError as error:
            self._finish("failed", str(error))
        except Exception as error:
            run_ended = self._of_run and self._of_run not in self._engine.runs
            why = "The run ended while this group was being written. Sample again." if run_ended else sentence_of(error)
            traceback.print_exc()
            self._finish("failed", why)

    def cancel(self) -> None:
        """What was written so far stays, without scores."""
        self._events.close()
        self._groups += self._unfinished()
        self._finish("cancelled")

    def _unfinished(self) -> list[Group]:
        """Groups in mid-writing, from their partial texts; which tokens they are made of is not known here."""
        written: dict[int, Group] = {}
        for live in self._store.live():
            if live.rollout == self._rollout and live.group not in {group.index for group in self._groups}:
                group = written.setdefault(live.group, Group(live.group, live.prompt, [], {}, []))
                group.completions.append(Completion(live.index, live.text, [], live.ended))
        return list(written.values())

    def _run(self) -> Generator[Any, None, None]:
        args = self.command.args
        rows = _rows(args)
        config, adapter_run = self._config(args)
        policy = self._engine.models.get(config)
        policy.use_threads(config.num_threads)
        adapter = self._adapter(policy, config, adapter_run)
        self._store.start_rollout(self._rollout, prompts=[str(row["prompt"]) for row in rows], adapter_step=adapter.step,
                                  settings=config.to_dict())
        live = LiveTexts(self._store, self._rollout)
        for event in sample_group(policy, config, rows, adapter.name, reference=adapter.reference):
            if isinstance(event, TokensSampled):
                live.write(event.partial)
            if isinstance(event, GroupSampled):  # kept from here on: a reward that breaks must not lose the texts
                self._groups.append(event.group)
            yield event

    def _config(self, args: dict[str, Any]) -> tuple[RunConfig, Run | None]:
        """The settings asked for; under a run's adapter, those of the run with the asked ones on top, on the run's model."""
        asked = dict(args.get("config") or {})
        if args.get("adapter", "base") in ("base", None):
            return RunConfig.from_dict(asked), None
        run = self._store.run(args["adapter"])
        if run is None:
            raise CommandError(f"There is no run {args['adapter']!r} whose adapter could be used.")
        fixed = {name: run.config[name] for name in ("model", "dtype", "load_in_4bit", "device") if name in run.config}
        return RunConfig.from_dict({**run.config, **asked, **fixed}), run

    def _adapter(self, policy: Policy, config: RunConfig, run: Run | None) -> LoadedAdapter:
        if run is None:
            return LoadedAdapter(None, None, None)
        if run.id in self._engine.runs:
            self._of_run = run.id
        return adapter_of(self._engine, policy, config, run)

    def _finish(self, status: str, error: str | None = None) -> None:
        self.ended = True
        self._store.finish_rollout(self._rollout, self._groups, status=status, error=error)
        self._store.finish_command(self.command.id, status, error=error)


def awaited(event: Any) -> RewardAwaited | None:
    """The event, if it says that scores are waited for."""
    return event if isinstance(event, RewardAwaited) else None


class LoadedAdapter(NamedTuple):
    """Adapters on the policy by name; None is the base."""

    name: str | None
    reference: str | None  # what the run measures KL against
    step: int | None


def adapter_of(engine: Engine, policy: Policy, config: RunConfig, run: Run) -> LoadedAdapter:
    """The adapter of a run in the engine as it is now, or of its last checkpoint."""
    if run.id in engine.runs:
        trainer = engine.runs[run.id].trainer
        return LoadedAdapter(run.id, trainer.reference, trainer.step)
    checkpoints = RunFolder(engine.store, run.id).checkpoints()
    if not checkpoints:
        raise CommandError(f"Run {run.name!r} has no checkpoint yet, so there is no adapter to sample with.")
    step, path = checkpoints[-1]
    return LoadedAdapter(*_saved_adapters(policy, path, f"saved-{run.id}-{run.attempt}-{step}"), step)


class LiveTexts:
    """Partial texts of one rollout, written as often as the sampler tells them, but only those that changed."""

    def __init__(self, store: Store, rollout: int):
        self.rollout, self._store = rollout, store
        self._seen: dict[tuple[int, int], tuple[int, bool]] = {}

    def write(self, partial: Iterable[tuple[int, int, str, int, bool]]) -> None:
        """`partial` as TokensSampled has it: (group, index, text, tokens, ended) of each completion."""
        news = [p for p in partial if self._seen.get(p[:2]) != (p[3], p[4])]
        if news:
            self._seen |= {p[:2]: (p[3], p[4]) for p in news}
            self._store.write_live(self.rollout, news)


def _rows(args: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows to answer: `prompts` holds typed prompts, or a task's rows. Without a known answer accuracy does not apply."""
    rows = [{"answer": None} | ({"prompt": prompt} if isinstance(prompt, str) else prompt) for prompt in args.get("prompts") or []]
    if not rows or not all(row.get("prompt") for row in rows):
        raise CommandError("There is no prompt. Type one, or choose a task's example.")
    return rows


def _saved_adapters(policy: Policy, folder: Path, name: str) -> tuple[str, str | None]:
    """The checkpoint's adapter and reference on the policy; those loaded for an earlier sample go."""
    reference = f"{name}-reference" if (folder / "reference").is_dir() else None
    if name not in policy.adapters:
        for old in [n for n in policy.adapters.names() if n.startswith("saved-")]:
            policy.remove_adapter(old)
        policy.adapters.add_from(name, folder)
        if reference:
            policy.adapters.add_from(reference, folder / "reference")
    return name, reference
