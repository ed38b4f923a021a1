"""HTTP routes of the Data tab, and of the look before a run.

    GET  /api/data                      the owner's data sets, and what sources there are
    POST /api/data/upload?name=…        the file as the request's body → {"token", "rows", "columns"}; at most 20 MB
    POST /api/data/fetch                {"id", "config", "split", "rows"}: from the Hugging Face Hub, likewise
    POST /api/data/preview              {"source", "mapping", "model", "system_prompt"}
    POST /api/data                      {"source", "mapping", "name", "held_out_share"}: a data set
    GET  /api/data/{id}                 with what a scan has found so far
    POST /api/data/{id}/scan            {"config", "samples", "prompts"}; cancelled like any command
    POST /api/data/{id}/keep            {"low", "high", "name"}: a new data set of the prompts with such pass rates
    POST /api/data/{id}/delete          GET /api/data/{id}/export?format=csv|jsonl
    POST /api/preflight                 {"config"} → {"command"}, whose result says what a few groups promise

A source is {"kind": "typed", "text"}, {"kind": "task", "task", "rows"} or {"kind": "kept", "token"}.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from lab.storage.datasets import Datasets, jsonl_text
from lab.tasks import TaskError
from lab.tasks.read_apart import fetched_apart, read_upload
from lab.tasks.tables import UPLOAD, csv_text
from lab.web import actions, data
from lab.web.actions import ActionError, Lab
from lab.web.routes import Owner, TheLab, json_answer, only_known, part_of

router = APIRouter(prefix="/api")
READING = asyncio.Semaphore(2)  # files read at the same time: each may take a core and two gigabytes


@router.get("/data")
def list_data(request: Request, owner: Owner, lab: TheLab) -> Response:
    """The owner's data sets, and what a new one can be made of."""
    return json_answer(request, {"datasets": data.datasets(lab, owner), "sources": data.sources()})


@router.post("/data/upload")
async def upload(request: Request, owner: Owner, lab: TheLab, name: str) -> Response:
    """A file as the request's body; its rows are kept until the next upload, and its columns told."""
    with tempfile.TemporaryDirectory(prefix="lab-upload-") as folder:
        path = Path(folder) / "upload"
        with path.open("wb") as file:
            size = 0
            async for piece in request.stream():
                size += len(piece)
                if size > UPLOAD.file_bytes:
                    raise ActionError(f"The file has more than {UPLOAD.file_bytes / 1e6:,.0f} MB. Take a part of it.", 413)
                file.write(piece)
        return json_answer(request, await _kept(lab, owner, Path(name).name[-80:] or "file", read_upload, path, name))


@router.post("/data/fetch")
async def fetch(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Rows of a Hugging Face data set: {id, config, split, rows}, read by a process of its own."""
    only_known(body, "id", "config", "split", "rows")
    hub_id = part_of(body, "id", str, "").strip()
    rows = str(body.get("rows") or "1000")
    if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", hub_id) or ".." in hub_id:
        raise ActionError("The id of a Hub data set looks like openai/gsm8k.")
    if not rows.isdigit() or not 1 <= int(rows) <= UPLOAD.rows:
        raise ActionError(f"Rows is {rows}: a number from 1 to {UPLOAD.rows:,} is needed.")
    config, split = (str(body.get(key) or "").strip() for key in ("config", "split"))
    title = f"{hub_id}{f' {config}' if config else ''}, {split or 'train'}"
    return json_answer(request, await _kept(lab, owner, title, fetched_apart, hub_id, config, split or "train", int(rows)))


@router.post("/data/preview")
def preview(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """The first rows of a source under a mapping of its columns, and some as the model would see them."""
    only_known(body, "source", "mapping", "model", "system_prompt")
    return json_answer(request, data.preview(lab, owner, part_of(body, "source", dict, {}), part_of(body, "mapping", dict, None),
                                       part_of(body, "model", str, "tiny"), part_of(body, "system_prompt", str, "")))


@router.post("/data")
def prepare(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Makes a data set of what the preview shows."""
    only_known(body, "source", "mapping", "name", "held_out_share")
    return json_answer(request, data.prepare(lab, owner, part_of(body, "source", dict, {}), part_of(body, "mapping", dict, None),
                                       part_of(body, "name", str, "").strip(), _number(body, "held_out_share", 0.0)))


@router.get("/data/{dataset}")
def details(request: Request, dataset: str, owner: Owner, lab: TheLab) -> Response:
    """One data set, with what a scan has found about each prompt."""
    return json_answer(request, data.details(lab, owner, dataset))


@router.post("/data/{dataset}/scan")
def scan(request: Request, dataset: str, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Asks for a difficulty scan; the answer names the command."""
    only_known(body, "config", "samples", "prompts")
    return json_answer(request, data.scan(lab, owner, dataset, part_of(body, "config", dict, {}), int(_number(body, "samples", 8)),
                                    int(_number(body, "prompts", 64))))


@router.post("/data/{dataset}/keep")
def keep(request: Request, dataset: str, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """A new data set of the prompts whose share of right answers lies from `low` to `high`."""
    only_known(body, "low", "high", "name")
    low, high = _number(body, "low", 0.1), _number(body, "high", 0.9)
    return json_answer(request, data.keep(lab, owner, dataset, low, high, part_of(body, "name", str, None)))


@router.post("/data/{dataset}/delete")
def delete(request: Request, dataset: str, owner: Owner, lab: TheLab) -> Response:
    """Deletes a data set of the owner's."""
    return json_answer(request, data.delete(lab, owner, dataset))


@router.get("/data/{dataset}/export")
def export(dataset: str, owner: Owner, lab: TheLab, format: str = "jsonl") -> Response:
    """The rows as a file. In a CSV, cells that a spreadsheet would take for formulas get an apostrophe before them."""
    if format not in ("csv", "jsonl"):
        raise ActionError("An export is csv or jsonl.")
    name, rows = data.rows_of(lab, owner, dataset)
    text = csv_text(rows) if format == "csv" else jsonl_text(rows)
    file = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"
    return Response(text.encode(), headers={"content-disposition": f'attachment; filename="{file}.{format}"', "cache-control": "no-store"},
                    media_type="text/csv" if format == "csv" else "application/x-ndjson")


@router.post("/preflight")
def preflight(request: Request, owner: Owner, lab: TheLab, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Asks for a look at a few groups under a config, without a run."""
    only_known(body, "config")
    return json_answer(request, actions.preflight(lab, owner, part_of(body, "config", dict, {})))


@router.get("/runs/{run_id}/preflight")
def preflight_of_run(request: Request, run_id: str, owner: Owner, lab: TheLab) -> Response:
    """What the look before this run found; null where there was none."""
    store, run = lab.find(owner, run_id)
    command = store.newest_command(run.id, "preflight") if run.kind != "recorded" else None
    return json_answer(request, {"status": command.status, "result": command.result, "error": command.error} if command else None)


async def _kept(lab: Lab, owner: str, title: str, read: Any, *arguments: Any) -> dict[str, Any]:
    """Reads a table in another process, without holding up the page, and keeps it as the owner's last one."""
    async with READING:
        try:
            table = await asyncio.to_thread(read, *arguments)
            token = await asyncio.to_thread(Datasets(lab.store.path).keep_upload, table, title, owner=owner)
        except TaskError as error:
            raise ActionError(str(error)) from error
    return {"token": token, "title": title, "rows": len(table.rows), "columns": table.columns}


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    try:
        number = float(str(value).replace(",", ".").strip())
    except ValueError:
        number = float("nan")
    if number != number or abs(number) == float("inf"):
        raise ActionError(f"{name.replace('_', ' ')} is {value!r}: a number is needed.")
    return number
