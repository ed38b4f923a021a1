"""HTTP routes: JSON over the run store, for the page and for other programs.

    GET  /api/runs                                        GET  /api/live?run=…&after=…
    GET  /api/runs/{run_id}                               GET  /api/samples/{rollout_id}
    GET  /api/runs/{run_id}/lineage                       POST /api/sample
    GET  /api/runs/{run_id}/steps?after=N&columns=…       POST /api/runs
    GET  /api/runs/{run_id}/steps/{step}/groups           POST /api/runs/{run_id}/commands
    GET  /api/runs/{run_id}/steps/{step}/groups/{group}/tokens
    GET  /api/runs/{run_id}/changes                       GET  /api/commands/{command_id}
    GET  /api/runs/{run_id}/evaluations                   POST /api/commands/{command_id}/cancel
    GET  /api/runs/{run_id}/evaluations/{step}            POST /api/engine/restart
    GET  /api/runs/{run_id}/evaluations/{step}/prompts/{prompt}
    GET  /api/curves?theme=…    GET  /api/presets    GET  /api/choices
    GET  /api/examples?model=…&task=…    GET  /api/parity    POST /api/plan

Commands of a run, as {"kind": …, "args": {…}}:

    pause · resume · stop       step {n}                        resume_run {more: further steps}
    change {live settings}      branch {step, config, name}     evaluate {config: eval_… settings}

A command is answered with its id at once; what came of it is at /api/commands/{command_id}: `status` is queued, taken, done,
failed or cancelled, `result` names the step, a branch's new run, the share of an evaluation that is done.

Every one answers only with what `current_user` may see. `lab.web.security.Guard` has checked Host and Origin before.
"""

from __future__ import annotations

import gzip
import json
import math
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Request, Response

from lab import charts, glossary
from lab.presets import PRESETS
from lab.web import actions, presence, views
from lab.web.actions import ActionError, Lab
from lab.web.changes import changes_view
from lab.web.evaluations import evaluation_view, evaluations_view, sampled_view
from lab.web.form import form_value
from lab.web.lineage import lineage
from lab.web.parity import parity_view
from lab.web.plans import plan_view
from lab.web.presence import Keeper
from lab.web.security import current_user

Owner = Annotated[str, Depends(current_user)]
HALF_A_CHARACTER = "The text holds half a character (a lone surrogate): write the character itself."
LARGE = 2000  # bytes from which compressing pays


def add_routes(app: FastAPI, lab: Lab, keeper: Keeper) -> None:
    """Puts the routes into the app, and what refusals of the lab look like: {error} with a status."""
    app.state.lab, app.state.keeper = lab, keeper
    app.include_router(router)
    app.add_exception_handler(ActionError, lambda request, error: json_answer(request, {"error": str(error)}, error.status))
    app.add_exception_handler(UnicodeEncodeError, lambda request, error: json_answer(request, {"error": HALF_A_CHARACTER}, 422))
    app.add_exception_handler(OverflowError, lambda request, error: json_answer(request, {"error": "A number is too large."}, 422))


def the_lab(request: Request) -> Lab:
    """The lab of the app that answers this request."""
    return request.app.state.lab


TheLab = Annotated[Lab, Depends(the_lab)]
router = APIRouter(prefix="/api")


@router.get("/runs")
def list_runs(request: Request, owner: Owner, lab: TheLab) -> Response:
    """Runs that the owner may see, newest first, recorded ones last."""
    return json_answer(request, {"runs": [views.run_view(run) for run in lab.runs(owner)]})


@router.get("/runs/{run_id}")
def show_run(request: Request, run_id: str, owner: Owner, lab: TheLab) -> Response:
    """A run with its config, its events, and the traceback of a failure."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, views.run_details(run, store.events(run_id)))


@router.get("/runs/{run_id}/lineage")
def show_lineage(request: Request, run_id: str, owner: Owner, lab: TheLab) -> Response:
    """The run's parent, the checkpoints one can go on from, and its branches."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, lineage(lab, owner, store, run))


@router.get("/runs/{run_id}/steps")
def steps(request: Request, run_id: str, owner: Owner, lab: TheLab, after: int = 0, columns: str | None = None) -> Response:
    """Metrics of the steps after `after`. `columns=curves` gives what the curves need, and `smooth` beside it."""
    store, run = lab.find(owner, run_id)
    found = store.steps_after(run_id, max(0, after - charts.WINDOW), limit=None)
    wanted = charts.curve_columns(found.columns) if columns == "curves" else columns.split(",") if columns else None
    return json_answer(request, views.steps_view(run, found, after, wanted))


@router.get("/runs/{run_id}/changes")
def changes(request: Request, run_id: str, owner: Owner, lab: TheLab) -> Response:
    """The settings that can be changed while the run goes, and what was changed at which step."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, changes_view(run, store.events(run_id)))


@router.get("/runs/{run_id}/evaluations")
def evaluations(request: Request, run_id: str, owner: Owner, lab: TheLab, theme: str = "light") -> Response:
    """Base and tuned on held-out prompts, per evaluated step, and their figure in one theme."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, evaluations_view(store, run, charts.THEMES.get(theme, charts.LIGHT)))


@router.get("/runs/{run_id}/evaluations/{step}")
def evaluation(request: Request, run_id: str, step: int, owner: Owner, lab: TheLab) -> Response:
    """The prompts of one evaluation with what base and tuned answered greedily."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, _found(evaluation_view(store, run, step), f"Run {run.name} was not evaluated at step {step}."))


@router.get("/runs/{run_id}/evaluations/{step}/prompts/{prompt}")
def evaluation_prompt(request: Request, run_id: str, step: int, prompt: int, owner: Owner, lab: TheLab) -> Response:
    """What was sampled for one of them."""
    store, run = lab.find(owner, run_id)
    return json_answer(request, _found(sampled_view(store, run, step, prompt), f"Nothing was sampled for prompt {prompt} at step {step}."))


@router.get("/runs/{run_id}/steps/{step}/groups")
def groups(request: Request, run_id: str, step: int, owner: Owner, lab: TheLab) -> Response:
    """What the step learned from. `use` counts from 1: a batch may serve `uses` steps, which then have the same groups."""
    store, run = lab.find(owner, run_id)
    record = store.step(run_id, step)
    if record is None:
        raise ActionError(f"Run {run.name} has no step {step}.", 404)
    return json_answer(request,
                       {"run": run_id, "step": step, "attempt": run.attempt, "use": record.iteration + 1,
                        "uses": run.config.get("num_iterations") or 1, "functions": views.functions(run.config, record.groups),
                        "groups": [views.group_view(group) for group in record.groups]})


@router.get("/runs/{run_id}/steps/{step}/groups/{group}/tokens")
def tokens(request: Request, run_id: str, step: int, group: int, owner: Owner, lab: TheLab) -> Response:
    """A group with the arrays of every token, where the run kept them."""
    store, run = lab.find(owner, run_id)
    found = store.tokens(run_id, step, group)
    if found is None:
        raise ActionError(f"Run {run.name} has no group {group} at step {step}.", 404)
    return json_answer(request, {"run": run_id, "step": step, "group": views.tokens_view(found)})


@router.get("/live")
def live(request: Request, owner: Owner, lab: TheLab, run: str | None = None, after: float = 0.0) -> Response:
    """What is going on now: phase, engine, the run, partial texts newer than the cursor, open commands."""
    if not math.isfinite(after):
        raise ActionError("after is a number of seconds.")
    return json_answer(request, presence.now(lab, request.app.state.keeper, owner, run, after))


@router.get("/samples/{rollout_id}")
def show_sample(request: Request, rollout_id: int, owner: Owner, lab: TheLab) -> Response:
    """A sample of the owner's: its status, settings and groups."""
    rollout = lab.store.rollout(rollout_id)
    if rollout is None or rollout.owner != owner or rollout.kind != "sample":
        raise ActionError(f"There is no sample {rollout_id} here.", 404)
    return json_answer(request, views.sample_view(rollout, lab.store.rollout_groups(rollout_id)))


@router.post("/sample")
def sample(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """{"prompt": text, "config": {settings}, "adapter": "base" or a run}"""
    only_known(body, "prompt", "config", "adapter")
    settings = part_of(body, "config", dict, {})
    return json_answer(request,
                       actions.sample(lab, owner, part_of(body, "prompt", str, ""), settings, part_of(body, "adapter", str, "base")))


@router.post("/runs")
def start_run(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """{"config": {settings}, "name": text, "steps": pause after so many}; without a config, the first-run preset."""
    only_known(body, "config", "name", "steps")
    settings = part_of(body, "config", dict, None) or actions.first_run().to_dict()
    return json_answer(request,
                       actions.start_run(lab, owner, settings, part_of(body, "name", str, None), part_of(body, "steps", int, None)))


@router.post("/runs/{run_id}/commands")
def command_run(request: Request, run_id: str, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """{"kind": "pause" | "resume" | "step" | "stop" | "resume_run" | "change" | …, "args": {}}; of a change, the settings."""
    only_known(body, "kind", "args")
    return json_answer(request, actions.command_run(lab, owner, run_id, part_of(body, "kind", str, ""), part_of(body, "args", dict, {})))


@router.post("/plan")
def plan(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """{"config": {settings}}: what a run with them would take; without a config, the first-run preset."""
    only_known(body, "config")
    return json_answer(request, plan_view(lab, owner, part_of(body, "config", dict, None) or actions.first_run().to_dict()))


@router.get("/commands/{command_id}")
def show_command(request: Request, command_id: int, owner: Owner, lab: TheLab) -> Response:
    """What became of a command: its status, its result or why not."""
    return json_answer(request, views.command_view(actions.own_command(lab, owner, command_id)))


@router.post("/commands/{command_id}/cancel")
def cancel(request: Request, command_id: int, owner: Owner, lab: TheLab) -> Response:
    """Stops a command that waits or is carried out."""
    return json_answer(request, actions.cancel(lab, owner, command_id))


@router.post("/engine/restart")
def restart_engine(request: Request, owner: Owner) -> Response:
    """Starts the engine that fell, or exchanges one of another version."""
    request.app.state.keeper.restart()
    return json_answer(request, {"engine": presence.engine_view(request.app.state.keeper.status)})


@router.get("/curves")
def curves(request: Request, theme: str = "light") -> Response:
    """Which curves there are, with their Plotly layouts in one theme."""
    colours = charts.THEMES.get(theme, charts.LIGHT)
    shown = [{"metric": c.metric, "title": c.title, "unit": c.unit, "digits": c.digits, "smoothing": c.smoothing, "top": c.top,
              "help": glossary.metric(c.metric).text, "layout": charts.curve_layout(c, colours), "optional": c in charts.CRITIC_CURVES}
             for c in (*charts.CURVES, *charts.CRITIC_CURVES)]
    return json_answer(request, {"curves": shown, "dashes": charts.DASHES, "theme": vars(colours)})


@router.get("/presets")
def presets(request: Request) -> Response:
    """Every preset with its settings, as a config has them and as the form shows them."""
    return json_answer(request, {"presets": [{"name": p.name, "title": p.title, "why": p.why, "source": p.source, "group": p.group,
                                        "settings": p.settings,
                                        "form": {name: form_value(name, value) for name, value in p.settings.items()}}
                                       for p in PRESETS.values()]})


@router.get("/choices")
def choices(request: Request) -> Response:
    """What each value of a setting with names to choose from does."""
    return json_answer(request, {"choices": glossary.CHOICES})


@router.get("/parity")
def parity(request: Request) -> Response:
    """What the comparison of every loss with TRL found."""
    return json_answer(request, parity_view())


@router.get("/examples")
def examples(request: Request, model: str = "tiny", task: str = "") -> Response:
    """Prompts that suit model and task, and what the model is limited to."""
    return json_answer(request, actions.examples(model, task))


def _found(view: dict[str, Any] | None, otherwise: str) -> dict[str, Any]:
    if view is None:
        raise ActionError(otherwise, 404)
    return view


def part_of(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A part of the request's body. ActionError if it is of another kind."""
    value = body.get(name, default)
    if value is not default and not isinstance(value, kind):
        raise ActionError(f"{name} must be a {kind.__name__}.")
    return value


def only_known(body: dict[str, Any], *known: str) -> None:
    """ActionError for a field that the route does not read: a misspelt one must not be ignored."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ActionError(f"Unknown field {', '.join(unknown)}. Known fields: {', '.join(known)}.")


def json_answer(request: Request, content: Any, status: int = 200) -> Response:
    """The content as JSON, compressed where that pays; ValueError for NaN, which JSON has no word for."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    body = text.encode("utf-8", "replace")  # half a character, such as a reward function's error may hold, becomes "?"
    headers = {"cache-control": "no-store"}
    if len(body) > LARGE and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = gzip.compress(body, compresslevel=1), "gzip"
    return Response(body, status, headers, media_type="application/json")
