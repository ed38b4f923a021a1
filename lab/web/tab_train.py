"""Train tab: what to run (rail), and how it goes (curves, newest groups)."""

from __future__ import annotations

import json

import gradio as gr

from lab.config import RunConfig
from lab.presets import PRESETS
from lab.rewards import BUILTINS
from lab.tasks import BUILTIN_TASKS
from lab.web.actions import first_run
from lab.web.form import FIELDS, form_value, make_field, wire_form
from lab.web.islands import island
from lab.web.tab_lab import MODELS

ID, LABEL = "train", "Train"
GROUP_TITLES = {"model": "Model", "task": "Task", "rewards": "Rewards", "sampling": "Sampling", "update": "The update",
                "cold start": "Cold start", "ppo": "PPO", "evaluation": "Evaluation",
                "advantage": "Other advantages", "loss": "Other policy terms", "reference": "KL and reference",
                "signal": "Dead groups, stopping by itself", "adapter": "Adapter and precision", "keeping": "What is kept"}
WIDE = ("num_generations", "rewards", "reward_weights", "model", "task", "system_prompt", "adapter", "eval_rewards", "load_in_4bit")


def build() -> None:
    """The tab's components: the settings at the left, how the run goes at the right."""
    settings = first_run()
    with gr.Row(elem_classes=["bench"], equal_height=False):
        with gr.Column(elem_classes=["rail", "wide"], scale=0, min_width=296):
            _rail(settings)
        with gr.Column(elem_classes=["glass"], scale=1):
            island("lab-notice-train")
            island("lab-preflight")
            island("lab-byhand")
            island("lab-progress")
            island("lab-lineage")
            island("lab-curves")
            island("lab-critic")
            island("lab-evaluations")
            island("lab-newest")
            island("lab-table")


def _rail(settings: RunConfig) -> None:
    island("lab-plan")
    island("lab-changes")
    choices = [(f"{preset.group}: {preset.title}", preset.name) for preset in PRESETS.values()]
    preset = gr.Dropdown(choices, value=choices[0][1], label="Preset", filterable=False, elem_id="train-preset",
                         info="Settings that belong together. Choosing one fills the fields below; what it does not name stays.")
    island("lab-preset-note")
    start = gr.Button("Start this run", elem_id="train-start", variant="secondary")
    look = gr.Button("Pre-flight", elem_id="train-preflight", variant="secondary")
    simple = [name for name, field in FIELDS.items() if field.metadata["simple"]]
    inputs = {}
    _fields(simple, settings, inputs)
    with gr.Accordion("Advanced settings", open=False, elem_id="train-advanced"):
        for group, title in GROUP_TITLES.items():
            rest = [name for name, field in FIELDS.items() if field.metadata["group"] == group and name not in simple]
            if rest:
                with gr.Accordion(title, open=False, elem_classes=["subgroup"]):
                    _fields(rest, settings, inputs)
    island("lab-parity")
    _wire(preset, start, inputs)
    look.click(None, list(inputs.values()), None, js=f"(...values) => window.lab.preflight({json.dumps(list(inputs))}, values)",
               api_visibility="private")


def _fields(names: list[str], settings: RunConfig, inputs: dict) -> None:
    """Short fields stand two in a row."""
    waiting = []
    for name in [*names, None]:
        short = name is not None and not _is_wide(name)
        if short:
            waiting.append(name)
        if waiting and (len(waiting) == 2 or not short):
            with gr.Row(elem_classes=["pair"]):
                for each in waiting:
                    inputs[each] = _field(each, settings)
            waiting = []
        if name is not None and not short:
            inputs[name] = _field(name, settings)


def _is_wide(name: str) -> bool:
    """Whether a field wants the whole width: words to choose from, switches, text."""
    return name in WIDE or bool(FIELDS[name].metadata["choices"]) or isinstance(FIELDS[name].default, bool)


def _field(name: str, settings: RunConfig):
    choices = {"model": list(MODELS), "task": list(BUILTIN_TASKS), "rewards": list(BUILTINS), "eval_rewards": list(BUILTINS)}.get(name)
    return make_field(name, getattr(settings, name), prefix=ID, choices=choices, custom=name in ("model", "task"))


def _wire(preset: gr.Dropdown, start: gr.Button, inputs: dict) -> None:
    names, fields = list(inputs), list(inputs.values())
    preset.input(lambda chosen: _values(chosen, names), preset, fields, queue=False, show_progress="hidden", api_visibility="private")
    preset.change(None, preset, None, js="(name) => window.lab.presetNote(name)", api_visibility="private")
    wire_form(ID, {"preset": preset, **inputs})
    start.click(None, fields, None, js=f"(...values) => window.lab.startRun({json.dumps(names)}, values)", api_visibility="private")


def _values(preset: str, names: list[str]) -> list:
    settings = PRESETS[preset].settings
    return [form_value(name, settings[name]) if name in settings else gr.skip() for name in names]
