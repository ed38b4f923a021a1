"""A real engine process with the real tiny model, and the commands with which tests drive it through the store."""

import os
import signal
import time
from contextlib import contextmanager

import pytest

from lab.config import RunConfig
from lab.jobs import Engine

SMALL = dict(num_generations=4, prompts_per_step=2, max_completion_length=24, save_steps=3, num_threads=1, learning_rate=1e-3,
             reward_weights=(0.8, 0.2))
QUESTION = {"prompt": "What is 12 + 30?", "answer": "42"}


@contextmanager
def running_engine(runs_dir):
    """An idle engine on the folder; what still runs at the end is told to stop."""
    engine = Engine(runs_dir, arguments=("--idle-exit", "3600"))
    engine.ensure()
    until(lambda: engine.status().info.get("phase") == "idle", engine)
    yield engine
    if engine.status().state in ("running", "stale"):
        os.kill(engine.status().pid, signal.SIGTERM)
        until(lambda: engine.status().state == "off", engine)
    engine.store.close()


def until(condition, engine, seconds=120):
    """Waits for something the engine will do; says what the engine's log holds if it never does."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"Waited {seconds} s in vain. {engine.status()}\n{(engine.runs_dir / 'engine.log').read_text()[-3000:]}")
        time.sleep(0.03)
    return found


def sample(engine, **args):
    args = {"prompts": [QUESTION], "config": dict(num_generations=4, max_completion_length=24, num_threads=1)} | args
    return engine.store.send_command("sample", args, owner="ada")


def ended(engine, command):
    return until(lambda: (c := engine.store.command(command.id)).status not in ("queued", "taken") and c, engine)


def order(engine, kind, run, **args):
    """A command for a run, carried out."""
    command = ended(engine, engine.store.send_command(kind, args, run=run))
    assert command.status == "done", command.error
    return command


def start(engine, config=None, **args):
    run = engine.store.create_run(RunConfig(**SMALL | (config or {})).to_dict(), name="small", owner="ada")
    order(engine, "train", run, **args)
    return run


def reaches(engine, run, status, seconds=120):
    until(lambda: engine.store.run(run).status == status, engine, seconds)
    return engine.store.run(run)
