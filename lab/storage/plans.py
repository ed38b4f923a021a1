"""Plans of runs in the store: what earlier runs measured corrects the next plan.

A run's info holds its `plan` as `training.planning.Planning.report` gives it. Leaves out the arithmetic (`planner`).
"""

from __future__ import annotations

from typing import Any

from lab.planner import Corrections
from lab.storage.rows import Run
from lab.store import Store


def corrections(runs: list[Run], *, model: str, device: str, dtype: str, load_in_4bit: bool) -> Corrections:
    """Of the newest of `runs` (newest first) that was measured with this model in this form; none where there is none."""
    found = measured_run(runs, model=model, device=device, dtype=dtype, load_in_4bit=load_in_4bit)
    measured = found.info["plan"]["measured"] if found else {}
    return Corrections(memory=measured.get("memory") or 1.0, pace=measured.get("pace") or 1.0)


def measured_run(runs: list[Run], *, model: str, **form: Any) -> Run | None:
    """The run whose measurement `corrections` goes by."""
    def fits(run: Run) -> bool:
        plan = run.info.get("plan") or {}
        return bool(plan.get("measured")) and run.config.get("model") == model and all(plan.get(name) == form[name] for name in form)

    return next(filter(fits, runs), None)


def form_of(resolved: dict[str, Any]) -> dict[str, Any]:
    """What a measurement depends on, beside the model: of what the engine resolved, or of a plan."""
    return {name: resolved.get(name) for name in ("device", "dtype", "load_in_4bit")}


def keep_plan(store: Store, run: str, report: dict[str, Any] | None) -> None:
    """Put a plan, or what was measured beside it, into the run's info."""
    if report is not None:
        store.set_info(run, {**store.run(run).info, "plan": report})
