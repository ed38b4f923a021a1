"""Lab tab: one group under the glass. The rail says what to sample, the rest shows what came of it."""

from __future__ import annotations

import json

import gradio as gr

from lab.config import RunConfig
from lab.models.registry import ModelError
from lab.rewards import BUILTINS
from lab.tasks import BUILTIN_TASKS
from lab.web.actions import first_run
from lab.web.form import form_value, make_field, wire_form
from lab.web.islands import island

ID, LABEL = "lab", "Lab"
MODELS = ("tiny", "smollm2-135m")
SUITED = ("task", "rewards", "reward_weights", "max_completion_length")  # what changes with the model


def build() -> None:
    """The tab's components: what to sample at the left, the group at the right."""
    settings = first_run()
    with gr.Row(elem_classes=["bench"], equal_height=False):
        with gr.Column(elem_classes=["rail"], scale=0, min_width=264):
            _rail(settings)
        with gr.Column(elem_classes=["glass"], scale=1):
            island("lab-notice-lab")
            island("lab-byhand-lab")
            island("lab-group")
            island("lab-arithmetic")
            island("lab-debate")


def _rail(settings: RunConfig) -> None:
    prompt = gr.Textbox("What is 69 + 13?", label="Prompt", lines=2, max_lines=6, elem_id="lab-prompt", placeholder="Ask something",
                        info="What the model is asked. The completions of one group all answer it.")
    island("lab-examples")
    sample = gr.Button("Sample", elem_id="lab-sample", variant="secondary")
    cancel = gr.Button("Cancel", elem_id="lab-cancel", variant="secondary")
    inputs = {"prompt": prompt}
    inputs["system_prompt"] = _field("system_prompt", settings, lines=1)
    inputs["model"] = _field("model", settings, choices=list(MODELS), custom=True)
    inputs["task"] = _field("task", settings, choices=list(BUILTIN_TASKS), custom=True)
    inputs["num_generations"] = _field("num_generations", settings)
    island("lab-shared-size")
    with gr.Row(elem_classes=["pair"]):
        inputs["temperature"] = _field("temperature", settings)
        inputs["max_completion_length"] = _field("max_completion_length", settings)
    with gr.Row(elem_classes=["pair"]):
        inputs["seed"] = _field("seed", settings)
        inputs["reward_weights"] = _field("reward_weights", settings)
    inputs["rewards"] = _field("rewards", settings, choices=list(BUILTINS))
    send = f"(...values) => window.lab.sample({json.dumps(list(inputs))}, values)"
    sample.click(None, list(inputs.values()), None, js=send, api_visibility="private")
    cancel.click(None, None, None, js="() => window.lab.cancelSample()", api_visibility="private")
    inputs["model"].input(_suit, inputs["model"], [inputs[name] for name in SUITED], queue=False, show_progress="hidden",
                          api_visibility="private")
    _tell_examples(inputs)
    wire_form(ID, inputs)


def _tell_examples(inputs: dict) -> None:
    """The chips under the prompt follow model and task."""
    for name in ("model", "task"):
        inputs[name].change(None, [inputs["model"], inputs["task"]], None, js="(model, task) => window.lab.showExamples(model, task)",
                            api_visibility="private")


def _suit(model: str) -> list:
    """Task, rewards and length with which this model has something to show. An unknown name changes nothing yet."""
    try:
        settings = first_run(model)
    except ModelError:
        return [gr.skip()] * len(SUITED)
    return [form_value(name, getattr(settings, name)) for name in SUITED]


def _field(name: str, settings: RunConfig, **options):
    return make_field(name, getattr(settings, name), prefix=ID, **options)
