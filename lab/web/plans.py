"""The plan of a run before it starts, as the page shows it: what was measured on this machine, applied to a form's settings.

The engine measured the machine and told it with its heartbeat; runs tell what they took. Without either the plan has no
seconds, and says so. Leaves out the arithmetic (`lab.planner`) and the route (`lab.web.routes`).
"""

from __future__ import annotations

import json
from typing import Any

from lab.config import RunConfig
from lab.contradictions import cautions
from lab.models.registry import ModelError, ModelSource, resolve
from lab.models.shapes import SHAPES
from lab.planner import PART_NAMES, ModelShape, Plan, Speed, number_format, plan
from lab.ram import ram
from lab.storage.plans import corrections, measured_run
from lab.store import Run
from lab.tasks import BUILTIN_TASKS, load_task
from lab.web.actions import Lab, config_of

TEMPLATE_TOKENS = 20  # of a chat template around a prompt
CHARACTERS_A_TOKEN = 4.0  # of a large vocabulary; a small one has a token for each character
SMALL_VOCABULARY = 1000


def plan_view(lab: Lab, owner: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Memory by part, seconds, warnings, and what an earlier run of this model measured. Raises ActionError."""
    config = config_of(lab, owner, settings)
    engine = lab.store.process("engine")
    machine = (engine.info if engine else {}).get("machine")
    source, runs = resolve(config.model), lab.runs(owner)
    view: dict[str, Any] = {"cautions": cautions(config), "plan": None, "parts": [], "format": None, "beside": None, "note": None}
    if machine is None:
        return view | {"note": "Memory and seconds follow as soon as the engine has measured this machine."}
    shape = _shape(source)
    if shape is None:
        return view | {"note": f"{source.title} is not on this machine yet, so its sizes are not known."}
    form, reason = _form(config, source, shape, machine)
    made = plan(config, shape, prompt_tokens=_prompt_tokens(config, source, shape, runs), memory=_memory(machine), **form,
                speed=_speed(config, source, form["dtype"], machine), corrections=corrections(runs, model=config.model, **form))
    before = measured_run(runs, model=config.model, **form)
    return view | {
        "plan": made.to_dict() | {"memory": _memory(machine)}, "format": reason, "parts": _parts(made),
        "beside": before and {"run": before.name, "sentence": before.info["plan"]["measured"]["sentence"]},
    }


def _parts(made: Plan) -> list[dict[str, Any]]:
    return [{"name": name, "title": PART_NAMES[name], "bytes": size} for name, size in made.parts.items() if size]


def _shape(source: ModelSource) -> ModelShape | None:
    if source.folder is None:
        return SHAPES.get(source.hub_id or source.name)
    try:
        return ModelShape.of(json.loads((source.folder / "config.json").read_text(encoding="utf-8")))
    except (KeyError, OSError, ValueError, ModelError):
        return None


def _form(config: RunConfig, source: ModelSource, shape: ModelShape, machine: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Device, number format and 4 bits as the engine would settle them, and why this format."""
    device = machine["device"] if config.device == "auto" else config.device
    four_bit = machine["four_bit"] if config.load_in_4bit is None else config.load_in_4bit
    if config.dtype != "auto":
        return dict(device=device, dtype=config.dtype, load_in_4bit=four_bit), None
    speeds = machine["speeds"]
    threads = str(machine["threads"])

    def faster() -> float:
        return speeds["bfloat16"][threads]["flops"] / speeds["float32"][threads]["flops"]

    dtype, reason = number_format(device, source.params or shape.linear + shape.embeddings, ram().total, faster)
    return dict(device=device, dtype=dtype, load_in_4bit=four_bit), reason


def _speed(config: RunConfig, source: ModelSource, dtype: str, machine: dict[str, Any]) -> Speed:
    few = (source.params or machine["small_model"]) < machine["small_model"]
    threads = config.num_threads or (1 if few else machine["threads"])
    by_threads = machine["speeds"][dtype]
    return Speed(**by_threads.get(str(threads), by_threads[str(machine["threads"])]))


def _memory(machine: dict[str, Any]) -> float:
    """Bytes that the engine holds or could get: now on a CPU, in all on a card."""
    return machine["memory"] if machine["device"] == "cuda" else ram().available + machine["memory"]


def _prompt_tokens(config: RunConfig, source: ModelSource, shape: ModelShape, runs: list[Run]) -> int:
    """Of a usual prompt: as an earlier run of this task counted them, else guessed from the task's examples."""
    counted = next((run.info["plan"]["prompt_tokens"] for run in runs if run.info.get("plan") and
                    (run.config.get("model"), run.config.get("task")) == (config.model, config.task)), None)
    if counted:
        return counted
    known = isinstance(config.task, str) and all(part in BUILTIN_TASKS for part in config.task.split("+"))
    examples = load_task(config.task).examples if known else ()
    system = config.system_prompt or source.system_prompt or ""
    characters = max((len(text) for text in examples), default=200) + len(system)
    return TEMPLATE_TOKENS + round(characters / (1.0 if shape.vocabulary < SMALL_VOCABULARY else CHARACTERS_A_TOKEN))
