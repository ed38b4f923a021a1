"""The folder of a run, `runs/<id>/`: config.json, checkpoints, and TRL's files beside them.

Whoever drives a trainer (`lab.engine`, `lab.storage.recorder`) calls `RunFolder.checkpoint` at a step's end; a program that reads
TRL's output folder reads this one. Leaves out: what a checkpoint holds (the trainer knows), and the store itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.storage.own_files import keep_reward_files, kept
from lab.store import Store

if TYPE_CHECKING:
    from lab.trainer import Trainer

KEPT_CHECKPOINTS = 3


def driver_info() -> dict[str, Any]:
    """Who drives a run, for telling later whether that process is still there."""
    return {"driver": {"pid": os.getpid(), "since": time.time()}}


class RunFolder:
    """`runs/<id>/` beside the store that holds the run."""

    def __init__(self, store: Store, run: str):
        self.store, self.run = store, run
        self.path = store.path.parent / run

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, folder) of every complete checkpoint, oldest first."""
        found = [(re.fullmatch(r"checkpoint-(\d+)", p.name), p) for p in self.path.glob("checkpoint-*")]
        return sorted((int(match[1]), path) for match, path in found if match)

    def checkpoint(self, trainer: Trainer) -> Path:
        """Saves the trainer as checkpoint-<step> (whole or not at all), keeps the newest few, brings TRL's files up to date."""
        self.keep_rewards(trainer)
        for draft in self.path.glob(".checkpoint-*"):  # of a process that was killed in mid-save
            shutil.rmtree(draft)
        path = trainer.save(self.path / f"checkpoint-{trainer.step}")
        for _, old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        self.write_trl_files(trainer)
        return path

    def keep_rewards(self, trainer: Trainer) -> None:
        """Reward files that the trainer's settings name are copied into the folder, and the settings name the copies."""
        trainer.config = keep_reward_files(trainer.config, self.path)
        if "rewards" in trainer.pending:
            trainer.pending["rewards"] = kept(trainer.pending["rewards"], self.path)

    def write_trl_files(self, trainer: Trainer) -> None:
        """config.json, trainer_state.json with log_history, and completions_{step:05d}.parquet for every step without one."""
        from lab.frames import completions_frame, log_history  # pandas only when a file is written

        _write_json(self.path / "config.json", trainer.config.to_dict())
        steps = self.store.steps_after(self.run, limit=None)
        state = {"global_step": trainer.step, "max_steps": trainer.config.max_steps, "log_history": log_history(steps)}
        _write_json(self.path / "trainer_state.json", state)
        folder = self.path / "completions"
        folder.mkdir(exist_ok=True)
        for step in (row[0] for row in steps.rows):
            file = folder / f"completions_{step:05d}.parquet"
            if not file.exists():
                completions_frame([self.store.step(self.run, step)]).to_parquet(file, index=False)

    def drop_files_after(self, step: int) -> None:
        """Forgets checkpoints and completions of superseded steps: a resume goes on after `step`."""
        for number, path in self.checkpoints():
            if number > step:
                shutil.rmtree(path)
        for path in self.path.glob("completions/completions_*.parquet"):
            if int(path.stem.rpartition("_")[2]) > step:
                path.unlink()


def _write_json(path: Path, value: object) -> None:
    """Whole or not at all, also when the process is killed meanwhile."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(value, indent=2), encoding="utf-8")
    unfinished.replace(path)
