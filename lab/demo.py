"""Makes the recorded run that the page opens on while there is no other: `python -m lab.demo`.

It is a real run of `Trainer` with the first-run preset, written through the same store as any run and put into one
file, `assets/demo/lab.sqlite3`, which the page opens read-only. Leaves out: showing it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from pathlib import Path

from lab.charts import smooth
from lab.presets import preset
from lab.store import FILE_NAME, LOCAL_OWNER, Store, open_store

SEED = 42
THREADS = 1
TARGET = Path(__file__).resolve().parent.parent / "assets" / "demo" / FILE_NAME


def make(target: Path, seed: int = SEED) -> None:
    """Trains and writes the recording to `target`, replacing what is there."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        run = _train(store, seed)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        store.copy_to(target)
        rewards = _rewards(store, run)
        store.close()
    print(f"{target}: {target.stat().st_size / 1e6:.2f} MB, reward {rewards[0]:.2f}, then {rewards[-1]:.2f}, best {max(rewards):.2f} "
          f"(mean over 4 steps)")


def _train(store: Store, seed: int) -> str:
    import torch

    from lab.trainer import Trainer

    config = preset("first-run").config(seed=seed, num_threads=THREADS)
    trainer = Trainer(config)
    info = {"recorded": time.strftime("%Y-%m-%d"), "seed": seed, "threads": THREADS, "machine": f"{platform.system()} {platform.machine()}",
            "torch": torch.__version__, "device": str(trainer.policy.device), "model": trainer.policy.name}
    info["label"] = f"Recorded: seed {seed}, {THREADS} CPU thread of a {info['machine']} machine, torch {torch.__version__}"
    run = store.create_run(config.to_dict(), name="First run", owner=LOCAL_OWNER, kind="recorded", status="training", info=info)
    for step in trainer:
        store.write_step(run, step, seconds=step.metrics["step_time"])
        print(f"step {step.step:3d}  reward {step.metrics['reward']:.3f}", file=sys.stderr)
    store.set_status(run, "finished")
    return run


def _rewards(store: Store, run: str) -> list[float]:
    steps = store.steps_after(run)
    return smooth([row[1 + steps.columns.index("reward")] for row in steps.rows], "mean of 4")


if __name__ == "__main__":
    make(TARGET)
