"""The engine process: holds the model, carries out commands from the store, trains runs in turn, lets samples in between.

    python -m lab.engine --runs DIR

It is a session of its own, one per runs folder (a lock file sees to that). Whatever it does is a piece of work that
yields between events (`lab.engine_work`); between any two of them it takes commands, and a sample goes before training.
A run that fails is stored with its traceback and the engine goes on; an engine that fails stores its own. It ends by
itself when nothing is left to do and no web process has shown itself for a while. Leaves out: the page, and starting or
restarting the engine (`lab.jobs`).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import psutil

from lab.config import RunConfig
from lab.engine_models import Models, measured_machine
from lab.errors import CommandError, sentence_of
from lab.jobs import identity, process_is_there
from lab.ram import ram
from lab.storage.attempts import refuse_if_going
from lab.storage.rows import Command, Process, Run
from lab.storage.run_folder import RunFolder
from lab.store import ALIVE_STATUSES, Store, open_store
from lab.training.branch import branch, continue_run

if TYPE_CHECKING:
    from lab.engine_work import RunWork, SampleWork

BEAT_SECONDS = 1.0
IDLE_PAUSE = 0.02  # seconds between two looks for commands when nothing is to be done
IDLE_EXIT_SECONDS = 60.0
LOCK_SECONDS = 5.0
WORTH_TELLING = 1.0  # seconds that scores were waited for


class Engine:
    """Everything the process holds: models, runs, waiting samples."""

    def __init__(self, store: Store, *, idle_exit: float = IDLE_EXIT_SECONDS, identity: str | None = None):
        self.store, self.idle_exit, self.identity = store, idle_exit, identity
        self.models = Models(self)
        self.runs: dict[str, RunWork] = {}
        self.samples: deque[SampleWork] = deque()
        self.stopping = False
        self.phase = "starting"
        before = store.process("engine")
        self.machine: dict[str, Any] | None = (before.info if before else {}).get("machine")  # as it was last measured
        self._measured = False
        self.loading: dict[str, Any] | None = None
        self.evaluating: dict[str, Any] | None = None  # the run whose own evaluation is being made, and the share that is done
        self._owed = 0.0  # seconds that samples took from training: it has them back before the next sample begins
        self._web = _LastSeen()

    def serve(self) -> None:
        """Works until told to stop, or until nothing is left to do and nobody looks."""
        recover(self.store)
        self._warm_up()
        worked = time.monotonic()
        while not self.stopping:
            commands = self.store.take_commands()
            for command in commands:
                self._obey(command)
            if self._work() or commands:
                worked = time.monotonic()
            elif not self._measured:
                self._measured, self.machine = True, measured_machine()
            elif time.monotonic() - max(worked, self._web.changed(self.store.process("web"))) > self.idle_exit:
                break
            else:
                time.sleep(IDLE_PAUSE)
        for work in self.runs.values():
            try:
                work.end("stopped", f"Saved at step {work.trainer.step} when the engine ended. Resume goes on from there.")
            except Exception:  # one that cannot be saved must not cost the others
                traceback.print_exc()

    def info(self) -> dict[str, Any]:
        """What the header strip shows; called from the heartbeat's thread."""
        at_work = next((w for w in list(self.runs.values()) if w.playing), None)
        return {"phase": self.phase, "run": at_work.run if at_work else None, "queue": len(self.samples), "loading": self.loading,
                "evaluating": self.evaluating, "identity": self.identity, "rss": psutil.Process().memory_info().rss,
                "memory_total": ram().total,
                "machine": self.machine, "awaits": self._awaits(at_work), **self.models.info()}

    def _awaits(self, at_work: RunWork | None) -> str | None:
        """What has kept the work in hand waiting for a while: a judge's answers, a locked process."""
        awaited = [work.awaits for work in (at_work, *list(self.samples)) if work and work.awaits]
        return next((event.waits_for for event in awaited if event.seconds > WORTH_TELLING), None)

    # -- working

    def _warm_up(self) -> None:
        """The slow imports and the default model before anybody asks, so that a first sample starts at once."""
        if self.store.open_commands():
            return
        try:
            self.models.get(RunConfig())
        except Exception:  # whoever asks for this model will be told why; another one may do
            traceback.print_exc()

    def _work(self) -> bool:
        """One event of the work whose turn it is; False when there is none."""
        playing = [work for work in self.runs.values() if work.playing]
        # a scan is patient: samples go before it, and it takes turns with a training even when it has begun; so does a
        # sample while it waits for a judge
        sample = min(self.samples, key=_is_patient, default=None)
        if sample and (sample.begun and not _is_patient(sample) or not playing or self._owed <= 0):
            self.phase, work = "sampling", sample
        elif playing:
            self.phase, work = "training", playing[0]
        else:
            self.phase = "paused" if self.runs else "idle"
            return False
        started = time.monotonic()
        work.advance()
        seconds = time.monotonic() - started
        self._owed = max(0.0, self._owed + (-seconds if work in playing else seconds)) if playing else 0.0
        self.samples = deque(sample for sample in self.samples if not sample.ended)
        if work in playing:  # to the end of the line: the next event is another run's
            self.runs.pop(work.run)
            if not work.ended:
                self.runs[work.run] = work
        return True

    # -- commands

    def _obey(self, command: Command) -> None:
        try:
            result = self._order(command.kind)(command)
        except Exception as error:
            self.store.finish_command(command.id, "failed", error=sentence_of(error))
            if not isinstance(error, CommandError):
                traceback.print_exc()
        else:
            if result is not None:
                self.store.finish_command(command.id, result=result)

    def _order(self, kind: str):
        orders = {"sample": self._sample, "evaluate": self._evaluate, "cancel": self._cancel, "train": self._train, "branch": self._branch,
                  "scan": self._scan, "preflight": self._preflight, "resume_run": self._resume_run, "pause": self._pause,
                  "resume": self._resume, "step": self._step, "stop": self._stop, "change": self._change, "scores": self._scores}
        if kind not in orders:
            raise CommandError(f"There is no command {kind!r}. Commands: {', '.join(orders)}.")
        return orders[kind]

    def _sample(self, command: Command) -> None:
        """Queued; the command is finished when the group is."""
        from lab.engine_work import SampleWork

        self.samples.append(SampleWork(self, command))

    def _evaluate(self, command: Command) -> None:
        """Queued like a sample; the command is finished when base and tuned have answered."""
        from lab.engine_evaluation import EvaluationWork

        self.samples.append(EvaluationWork(self, command, self._known_run(command)))

    def _scan(self, command: Command) -> None:
        """Queued behind samples; what it finds is told in the data set."""
        from lab.engine_data import ScanWork

        self.samples.append(ScanWork(self, command))

    def _preflight(self, command: Command) -> None:
        """Queued like a sample; the result says what a few groups promise."""
        from lab.engine_data import PreflightWork

        self.samples.append(PreflightWork(self, command))

    def _cancel(self, command: Command) -> dict[str, Any]:
        target = command.args.get("command")
        for sample in self.samples:
            if sample.command.id == target:
                sample.cancel()
        self.samples = deque(sample for sample in self.samples if not sample.ended)
        return {"command": target}

    def _train(self, command: Command) -> dict[str, Any]:
        run = self._known_run(command)
        if run.id in self.runs or run.step > (run.parent_step or 0):
            raise CommandError(f"Run {run.name!r} has begun already. Resume it instead.")
        return self._start(run, steps=command.args.get("steps"))

    def _branch(self, command: Command) -> dict[str, Any]:
        """A new run from a checkpoint of this one. args: step (None: the last), config, name, steps; result names the new run."""
        parent, args = self._known_run(command), command.args
        if parent.id in self.runs and args.get("step") is None:
            self.runs[parent.id].save()
        run = branch(self.store, parent, step=args.get("step"), changes=args.get("config"), name=args.get("name"), owner=command.owner)
        return self._start(self.store.run(run), steps=args.get("steps"))

    def _resume_run(self, command: Command) -> dict[str, Any]:
        """args: `more` gives the run so many further steps, also a finished one."""
        run = self._known_run(command)
        if run.id in self.runs:
            raise CommandError(f"Run {run.name!r} is still going.")
        refuse_if_going(run)
        if command.args.get("more"):
            continue_run(self.store, run, int(command.args["more"]))
            run = self._known_run(command)
        return self._start(run, steps=command.args.get("steps"), resume=True)

    def _start(self, run: Run, *, steps: int | None, resume: bool = False) -> dict[str, Any]:
        from lab.engine_work import start_run

        self.store.set_status(run.id, "loading")
        try:
            work = start_run(self, run, resume=resume)
        except Exception as error:
            self.store.set_status(run.id, "failed", error=sentence_of(error), traceback=traceback.format_exc())
            raise
        self.runs[run.id] = work
        work.play(steps)
        return {"run": run.id, "step": work.trainer.step}

    def _pause(self, command: Command) -> dict[str, Any]:
        work = self._going_run(command)
        work.pause()
        return {"step": work.trainer.step}

    def _resume(self, command: Command) -> dict[str, Any]:
        work = self._going_run(command)
        work.play()
        return {"step": work.trainer.step}

    def _step(self, command: Command) -> dict[str, Any]:
        work = self._going_run(command)
        work.play(int(command.args.get("n") or 1))
        return {"step": work.trainer.step}

    def _stop(self, command: Command) -> dict[str, Any]:
        work = self._going_run(command)
        work.end("stopped")
        del self.runs[work.run]
        return {"step": work.trainer.step}

    def _change(self, command: Command) -> dict[str, Any]:
        return {"from_step": self._going_run(command).change(command.args)}

    def _scores(self, command: Command) -> dict[str, Any]:
        work = self._going_run(command)
        work.give_scores(command.args)
        return {"step": work.trainer.step}

    def _known_run(self, command: Command) -> Run:
        run = command.run and self.store.run(command.run)
        if not run:
            raise CommandError(f"There is no run {command.run!r}.")
        return run

    def _going_run(self, command: Command) -> RunWork:
        run = self._known_run(command)
        if run.id not in self.runs:
            raise CommandError(f"Run {run.name!r} is {run.status} and not in the engine. Resume the run first.")
        return self.runs[run.id]


def _is_patient(work: Any) -> bool:
    return getattr(work, "patient", False) or work.awaits is not None


def recover(store: Store) -> None:
    """What a dead engine, or a dead notebook, left behind is named: runs interrupted, half rollouts, taken commands."""
    store.abandon_open_work("The engine stopped before this was done. Try again.")
    waiting = {command.run for command in store.open_commands()}
    for run in store.runs():
        driver = run.info.get("driver")
        driven = driver and process_is_there(driver["pid"], driver["since"]) and driver["pid"] != os.getpid()
        if run.status in ALIVE_STATUSES and run.id not in waiting and not driven:
            store.set_status(run.id, "interrupted", error=_interrupted(store, run))


def _interrupted(store: Store, run: Run) -> str:
    what = f"The engine stopped unexpectedly at step {run.step}"
    checkpoints = RunFolder(store, run.id).checkpoints()
    if checkpoints:
        return f"{what}; the last checkpoint is step {checkpoints[-1][0]}. Resume goes on from there."
    return f"{what}, before the first checkpoint. Resume starts again from the beginning."


class _LastSeen:
    """When a heartbeat last moved, on this process's own clock, so that a machine that slept is not mistaken."""

    def __init__(self):
        self._beat, self._at = None, time.monotonic()

    def changed(self, process: Process | None) -> float:
        beat = process and process.heartbeat
        if beat != self._beat:
            self._beat, self._at = beat, time.monotonic()
        return self._at


def _beat(store: Store, engine: Engine, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        try:
            store.beat("engine", engine.info())
        except Exception:  # a full disk, a locked file: the next beat tries again, and the page sees a stale one
            traceback.print_exc()


def _without_runs(arguments: list[str]) -> list[str]:
    """The options that make one engine differ from another on the same folder."""
    place = arguments.index("--runs")
    return [*arguments[:place], *arguments[place + 2:]]


def main(arguments: list[str] | None = None) -> int:
    """Runs one engine until it ends by itself or is told to. Exit status 1: another works on the folder, or it fell."""
    parser = argparse.ArgumentParser(prog="python -m lab.engine", description="The engine of GRPO Lab: the page starts it by itself.")
    parser.add_argument("--runs", type=Path, required=True, help="the runs folder")
    parser.add_argument("--idle-exit", type=float, default=IDLE_EXIT_SECONDS,
                        help="seconds without work and without a web process after which the engine ends")
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(options.runs / "engine.lock")
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout:
        print(f"Another engine already works on {options.runs}.", file=sys.stderr)
        return 1
    store = open_store(options.runs)
    own = identity(_without_runs(sys.argv[1:] if arguments is None else arguments))
    engine = Engine(store, idle_exit=options.idle_exit, identity=own)
    store.register("engine", {"phase": "starting", "identity": own, "machine": engine.machine})
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), lambda *_: setattr(engine, "stopping", True))
    stop = threading.Event()
    threading.Thread(target=_beat, args=(store, engine, stop), name="heartbeat", daemon=True).start()
    try:
        engine.serve()
    except BaseException as error:
        store.report_crash("engine", sentence_of(error), traceback.format_exc())
        raise
    finally:
        stop.set()
    store.beat("engine", {"phase": "off", "machine": engine.machine})
    store.close()
    lock.release()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is put away; unloading torch would take seconds
