"""Which completions a reward is tried on: the last group, a stored run's, or typed ones. Only what the owner may see."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lab.records import Group
from lab.rewards.completions import newest_groups, typed_group
from lab.store import Run, Store
from lab.web.actions import ActionError, Lab
from lab.web.answers import answer_to

MOST = 128  # completions
MOST_TYPED = 64
TYPED_CHARACTERS = 100_000


@dataclass(frozen=True)
class Source:
    """`key` names the completions, so that scores on the same ones can be compared; `label` says what they are, in words."""

    groups: list[Group]
    label: str
    key: str
    scale_rewards: str = "group"
    system_prompt: str | None = None
    step: int | None = None  # of a run: the last one that is among them

    @property
    def columns(self) -> list[str]:
        """Columns that the groups' rows have, but for the prompt."""
        return [name for name in dict.fromkeys(name for group in self.groups for name in group.row) if name != "prompt"]


def find_source(lab: Lab, owner: str, asked: dict[str, Any]) -> Source:
    """ActionError says why there is nothing to score."""
    kinds = {"last": _last, "run": _of_run, "typed": _typed}
    if asked.get("kind") not in kinds:
        raise ActionError(f"Completions come from {', '.join(kinds)}, not from {asked.get('kind')!r}.")
    return kinds[asked["kind"]](lab, owner, asked)


def _last(lab: Lab, owner: str, asked: dict[str, Any]) -> Source:
    """The newest sample of the owner's, else the newest group of the current run."""
    for rollout in lab.store.samples(owner=owner, limit=5):
        if groups := lab.store.rollout_groups(rollout.id):
            return _source(groups, "the last sample", f"sample {rollout.id}", rollout.settings)
    run = lab.current_run(owner)
    if run is None or not run.step:
        raise ActionError("There is no group yet: sample one in Lab, or choose a stored run.")
    store, _ = lab.find(owner, run.id)
    return _source(store.step(run.id, run.step).groups[:1], f"a group of {run.name}, step {run.step}",
                   f"last {run.id} {run.attempt} {run.step}", run.config)


def _of_run(lab: Lab, owner: str, asked: dict[str, Any]) -> Source:
    run_id, step = asked.get("run"), asked.get("step")
    if run_id is None:
        current = lab.current_run(owner)
        with_steps = [run for run in (current, *lab.runs(owner)) if run and run.step]
        if not with_steps:
            raise ActionError("There is no run with completions yet: train one, or type completions.")
        run_id = with_steps[0].id
    if not isinstance(run_id, str) or not (step is None or isinstance(step, int) and not isinstance(step, bool)):
        raise ActionError("run must be a run's id, and step a whole number.")
    store, run = lab.find(owner, run_id)
    last = min(step or _telling_step(store, run), run.step)
    groups = newest_groups(store, run.id, MOST, last)
    if not groups:
        raise ActionError(f"{run.name} has no completions stored up to step {last}.")
    label = f"{run.name}, up to step {last}" if last < run.step else f"{run.name}, newest"
    return dataclasses.replace(_source(groups, label, f"run {run.id} {run.attempt} {last}", run.config), step=last)


def _telling_step(store: Store, run: Run) -> int:
    """The newest step; of the recording the first with a mean reward of 0.4, where right and wrong still stand side by side."""
    if run.kind != "recorded":
        return run.step
    steps = store.steps_after(run.id, limit=None)
    place = steps.columns.index("reward") + 1
    return next((int(row[0]) for row in steps.rows if (row[place] or 0) >= 0.4), run.step)


def _typed(lab: Lab, owner: str, asked: dict[str, Any]) -> Source:
    prompt, texts, answer = asked.get("prompt", ""), asked.get("texts", []), asked.get("answer")
    if not isinstance(prompt, str) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ActionError("Typed completions are a prompt and a list of texts.")
    if not texts or len(texts) > MOST_TYPED or len(prompt) + sum(map(len, texts)) > TYPED_CHARACTERS:
        raise ActionError(f"Type 1 to {MOST_TYPED} completions, {TYPED_CHARACTERS:,} characters at most.")
    known = answer.strip() if isinstance(answer, str) and answer.strip() else answer_to(prompt)
    row = {} if known is None else {"answer": known}
    return Source([typed_group(prompt, texts, row)], "typed text", f"typed {hash((prompt, known, tuple(texts)))}")


def _source(groups: list[Group], label: str, key: str, settings: dict[str, Any]) -> Source:
    return Source(groups, label, key, settings.get("scale_rewards") or "group", settings.get("system_prompt"))
