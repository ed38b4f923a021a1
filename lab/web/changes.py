"""Live changes from the page: what may be changed while a run goes, in groups, and how what was typed is read.

Leaves out what was changed (`lab.storage.changes`), making the change, which is the engine's (`lab.engine`, command
"change"), and drawing it (assets/js/changes.js).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from lab.config import LIVE_SETTINGS, ConfigError, RunConfig, as_text, named
from lab.storage.changes import LABELS, Change, changes_made, parts, settings_now, weights_of
from lab.store import Run, RunEvent
from lab.web.form import help_text, read_form

GROUPS = {  # every live setting, those that are changed most before the others
    "": ("learning_rate", "temperature", "beta", "reward_weights", "max_completion_length"),
    "Clip and entropy": ("epsilon", "epsilon_high", "entropy_coef"),
    "Reward functions": ("rewards",),
    "Stop by itself": ("stop_reward_drop", "stop_entropy_below", "stop_kl_above", "stop_clipped_above"),
}


def read_changes(asked: dict[str, Any], run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """What was asked for, as the engine wants it. ConfigError says which setting cannot change, or cannot have this value.

    Weights stay with their functions: where the functions change, a new one weighs 1.
    """
    can = ", ".join(map(named, LIVE_SETTINGS))
    fixed = sorted(set(asked) - set(LIVE_SETTINGS))
    if fixed:
        raise ConfigError(f"{', '.join(named(name) if name in LABELS else name for name in fixed)} cannot be changed during a run. "
                          f"What can: {can}.")
    if not asked:
        raise ConfigError(f"No setting was named. What can be changed during a run: {can}.")
    changes = read_form(asked | ({"rewards": _names(asked["rewards"])} if "rewards" in asked else {}))
    for name, value in changes.items():
        numbers = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, float)]
        if not all(map(math.isfinite, numbers)):
            raise ConfigError(f"{named(name)} is {numbers[0] if len(numbers) == 1 else numbers}: a finite number is needed.")
    now = settings_now(run, events)
    if "rewards" in changes:
        changes |= _moved_weights(changes, now)
    RunConfig.from_dict({**now, **changes})
    return changes


def changes_view(run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """`settings` that can be changed now, with their values and group, and `changes` made so far, the first first.

    `resumes` tells the steps after which the run went on otherwise than it began: another device, version, way of computing.
    """
    events = list(events)
    changes = changes_made(run, events)
    return {"run": run.id, "settings": _fields(settings_now(run, events), changes), "changes": [asdict(change) for change in changes],
            "resumes": [{"step": event.step, "words": event.data["not_as_before"]} for event in events
                        if event.kind == "resumed" and event.data.get("not_as_before")]}


def _fields(settings: dict[str, Any], changes: list[Change]) -> list[dict[str, Any]]:
    before = {change.key: change.before for change in changes}
    return [{"name": name, "key": key, "group": group, "label": what[0].upper() + what[1:] if name == "reward_weights" else LABELS[name],
             "value": as_text(value), "before": before.get(key), "help": help_text(name)}
            for group, names in GROUPS.items() for name in names for key, what, value in parts(name, settings)]


def _names(typed: Any) -> list[str]:
    """Reward functions from one line: `accuracy, json(keys='a, b')` are two."""
    if not isinstance(typed, str):
        return typed
    return [name.strip() for name in re.split(r",(?![^(]*\))", typed) if name.strip()]


def _moved_weights(changes: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Weights for the new functions: those typed where there are as many, else each function keeps its own."""
    typed, rewards = changes.get("reward_weights"), changes["rewards"]
    if typed is not None and len(typed) == len(rewards):
        return {}
    kept = weights_of(now | ({"reward_weights": typed} if typed is not None else {}))
    return {"reward_weights": tuple(kept.get(reward, 1.0) for reward in rewards)}
