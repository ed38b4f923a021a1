"""HTTP routes of the Reward tab.

    GET  /api/rewards?kind=…&run=…&step=…    what the tab begins with: draft, versions, built-ins, templates, columns, sandbox
    POST /api/rewards/draft                  {"source"}: kept as it is typed; answers with what reading it (not running it) shows
    POST /api/rewards/bench                  {"source", "functions", "on", "against"}: runs it in this process's own locked worker;
                                             {"overtaken": true} where the same person has saved again meanwhile
    POST /api/rewards/versions               {"source", "note"}: freezes it
    GET  /api/rewards/versions/{label}       a frozen source
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from lab.rewards import BUILTINS
from lab.rewards.sandbox import probe
from lab.rewards.signature import MAX_SOURCE, check_source
from lab.storage.rewards import ShelfError, Version
from lab.web.actions import ActionError, Lab
from lab.web.reward.benches import NOT_HERE, Benches, Overtaken, score_all
from lab.web.reward.sources import find_source
from lab.web.reward.templates import templates
from lab.web.routes import Owner, TheLab, json_answer, only_known, part_of

router = APIRouter(prefix="/api/rewards")
MOST_FUNCTIONS = 12


@router.get("")
def begin(request: Request, owner: Owner, lab: TheLab, kind: str = "run", run: str | None = None, step: int | None = None) -> Response:
    """What the Reward tab opens with: the draft, frozen versions, built-ins, and the columns a function would be given."""
    columns = _columns(lab, owner, {"kind": kind, "run": run, "step": step})
    source = lab.shelf.draft(owner)
    return json_answer(request, {
        "draft": source, "previous": lab.shelf.draft(owner, "previous"), "versions": [_version_view(v) for v in lab.shelf.versions(owner)],
        "builtins": _builtins(), "all": list(BUILTINS), "templates": templates(columns), "columns": columns,
        "runs": [{"id": r.id, "name": r.name, "step": r.step, "kind": r.kind} for r in lab.runs(owner) if r.step],
        "sandbox": {"level": probe().level, "sentence": probe().sentence, "locked": probe().is_locked}})


@router.post("/draft")
def save_draft(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """`name` "previous" keeps what another source is about to replace. `columns`: those of the completions at hand."""
    only_known(body, "source", "name", "columns")
    source, name = _source(body), part_of(body, "name", str, "draft")
    if name not in ("draft", "previous"):
        raise ActionError("A draft is kept as draft or previous.")
    lab.shelf.save_draft(owner, source, name)
    columns = part_of(body, "columns", list, None)
    return json_answer(request, {"check": check_source(source, None if columns is None else [str(c) for c in columns]).to_dict()})


@router.post("/bench")
async def run_bench(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Scores the draft and other functions on stored completions, with the hostile set beside them."""
    only_known(body, "source", "functions", "on", "against")
    source, functions = _source(body), [str(f) for f in part_of(body, "functions", list, [])]
    if len(functions) > MOST_FUNCTIONS:
        raise ActionError(f"At most {MOST_FUNCTIONS} functions beside your own.")
    asked, against = part_of(body, "on", dict, {"kind": "run"}), part_of(body, "against", str, None)

    def job() -> dict[str, Any]:
        lab.shelf.save_draft(owner, source)
        return score_all(the_benches(request), lab.shelf, owner, source, functions, find_source(lab, owner, asked), against)

    try:
        answer = await the_benches(request).run(owner, job)
    except Overtaken:
        return json_answer(request, {"overtaken": True})
    except ShelfError as error:
        raise ActionError(str(error), 404) from error
    return await asyncio.to_thread(json_answer, request, answer)


@router.post("/versions")
def freeze(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Named after its function. What cannot be read as a reward is not frozen."""
    only_known(body, "source", "note")
    source = _source(body)
    check = check_source(source)
    if check.main is None or not check.ok:
        raise ActionError(f"This cannot be frozen yet: {check.problems[0].message}")
    try:
        version = lab.shelf.freeze(owner, check.main.name, source, part_of(body, "note", str, "")[:500])
    except ShelfError as error:
        raise ActionError(str(error)) from error
    return json_answer(request, _version_view(version))


@router.get("/versions/{label}")
def show_version(request: Request, label: str, owner: Owner, lab: TheLab) -> Response:
    """A frozen version with its source."""
    try:
        version = lab.shelf.version(owner, label)
    except ShelfError as error:
        raise ActionError(str(error), 404) from error
    return json_answer(request, _version_view(version) | {"source": version.source})


def the_benches(request: Request) -> Benches:
    """The reward workers of this web process."""
    return request.app.state.benches


def _version_view(version: Version) -> dict[str, Any]:
    return {"label": version.label, "name": version.name, "version": version.version, "note": version.note, "created": version.created,
            "sha256": version.sha256}


def _columns(lab: Lab, owner: str, asked: dict[str, Any]) -> list[str]:
    try:
        return find_source(lab, owner, asked).columns
    except ActionError:
        return []


def _builtins() -> list[dict[str, str]]:
    return [{"name": name, "doc": (inspect.getdoc(factory) or "").partition("\n")[0]} for name, factory in BUILTINS.items()
            if name not in NOT_HERE]


def _source(body: dict[str, Any]) -> str:
    source = part_of(body, "source", str, "")
    if len(source) > MAX_SOURCE:
        raise ActionError(f"The source has {len(source):,} characters; at most {MAX_SOURCE:,} are accepted.")
    return source.encode("utf-8", "replace").decode("utf-8")
