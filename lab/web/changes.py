"""Live changes: what may be changed while a run goes, how what was typed is read, and what was changed at which step.

Leaves out making the change, which is the engine's (`lab.engine`, command "change"), and drawing it (assets/js/changes.js).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lab.config import LIVE_SETTINGS, ConfigError, RunConfig
from lab.store import Run, RunEvent
from lab.web.form import FIELDS, as_text, help_text, read_form
from lab.web.views import functions

SHOWN = ("learning_rate", "temperature", "beta", "epsilon", "reward_weights", "max_completion_length")
_SHORT = {"beta": "β", "epsilon": "ε", "epsilon_high": "ε_high"}


def read_changes(asked: dict[str, Any], run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """What was asked for, as the engine wants it. ConfigError says which setting cannot change, or cannot have this value."""
    fixed = sorted(set(asked) - set(LIVE_SETTINGS))
    if fixed:
        raise ConfigError(f"{', '.join(fixed)} cannot be changed during a run. What can: {', '.join(LIVE_SETTINGS)}.")
    if not asked:
        raise ConfigError(f"No setting was named. What can be changed during a run: {', '.join(LIVE_SETTINGS)}.")
    changes = read_form(asked)
    for name, value in changes.items():
        numbers = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, float)]
        if not all(map(math.isfinite, numbers)):
            raise ConfigError(f"{name} is {numbers[0] if len(numbers) == 1 else numbers}: a finite number is needed.")
    RunConfig.from_dict({**settings_now(run, events), **changes})
    return changes


def settings_now(run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """The settings the run was started with, and every live change on top."""
    settings = RunConfig().to_dict() | run.config
    for event in _in_order(events):
        settings |= event.data
    return settings


def changes_view(run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """`settings` that can be changed now, with their values, and `changes` made so far, the first first."""
    events, settings, changes = list(events), RunConfig().to_dict() | run.config, []
    for event in _in_order(events):
        # a resume makes the changes after its checkpoint once more: the second time nothing differs
        for name, value in event.data.items():
            changes += _told(event.step, name, settings, value)
            settings[name] = value
    return {"run": run.id, "settings": _fields(settings, changes), "changes": changes}


def _in_order(events: Iterable[RunEvent]) -> list[RunEvent]:
    return sorted((event for event in events if event.kind == "change"), key=lambda event: (event.step, event.id))


def _told(step: int, name: str, settings: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    """One change in words; of weights, one for each reward function whose weight differs."""
    pairs = zip(_parts(name, settings), _parts(name, settings | {name: value}), strict=False)
    return [{"step": step, "key": key, "what": what, "before": as_text(before), "after": as_text(after)}
            for (key, what, before), (_, _, after) in pairs if before != after]


def _fields(settings: dict[str, Any], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    before = {change["key"]: change["before"] for change in changes}
    return [{"name": name, "key": key, "label": what[0].upper() + what[1:] if name == "reward_weights" else FIELDS[name].metadata["label"],
             "value": as_text(value), "before": before.get(key), "help": help_text(name)}
            for name in SHOWN for key, what, value in _parts(name, settings)]


def _parts(name: str, settings: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Key, words and value of a setting; weights are one part per reward function."""
    if name == "reward_weights":
        return [(f"{name}.{place}", f"weight of {f['name']}", f["weight"]) for place, f in enumerate(functions(settings))]
    return [(name, _SHORT.get(name) or FIELDS[name].metadata["label"].lower(), settings[name])]
