"""Train tab: what to run (rail), and how it goes (curves, newest groups)."""

from __future__ import annotations

import json

import gradio as gr

from lab.config import RunConfig
from lab.rewards import BUILTINS
from lab.tasks import BUILTIN_TASKS
from lab.web.actions import preset_values, presets, first_run
from lab.web.form import FIELDS, make_field
from lab.web.islands import island
from lab.web.tab_lab import MODELS

ID, LABEL = "train", "Train"
GROUP_TITLES = {"model": "Model", "task": "Task", "rewards": "Rewards", "sampling": "Sampling", "update": "The update",
                "adapter": "Adapter and precision", "keeping": "What is kept"}
PAIRS = ("num_generations", "rewards", "model", "task", "system_prompt", "adapter")  # fields that want the whole width


def build() -> None:
    settings = first_run()
    with gr.Row(elem_classes=["bench"], equal_height=False):
        with gr.Column(elem_classes=["rail", "wide"], scale=0, min_width=296):
            _rail(settings)
        with gr.Column(elem_classes=["glass"], scale=1):
            island("lab-notice-train")
            island("lab-progress")
            island("lab-curves")
            island("lab-newest")


def _rail(settings: RunConfig) -> None:
    island("lab-plan")
    names = list(presets())
    preset = gr.Dropdown(names, value=names[0], label="Preset", filterable=False, elem_id="train-preset",
                         info="Settings that belong together. Choosing one fills the fields below.")
    simple = [name for name, field in FIELDS.items() if field.metadata["simple"]]
    inputs = {}
    _fields(simple, settings, inputs)
    with gr.Accordion("Advanced settings", open=False, elem_id="train-advanced"):
        for group, title in GROUP_TITLES.items():
            rest = [name for name, field in FIELDS.items() if field.metadata["group"] == group and name not in simple]
            if rest:
                gr.HTML(f"<h3>{title}</h3>", elem_classes=["subhead"])
                _fields(rest, settings, inputs)
    _wire(preset, inputs)


def _fields(names: list[str], settings: RunConfig, inputs: dict) -> None:
    """Short fields stand two in a row."""
    waiting = []
    for name in [*names, None]:
        short = name is not None and name not in PAIRS
        if short:
            waiting.append(name)
        if waiting and (len(waiting) == 2 or not short):
            with gr.Row(elem_classes=["pair"]):
                for each in waiting:
                    inputs[each] = _field(each, settings)
            waiting = []
        if name is not None and not short:
            inputs[name] = _field(name, settings)


def _field(name: str, settings: RunConfig):
    choices = {"model": list(MODELS), "task": list(BUILTIN_TASKS), "rewards": list(BUILTINS)}.get(name)
    return make_field(name, getattr(settings, name), prefix=ID, choices=choices, custom=name in ("model", "task"))


def _wire(preset: gr.Dropdown, inputs: dict) -> None:
    names, fields = list(inputs), list(inputs.values())
    preset.input(lambda chosen: _values(chosen, names), preset, fields, queue=False, show_progress="hidden", api_visibility="private")
    tell = f"(...values) => window.lab.plan({json.dumps(names)}, values)"
    for field in fields:
        field.change(None, fields, None, js=tell, api_visibility="private")
    # the strip's Train presses this button, so that it starts what the form says
    start = gr.Button("Start this run", elem_id="train-start", variant="secondary")
    start.click(None, fields, None, js=f"(...values) => window.lab.startRun({json.dumps(names)}, values)", api_visibility="private")


def _values(preset: str, names: list[str]) -> list:
    values = preset_values(preset)
    return [values[name] for name in names]
