"""Records as pandas DataFrames, with TRL's column names, so that code written for TRL's files reads ours.

Also what is derived from stored token arrays (ratio, KL, clipped). Leaves out: reading the store (`lab.storage.recorder.open_run`),
smoothing and drawing (`lab.charts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lab.contradictions import CLIPPED_LOSSES
from lab.records import Completion, StepRecord
from lab.store import Steps

MAX_LOG_RATIO = 20.0  # as in lab.grpo


def metrics_frame(steps: Steps) -> pd.DataFrame:
    """One row per step: `step`, then a column per metric; NaN where a step does not have it."""
    frame = pd.DataFrame(steps.rows, columns=["step", *steps.columns]).astype({"step": int})
    return frame.astype({name: float for name in frame if frame[name].dtype == object})  # a column without any number


def completions_frame(records: Iterable[StepRecord]) -> pd.DataFrame:
    """One row per completion, in TRL's columns: step, prompt, completion, one per reward function, extras, advantage.

    TRL's `completions_{step:05d}.parquet` has these; a reward that was not applicable is NaN.
    """
    rows = [{"step": record.step, "prompt": group.prompt, "completion": c.text, **c.rewards, **c.extra, "advantage": c.advantage}
            for record in records for group in record.groups for c in group.completions]
    frame = pd.DataFrame(rows)
    if frame.empty:
        return pd.DataFrame(columns=["step", "prompt", "completion", "advantage"])
    middle = [name for name in frame.columns if name != "advantage"]
    rewards = list(dict.fromkeys(name for record in records for g in record.groups for c in g.completions for name in c.rewards))
    return frame[[*middle, "advantage"]].astype(dict.fromkeys([*rewards, "advantage"], float))


def log_history(steps: Steps) -> list[dict[str, float]]:
    """What TRL writes as `log_history` in trainer_state.json: a dict per step, without the metrics it lacks."""
    return [{**{name: value for name, value in zip(steps.columns, row[1:], strict=True) if value is not None}, "step": row[0]}
            for row in steps.rows]


def tokens_frame(record: StepRecord, config: dict[str, Any]) -> pd.DataFrame:
    """One row per completion token of a step: group, completion, token (its place), token_id, and `token_values` as columns.

    Empty where the token arrays are not in the store.
    """
    parts = [pd.DataFrame({"group": group.index, "completion": c.index, "token": range(len(c.token_ids)), "token_id": c.token_ids,
                           **token_values(c, config)})
             for group in record.groups for c in group.completions if c.arrays]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["group", "completion", "token", "token_id"])


def token_values(completion: Completion, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """The stored token arrays of a completion and what follows from them: `ratio`, `kl` (k3), `clipped`, each (T,).

    ratio = exp(logps − old_logps), at sequence level exp of its mean; kl = e^d − d − 1 with d = ref_logps − logps (DeepSeekMath
    eq. 4); clipped is 1 where the clip stopped the gradient: ratio > 1 + ε_high for a positive advantage, < 1 − ε for a negative
    one. What cannot be derived is left out: an array was not stored, or the loss has no clip.
    """
    values = dict(completion.arrays)
    if {"logps", "old_logps"} <= values.keys():
        log_ratio = values["logps"] - values["old_logps"]
        if config.get("importance_sampling_level") == "sequence":
            log_ratio = np.full_like(log_ratio, log_ratio.mean())
        values["ratio"] = np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        if config["loss_type"] in CLIPPED_LOSSES:
            low, high = config["epsilon"], config["epsilon"] if config.get("epsilon_high") is None else config["epsilon_high"]
            advantage = values.get("advantages", completion.advantage or 0.0)  # of each token with step rewards and in PPO
            stopped = (values["ratio"] > 1 + high) & (advantage > 0) | (values["ratio"] < 1 - low) & (advantage < 0)
            values["clipped"] = stopped.astype("f4")
    if {"logps", "ref_logps"} <= values.keys():
        d = np.clip(values["ref_logps"] - values["logps"], -MAX_LOG_RATIO, MAX_LOG_RATIO)
        values["kl"] = np.expm1(d) - d
    return values
