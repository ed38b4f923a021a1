"""Scores given by hand: which completions a run waits with, and giving it their scores.

    GET  /api/runs/{run_id}/scores     {"waiting": null, or {"id", "step", "criteria", "groups", "going"}}
    POST /api/runs/{run_id}/scores     {"id": …, "scores": a list for each group, of {criterion: 0…1} or null}

`id` tells the completions that the person saw, so that a page left open cannot score others. Leaves out the waiting itself,
which is the engine's (`lab.engine_work`), and the panel (assets/js/byhand.js).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from lab.records import Completion, Group
from lab.rewards.by_hand import ScoreError, checked_ratings
from lab.store import Run, RunEvent
from lab.web.actions import ActionError, Lab
from lab.web.routes import Owner, TheLab, json_answer, only_known, part_of

router = APIRouter(prefix="/api/runs/{run_id}/scores")


@router.get("")
def show_waiting(request: Request, run_id: str, owner: Owner, lab: TheLab) -> Response:
    """The completions that wait for a person's scores, or null."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, {"run": run.id, "waiting": waiting(run, store.events(run.id))})


@router.post("")
def give(request: Request, run_id: str, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Scores for the completions told by `id`; the run then goes on."""
    only_known(body, "id", "scores")
    return json_answer(request, give_scores(lab, owner, run_id, part_of(body, "id", str, ""), part_of(body, "scores", list, [])))


def waiting(run: Run, events: Iterable[RunEvent]) -> dict[str, Any] | None:
    """What the run waits with since it last asked; `going` says that it can be answered now, without a resume."""
    told = [event for event in events if event.kind in ("awaiting_scores", "scores") and event.attempt == run.attempt]
    if not told or told[-1].kind == "scores" or told[-1].step <= run.step or run.status == "training":
        return None
    return {**told[-1].data, "step": told[-1].step, "going": run.status == "paused"}


def give_scores(lab: Lab, owner: str, run_id: str, told: str, scores: list[Any]) -> dict[str, int]:
    """Leaves the scores for the engine, which gives them to the run and lets it go on. ActionError in a sentence."""
    store, run = lab.find(owner, run_id)
    asked = waiting(run, store.events(run.id))
    if asked is None or asked["id"] != told:
        raise ActionError("These completions no longer wait for scores. Look at the run again.", 409)
    if not asked["going"]:
        raise ActionError(f"{run.name} is {run.status}: resume it first, then give the scores.", 409)
    try:
        ratings = checked_ratings(scores, [_group(group) for group in asked["groups"]], asked["criteria"])
    except ScoreError as error:
        raise ActionError(str(error)) from error
    return {"command": store.send_command("scores", {"id": told, "scores": ratings}, owner=owner, run=run.id).id}


def _group(shown: dict[str, Any]) -> Group:
    return Group(shown["index"], shown["prompt"], [], {}, [Completion(c["index"], c["text"], [], True) for c in shown["completions"]])
