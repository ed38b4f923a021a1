"""What the Data tab does: from a source to a data set of the owner's, its preview, its difficulty, and parts of it as new sets.

Plain functions for the routes. A source is typed text, a task, or a table that was uploaded or fetched before; strangers'
bytes, the Hub and reasoning-gym are met in other processes (`lab.tasks.read_apart`). Nothing is stored before every row was
checked. Errors are ActionError with a sentence.
"""

from __future__ import annotations

import json
from typing import Any

from lab.models.chat import NoTemplate, messages_of, rendered
from lab.models.registry import ModelError, ModelSource
from lab.models.registry import resolve as resolve_model
from lab.storage.datasets import Dataset, Datasets
from lab.tasks import BUILTIN_TASKS, TaskError, load_task, prompt_text
from lab.tasks import gym as gym_tasks
from lab.tasks.difficulty import scan_of
from lab.tasks.mapping import Mapping, apply, guess
from lab.tasks.read_apart import drawn_apart
from lab.tasks.sources import is_held_out, rows_task
from lab.tasks.tables import Table
from lab.tasks.typed import typed_table
from lab.web.actions import SAMPLE_SETTINGS, ActionError, Lab
from lab.web.actions import _config as checked_config

Values = dict[str, Any]
SHOWN_ROWS, SHOWN_PROMPTS, SHOWN_CHARACTERS = 8, 3, 240
MOST_DRAWN = 5000  # rows of a task that is drawn without end
GOING = ("queued", "loading", "scanning")


def sources() -> Values:
    """What there is to choose from."""
    tasks = [load_task(name) for name in BUILTIN_TASKS]
    return {"tasks": [{"name": task.name, "title": task.title, "note": task.note, "size": task.size} for task in tasks],
            "gym": {"installed": gym_tasks.is_installed(),
                    "tasks": [{"name": gym_tasks.PREFIX + name, "note": note} for name, note in gym_tasks.VETTED.items()]}}


def preview(lab: Lab, owner: str, source: Values, mapping: Values | None, model: str, system_prompt: str | None) -> Values:
    """The first rows as they came and as a run would have them, with the prompt as the model will see it."""
    table, title, given = _table(lab, owner, source)
    chosen, problem, rows = None, None, table.rows
    if not given:
        chosen = _mapping(mapping) if mapping else guess(table)
        rows, problem = _mapped(table, chosen)
    columns = [column for column in table.columns if not (given and column == "held_out")]
    return {"title": title, "columns": columns, "n_rows": len(table.rows), "notes": table.notes, "mapped": not given,
            "mapping": _mapping_view(chosen) if chosen else None, "problem": problem,
            "head": [[_short(row.get(column)) for column in columns] for row in table.rows[:SHOWN_ROWS]],
            "with_answer": sum(row.get("answer") is not None for row in rows), "rewards": _rewards(rows),
            "prompts": [_seen_by_model(row, model, system_prompt) for row in rows[:SHOWN_PROMPTS]]}


def prepare(lab: Lab, owner: str, source: Values, mapping: Values | None, name: str, held_out_share: float) -> Values:
    """A data set of the owner's, with a part of its rows marked as held out."""
    table, title, given = _table(lab, owner, source)
    if not 0 <= held_out_share <= 0.9:
        raise ActionError(f"Held-out share is {held_out_share:g}: a number from 0 to 0.9 is needed.")
    chosen = None if given else _mapping(mapping) if mapping else guess(table)
    if not given and chosen is None:
        raise ActionError("Say which column holds the prompt.")
    try:
        rows = table.rows if given else apply(table, chosen)
        if not any(row.get("held_out") is True for row in rows):  # a task of the lab holds back its own
            rows = _with_held_out(rows, held_out_share)
        held_out = sum(row.get("held_out") is True for row in rows)
        meta = {"source": title, "rewards": _rewards(rows), "held_out": held_out, "notes": table.notes}
        return dataset_view(lab, _datasets(lab).add(name or title, rows, meta, owner=owner))
    except TaskError as error:
        raise ActionError(str(error)) from error


def datasets(lab: Lab, owner: str) -> list[Values]:
    """The owner's data sets, newest first, each without its rows."""
    return [dataset_view(lab, found) for found in _datasets(lab).of(owner)]


def details(lab: Lab, owner: str, dataset: str) -> Values:
    """The data set with what a scan has found so far about each prompt."""
    found = _find(lab, owner, dataset)
    return dataset_view(lab, found) | {"prompts": (found.scan or {}).get("prompts", [])}


def scan(lab: Lab, owner: str, dataset: str, settings: Values, samples: int, prompts: int) -> Values:
    """Asks the engine to sample each of the first prompts so many times."""
    found = _find(lab, owner, dataset)
    if _scan_status(lab, found) in GOING:
        raise ActionError(f"{found.name} is being scanned already: cancel that first.", 409)
    if not 2 <= samples <= 64 or not 1 <= prompts <= 4096:
        raise ActionError("A scan takes 2 to 64 samples of 1 to 4,096 prompts.")
    settings = {name: value for name, value in settings.items() if name in SAMPLE_SETTINGS and name != "task"}
    config = checked_config(lab.with_versions(owner, settings))
    _datasets(lab).set_scan(found.id, {"status": "queued", "error": None, "command": None, "settings": {}, "samples": samples, "of": 0,
                                       "prompts": [], "summary": scan_of([]).summary()})
    command = lab.store.send_command("scan", {"dataset": found.id, "config": config.to_dict(), "samples": samples, "prompts": prompts},
                                     owner=owner)
    return {"command": command.id}


def keep(lab: Lab, owner: str, dataset: str, low: float, high: float, name: str | None) -> Values:
    """A new data set of the scanned prompts with low ≤ p ≤ high; rows that are held out stay in it."""
    found = _find(lab, owner, dataset)
    if not found.scan or not found.scan["prompts"]:
        raise ActionError(f"{found.name} was not scanned yet, so nobody knows how hard its prompts are.")
    wanted = set(scan_of(found.scan["prompts"]).kept(low, high))
    rows = [row for place, row in enumerate(_datasets(lab).rows(found)) if place in wanted or row.get("held_out") is True]
    if not wanted:
        raise ActionError(f"No scanned prompt of {found.name} has {low:g} ≤ p ≤ {high:g}: choose a wider range.")
    meta = {**found.meta, "source": f"{found.name}, {low:g} ≤ p ≤ {high:g}"}
    try:
        return dataset_view(lab, _datasets(lab).add(name or f"{found.name} {low:g}–{high:g}", rows, meta, owner=owner))
    except TaskError as error:
        raise ActionError(str(error)) from error


def delete(lab: Lab, owner: str, dataset: str) -> Values:
    """Removes the data set and its file. ActionError for one made from the command line, or that is being scanned."""
    found = _find(lab, owner, dataset)
    if found.owner != owner:
        raise ActionError(f"{found.name} was made from the command line and is not deleted from here.", 403)
    if _scan_status(lab, found) in GOING:
        raise ActionError(f"{found.name} is being scanned: cancel that first.", 409)
    _datasets(lab).delete(found)
    return {"deleted": found.id}


def rows_of(lab: Lab, owner: str, dataset: str) -> tuple[str, list[Values]]:
    """The name and all rows, for an export."""
    found = _find(lab, owner, dataset)
    return found.name, _datasets(lab).rows(found)


def dataset_view(lab: Lab, found: Dataset) -> Values:
    """What the list of data sets shows; of a scan only how far it is and its summary."""
    scan = dict(found.scan or {})
    prompts = scan.pop("prompts", [])
    if scan:
        scan["status"], scan["done"] = _scan_status(lab, found), len(prompts)
    return {"id": found.id, "name": found.name, "task": found.task, "n_rows": found.n_rows, "created": found.created,
            "source": found.meta.get("source"), "rewards": found.meta.get("rewards"), "held_out": found.meta.get("held_out", 0),
            "scan": scan or None}


def _datasets(lab: Lab) -> Datasets:
    return Datasets(lab.store.path)


def _find(lab: Lab, owner: str, dataset: str) -> Dataset:
    found = _datasets(lab).find(dataset, owner)
    if found is None:
        raise ActionError(f"There is no data set {dataset!r} here.", 404)
    return found


def _scan_status(lab: Lab, found: Dataset) -> str | None:
    """The scan's status; one whose engine died says so."""
    status = (found.scan or {}).get("status")
    command = lab.store.command(found.scan["command"]) if status in GOING and found.scan["command"] else None
    return "interrupted" if command and command.status not in ("queued", "taken") else status


def _table(lab: Lab, owner: str, source: Values) -> tuple[Table, str, bool]:
    """The source's table, a title, and whether its rows are rows of a task already."""
    kind = source.get("kind")
    try:
        if kind == "typed":
            return typed_table(str(source.get("text") or "")), "Typed prompts", False
        if kind == "kept":
            table, title = _datasets(lab).upload(str(source.get("token") or ""), owner=owner)
            return table, title, False
        if kind == "task":
            return _task_table(str(source.get("task") or ""), source.get("rows"))
    except TaskError as error:
        raise ActionError(str(error)) from error
    raise ActionError(f"There is no source {kind!r}: typed, task or kept.")


def _task_table(name: str, count: Any) -> tuple[Table, str, bool]:
    if not name:
        raise ActionError("Choose a task first.")
    if not all(part in BUILTIN_TASKS or part.startswith(gym_tasks.PREFIX) for part in name.split("+")):
        raise ActionError(f"There is no task {name!r} here.")
    wanted = int(count) if str(count or "").strip().isdigit() else 200
    task = load_task(name)
    wanted = min(wanted, task.size or MOST_DRAWN)
    if wanted < 1:
        raise ActionError("Rows: at least 1 is needed.")
    if gym_tasks.PREFIX in name:
        rows, held_out = drawn_apart(name, wanted)
    else:
        rows, held_out = task.rows(0, wanted), task.held_out(max(1, wanted // 8))
    rows = list({json.dumps(row["prompt"]): row for row in rows}.values())
    rows += [{**row, "held_out": True} for row in held_out]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return Table(columns, rows, [f"{len(held_out)} held out"] if held_out else []), name, True


def _mapped(table: Table, mapping: Mapping | None) -> tuple[list[Values], str | None]:
    """The rows, or why there are none yet."""
    if mapping is None:
        return [], "Say which column holds the prompt."
    try:
        return apply(table, mapping), None
    except TaskError as error:
        return [], str(error)


def _with_held_out(rows: list[Values], share: float) -> list[Values]:
    rows_task("data", rows, seed=0, held_out_share=share)  # refuses what leaves nothing to train on
    return [{**row, "held_out": True} if is_held_out(row["prompt"], share) else row for row in rows]


def _mapping(given: Values) -> Mapping:
    def column(name: str) -> str | None:
        return str(given[name]) if given.get(name) else None

    if not column("prompt"):
        raise ActionError("Say which column holds the prompt.")
    keep = given.get("keep")
    return Mapping(column("prompt"), column("answer"), tuple(map(str, given.get("choices") or ())), column("system"),
                   None if keep is None else tuple(map(str, keep)))


def _mapping_view(mapping: Mapping) -> Values:
    return {**vars(mapping), "choices": list(mapping.choices), "keep": None if mapping.keep is None else list(mapping.keep)}


def _rewards(rows: list[Values]) -> list[str]:
    training = [row for row in rows if row.get("held_out") is not True]
    return list(rows_task("data", training, seed=0).rewards) if training else []


def _seen_by_model(row: Values, model: str, system_prompt: str | None) -> Values:
    seen = {"prompt": prompt_text(row["prompt"]), "answer": row.get("answer"), "rendered": None, "why_not": None}
    try:
        source: ModelSource = resolve_model(model)
        seen["messages"] = messages_of(source, row["prompt"], system_prompt)
        seen["rendered"] = rendered(source, row["prompt"], system_prompt)
    except (ModelError, NoTemplate) as error:
        seen["why_not"] = str(error)
    return seen


def _short(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
