"""Live changes of a run, as its events tell them: what was changed at which step, and what its settings are now.

The page lists and marks them, notebook figures mark them. Leaves out reading what a person typed (`lab.web.changes`),
making the change (`lab.engine`), and drawing (`lab.charts`, assets/js).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from lab.config import RunConfig, as_text
from lab.rewards.resolve import short_name
from lab.storage.rows import Run, RunEvent

LABELS = {f.name: f.metadata["label"] for f in fields(RunConfig)}
_SHORT = {"beta": "β", "epsilon": "ε", "epsilon_high": "ε_high"}


@dataclass(frozen=True)
class Change:
    """One setting that was changed; it holds from `step` on. `key` is the setting, of weights with the function's place."""

    step: int
    key: str
    what: str
    before: str
    after: str

    @property
    def words(self) -> str:
        """The change as a person reads it: what, from which value to which."""
        return f"{self.what} {self.before or 'none'} to {self.after or 'none'}"


def settings_now(run: Run, events: Iterable[RunEvent]) -> dict[str, Any]:
    """The settings the run was started with, and every live change on top."""
    settings = RunConfig().to_dict() | run.config
    for event in _in_order(events):
        settings |= event.data
    return settings


def changes_made(run: Run, events: Iterable[RunEvent]) -> list[Change]:
    """The first first. A resume makes the changes after its checkpoint once more: the second time nothing differs."""
    settings, changes = RunConfig().to_dict() | run.config, []
    for event in _in_order(events):
        after = settings | event.data
        changes += [change for name in event.data for change in _told(event.step, name, settings, after)]
        settings = after
    return changes


def marks(changes: Iterable[Change]) -> list[tuple[int, str]]:
    """(step, words) of each step from which something else holds: where curves are marked."""
    words: dict[int, list[str]] = {}
    for change in changes:
        words.setdefault(change.step, []).append(change.words)
    return [(step, ", ".join(words[step])) for step in sorted(words)]


def parts(name: str, settings: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Key, words and value of a setting; weights are one part per reward function."""
    if name != "reward_weights":
        return [(name, _SHORT.get(name) or LABELS[name].lower(), settings[name])]
    weights = weights_of(settings)
    return [(f"{name}.{place}", f"weight of {short_name(reward)}", weights[reward]) for place, reward in enumerate(weights)]


def weights_of(settings: dict[str, Any]) -> dict[str, float]:
    """Reward function as it was written → weight, in order."""
    rewards = settings["rewards"]
    return dict(zip(rewards, settings["reward_weights"] or [1.0] * len(rewards), strict=False))


def _told(step: int, name: str, before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """One change in words; of weights, one for each reward function whose weight differs."""
    old = {what: value for _, what, value in parts(name, before)}
    return [Change(step, key, what, as_text(old.get(what)), as_text(value))
            for key, what, value in parts(name, after) if old.get(what) != value]


def _in_order(events: Iterable[RunEvent]) -> list[RunEvent]:
    return sorted((event for event in events if event.kind == "change"), key=lambda event: (event.step, event.id))
