"""Records of the store as the JSON the page and other programs read. Plain dicts in, plain dicts out; no decisions.

A completion's numbers stay numbers (null = not applicable); words for people are made in the page.
"""

from __future__ import annotations

import math
from typing import Any

from lab import charts
from lab.config import RunConfig
from lab.records import Completion, Group
from lab.rewards.resolve import short_name
from lab.store import Command, Live, Rollout, Run, RunEvent, Steps
from lab.tasks.sources import task_name

WAY = ("algorithm", "advantage_rule", "scale_rewards", "multi_objective_aggregation")  # how a run makes its advantages
MAX_POINTS = 1000  # per curve; more cannot be told apart on a screen


def run_view(run: Run) -> dict[str, Any]:
    """What a list of runs and the header strip need. `most` is the reward of a completion to which every function gives 1."""
    return {"id": run.id, "name": run.name, "kind": run.kind, "status": run.status, "step": run.step, "attempt": run.attempt,
            "max_steps": run.config.get("max_steps"), "model": run.config.get("model"), "task": task_name(run.config.get("task")),
            "prompts": run.config.get("prompts_per_step"), "group_size": run.config.get("num_generations"),
            "seed": run.config.get("seed"), "way": {name: run.config.get(name) for name in WAY},
            "most": math.fsum(max(0.0, function["weight"]) for function in functions(run.config)),
            "parent": run.parent, "parent_step": run.parent_step, "error": run.error,
            "created": run.created, "updated": run.updated, "info": run.info}


def run_details(run: Run, events: list[RunEvent]) -> dict[str, Any]:
    """A run with everything that the list leaves out."""
    return run_view(run) | {"config": run.config, "traceback": run.traceback, "functions": functions(run.config),
                            "events": [event_view(event) for event in events]}


def event_view(event: RunEvent) -> dict[str, Any]:
    """An event of a run: a change, a checkpoint, an evaluation that failed…"""
    return {"id": event.id, "step": event.step, "attempt": event.attempt, "kind": event.kind, "data": event.data, "created": event.created}


def functions(config: dict[str, Any], groups: list[Group] = ()) -> list[dict[str, Any]]:
    """Names and weights of the reward functions, in order. The names are those the groups' scores are stored under;
    where nothing is scored yet, what the config says."""
    written = config.get("rewards") or list(RunConfig().rewards)
    scored = next((list(c.rewards) for group in groups for c in group.completions if len(c.rewards) == len(written)), None)
    weights = config.get("reward_weights") or [1.0] * len(written)
    return [{"name": name, "weight": weight} for name, weight in zip(scored or map(short_name, written), weights, strict=False)]


def group_view(group: Group) -> dict[str, Any]:
    """A group with its statistics; token ids and arrays are left out (`tokens_view`)."""
    return {"index": group.index, "prompt": group.prompt, "answer": group.row.get("answer"), "mean": group.mean, "std": group.std,
            "dead": group.dead, "verdict": verdict(group), "completions": [completion_view(c) for c in group.completions]}


def verdict(group: Group) -> str | None:
    """Why a dead group teaches nothing: each kind asks for another remedy. None for a live group, and before the scoring."""
    if not group.dead:
        return None
    if group.mean is None:
        return "not scored"
    right = {c.rewards.get("accuracy") for c in group.completions}
    return {1.0: "all right", 0.0: "all wrong"}.get(right.pop(), "all equal") if len(right) == 1 else "all equal"


def completion_view(c: Completion) -> dict[str, Any]:
    """A completion with each function's reward, the total and its advantage."""
    return {"index": c.index, "text": c.text, "tokens": len(c.token_ids), "finished": c.finished, "rewards": c.rewards,
            "reward": c.reward, "advantage": c.advantage}


def tokens_view(group: Group) -> dict[str, Any]:
    """A group with the arrays of every token (float32, one value per token id), or `stored` false where they were not kept."""
    view = group_view(group)
    for shown, completion in zip(view["completions"], group.completions, strict=True):
        shown["token_ids"] = completion.token_ids
        shown["arrays"] = {name: [float(value) for value in values] for name, values in completion.arrays.items()}
    return view | {"prompt_ids": group.prompt_ids, "stored": any(c.arrays for c in group.completions)}


def sample_view(rollout: Rollout, groups: list[Group]) -> dict[str, Any]:
    """A sample with the settings it was asked for and its groups, which are complete when its status is done."""
    return {"rollout": rollout.id, "status": rollout.status, "error": rollout.error, "adapter": rollout.adapter,
            "adapter_step": rollout.adapter_step, "prompts": rollout.prompts, "settings": rollout.settings,
            "functions": functions(rollout.settings, groups), "created": rollout.created,
            "groups": [group_view(group) for group in groups]}


def command_view(command: Command) -> dict[str, Any]:
    """A command with what came of it."""
    return {"id": command.id, "kind": command.kind, "run": command.run, "status": command.status, "result": command.result,
            "error": command.error}


def live_view(live: Live) -> dict[str, Any]:
    """A completion that is being written."""
    return {"rollout": live.rollout, "run": live.run, "step": live.step, "kind": live.kind, "prompt": live.prompt, "group": live.group,
            "index": live.index, "text": live.text, "tokens": live.n_tokens, "ended": live.ended}


def steps_view(run: Run, steps: Steps, after: int, wanted: list[str] | None) -> dict[str, Any]:
    """Rows after the cursor. With `wanted` columns, `smooth` holds the same rows smoothed, as `lab.charts` draws them.

    `steps` reaches `charts.WINDOW` rows further back than `after`, so that smoothing goes on where it was.
    """
    columns = steps.columns if wanted is None else [name for name in wanted if name in steps.columns]
    places = [steps.columns.index(name) + 1 for name in columns]
    table = [[row[0], *(row[place] for place in places)] for row in steps.rows]
    view = {"run": run.id, "state": run.status, "attempt": run.attempt, "columns": columns}
    fresh = [i for i, row in enumerate(table) if row[0] > after]
    kept = _thin(fresh)
    view |= {"rows": [_short(table[i]) for i in kept], "cursor": max(after, steps.cursor), "newest_group_step": run.step or None}
    if wanted is not None:
        smoothed = [charts.smooth([row[place] for row in table], charts.smoothing_of(name)) for place, name in enumerate(columns, 1)]
        view["smooth"] = [_short([line[i] for line in smoothed]) for i in kept]
    return view


def _thin(places: list[int]) -> list[int]:
    """At most MAX_POINTS of them, evenly spread, the last always among them."""
    if len(places) <= MAX_POINTS:
        return places
    stride = -(-(len(places) - 1) // (MAX_POINTS - 1))
    return places[:-1][::stride] + places[-1:]


def _short(row: list[float | None]) -> list[float | int | None]:
    """Five significant digits: what a curve can show, in a third of the bytes."""
    return [value if value is None or isinstance(value, int) else float(f"{value:.5g}") for value in row]
