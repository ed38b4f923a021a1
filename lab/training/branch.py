"""A run that goes on from a step of another with changed settings, and a run with more steps than it was meant to have.

Both work on files and rows alone, so the page's process may call them; the engine then trains the result like any run
that has a checkpoint. Leaves out the training (`engine`), and what a checkpoint holds (`checkpoint`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lab.config import RunConfig, named
from lab.errors import CommandError
from lab.storage.own_files import at_home, keep_reward_files
from lab.storage.run_folder import RunFolder
from lab.store import Run, Store

# What the checkpoint's tensors are made for.
FIXED = ("model", "adapter", "lora_r", "lora_alpha", "load_in_4bit", "algorithm")


def branch(store: Store, parent: Run, *, step: int | None = None, changes: dict[str, Any] | None = None, name: str | None = None,
           owner: str | None = None) -> str:
    """A new run that begins where `parent` stood at `step` (None: its last checkpoint), with `changes` to its settings.

    Returns its id; it waits to be trained. The parent is untouched: its checkpoint is copied. Raises CommandError where
    there is no such checkpoint or a setting cannot change, ConfigError for settings that cannot work.
    """
    step, folder = _checkpoint(store, parent, step)
    config = _changed(_config_of(folder), changes or {}, step)
    run = store.create_run(config.to_dict(), name=name or f"{parent.name} from {step}", owner=owner or parent.owner, status="stopped",
                           parent=parent.id, parent_step=step)
    own = RunFolder(store, run).path / folder.name
    config = keep_reward_files(config, own.parent)
    store.set_config(run, config.to_dict())
    shutil.copytree(folder, own)
    _write_config(own, config)
    return run


def continue_run(store: Store, run: Run, more: int) -> int:
    """Let `run` have `more` steps after its last checkpoint; returns the step it will end at. Resume it to go on.

    A schedule that falls towards the last step falls towards the new one from here on. Raises CommandError.
    """
    if more < 1:
        raise CommandError(f"{more} more steps: give at least 1.")
    step, folder = _checkpoint(store, run, None)
    config = _config_of(folder).replace(max_steps=step + more)
    _write_config(folder, config)
    store.set_config(run.id, config.to_dict())
    store.add_event(run.id, step, "more_steps", {"max_steps": config.max_steps})
    return config.max_steps


def _checkpoint(store: Store, run: Run, step: int | None) -> tuple[int, Path]:
    found = RunFolder(store, run.id).checkpoints()
    if not found:
        raise CommandError(f"Run {run.name!r} has no checkpoint, so there is nothing to go on from.")
    chosen = found[-1:] if step is None else [each for each in found if each[0] == step]
    if not chosen:
        raise CommandError(f"Run {run.name!r} has no checkpoint of step {step}. It has {', '.join(str(s) for s, _ in found)}.")
    return chosen[0]


def _changed(config: RunConfig, changes: dict[str, Any], step: int) -> RunConfig:
    if changes.get("load_in_4bit", False) is None:  # left open, while a checkpoint that was resumed says what had been decided
        changes = {**changes, "load_in_4bit": config.load_in_4bit}
    fixed = [name for name in FIXED if name in changes and changes[name] != getattr(config, name)]
    if fixed:
        raise CommandError(f"{', '.join(map(named, fixed))} cannot change in a branch: the checkpoint is made for it. "
                           f"Start a new run instead.")
    changed = RunConfig.from_dict({**config.to_dict(), **changes})
    if changed.max_steps <= step:
        raise CommandError(f"{named('max_steps')} is {changed.max_steps} and the checkpoint is already at step {step}: give more steps.")
    return changed


def _config_of(checkpoint: Path) -> RunConfig:
    """Live changes included, unlike the settings the run was started with."""
    settings = json.loads((checkpoint / "trainer.json").read_text(encoding="utf-8"))["config"]
    return RunConfig.from_dict(at_home(settings, checkpoint.parent))


def _write_config(checkpoint: Path, config: RunConfig) -> None:
    file = checkpoint / "trainer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    settings = config.to_dict()
    python = {field: names for field, names in state.get("from_python", {}).items() if settings[field] == state["config"][field]}
    state |= {"config": settings, "from_python": python}
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(state, indent=1), encoding="utf-8")
    unfinished.replace(file)
