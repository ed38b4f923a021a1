"""A run's evaluations as the page shows them: base beside tuned, down to the prompts and completions they come from.

Leaves out making them (`lab.training.evaluation`; the engine's command "evaluate") and what the numbers mean
(`lab.training.evaluation_metrics`, whose threshold of right is used here).
"""

from __future__ import annotations

from typing import Any

from lab import charts
from lab.records import Completion, Group
from lab.storage.evaluations import Evaluation
from lab.store import Run, Store
from lab.training.evaluation_metrics import is_right
from lab.web.views import completion_view

PASS = "eval_pass@"


def evaluations_view(store: Store, run: Run, theme: charts.Theme) -> dict[str, Any]:
    """One row per evaluation, by step, the base first; and the figure, in one theme."""
    found = store.evaluations(run.id)
    drawn = [{"step": e.step, "adapter": e.adapter, "metrics": e.metrics} for e in found]
    data, layout = charts.evaluation_parts(drawn, theme, last_step=run.config.get("max_steps"))
    return {"run": run.id, "step": run.step, "status": run.status, "rows": [_row(store, e) for e in found],
            "ks": sorted({k for e in found for k in _pass_at(e)}), "figure": {"data": data, "layout": layout},
            "failed": [{"step": event.step, "message": event.data["message"]} for event in store.events(run.id)
                       if event.kind == "evaluation_failed"],
            "settings": {name: run.config.get(name) for name in ("eval_steps", "eval_prompts", "eval_samples", "eval_temperature")}}


def evaluation_view(store: Store, run: Run, step: int) -> dict[str, Any] | None:
    """What base and tuned answered at this step, prompt by prompt, without chance; None where nothing was evaluated then."""
    base, tuned = _pair(store, run, step)
    if base is None and tuned is None:
        return None
    sides = {name: _answers(store, e) for name, e in (("base", base), ("tuned", tuned)) if e}
    some = next(iter(sides.values()))
    prompts = [{"index": place, "prompt": group.prompt, "answer": group.row.get("answer"),
                **{name: answers[place][1] for name, answers in sides.items()}} for place, (group, _) in enumerate(some)]
    return {"run": run.id, "step": step, "base_step": base and base.step, "prompts": prompts,
            "gained": _changed(prompts, False, True), "lost": _changed(prompts, True, False)}


def sampled_view(store: Store, run: Run, step: int, prompt: int) -> dict[str, Any] | None:
    """The sampled completions of one prompt, from which pass@k was estimated."""
    sides = {}
    for name, evaluation in zip(("base", "tuned"), _pair(store, run, step), strict=True):
        groups = store.rollout_groups(evaluation.sampled) if evaluation and evaluation.sampled else []
        if prompt < len(groups):
            sides[name] = [completion_view(c) | {"right": _right(c)} for c in groups[prompt].completions]
    return {"run": run.id, "step": step, "prompt": prompt, **sides} if sides else None


def _row(store: Store, e: Evaluation) -> dict[str, Any]:
    samples = max(_pass_at(e), default=0)
    return {"step": e.step, "adapter": e.adapter, "accuracy": e.metrics.get("eval_accuracy"), "pass": _pass_at(e), "samples": samples,
            "prompts": len(store.rollout(e.greedy).prompts), "seconds": e.metrics.get("eval_runtime"), "created": e.created}


def _pass_at(e: Evaluation) -> dict[int, float]:
    return {int(name.removeprefix(PASS)): value for name, value in e.metrics.items() if name.startswith(PASS)}


def _pair(store: Store, run: Run, step: int) -> tuple[Evaluation | None, Evaluation | None]:
    """Base and tuned of a step. The base does not change: one of another step serves if it answered the same prompts."""
    found = store.evaluations(run.id)
    tuned = next((e for e in found if (e.step, e.adapter) == (step, "tuned")), None)
    bases = [e for e in found if e.adapter == "base"]
    own = next((e for e in bases if e.step == step), None)
    if own or tuned is None:
        return own, tuned
    asked = store.rollout(tuned.greedy).prompts
    return next((e for e in reversed(bases) if store.rollout(e.greedy).prompts == asked), None), tuned


def _answers(store: Store, e: Evaluation) -> list[tuple[Group, dict[str, Any]]]:
    """For each prompt the greedy answer, and how many of the sampled ones are right."""
    sampled = store.rollout_groups(e.sampled) if e.sampled else []
    answers = []
    for place, group in enumerate(store.rollout_groups(e.greedy)):
        greedy = group.completions[0]
        judged = [right for c in (sampled[place].completions if place < len(sampled) else []) if (right := _right(c)) is not None]
        answers.append((group, {"text": greedy.text, "tokens": len(greedy.token_ids), "finished": greedy.finished, "right": _right(greedy),
                                "sampled_right": sum(judged), "sampled": len(judged)}))
    return answers


def _right(c: Completion) -> bool | None:
    """The first of the evaluation's functions judges."""
    first = next(iter(c.rewards), None)
    return None if first is None else is_right(c, first)


def _changed(prompts: list[dict[str, Any]], before: bool, after: bool) -> list[int]:
    return [p["index"] for p in prompts if "base" in p and "tuned" in p and (p["base"]["right"], p["tuned"]["right"]) == (before, after)]
