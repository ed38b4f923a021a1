"""Data tab: where prompts come from (rail), what they look like, how hard they are for the model (assets/js/data*.js).

Gradio holds the fields; a file goes from the page straight to our own route, which knows its owner and its limits.
"""

from __future__ import annotations

import json

import gradio as gr

from lab.tasks import BUILTIN_TASKS, gym, load_task
from lab.web.actions import first_run
from lab.web.form import make_field
from lab.web.islands import island
from lab.web.tab_lab import MODELS

ID, LABEL = "data", "Data"
SOURCES = [("Typed prompts", "typed"), ("A task that comes with the lab", "task"), ("reasoning-gym", "gym"), ("A file of yours", "file"),
           ("Hugging Face Hub", "hub")]
EXAMPLE = "What is 12 + 30? => 42\nWhat is 7 + 5? => 12\nCompute 81 - 19. => 62"


def build() -> None:
    """The tab's components: the source at the left, what was made of it at the right."""
    with gr.Row(elem_classes=["bench"], equal_height=False):
        with gr.Column(elem_classes=["rail", "wide", "data-rail"], scale=0, min_width=296):
            _rail()
        with gr.Column(elem_classes=["glass"], scale=1):
            island("lab-notice-data")
            island("lab-data-preview")
            island("lab-data-sets")
            island("lab-data-scan")


def _rail() -> None:
    settings = first_run()
    inputs = {"source": _choice("source", "Source", SOURCES, "Where the prompts come from.")}
    with gr.Column(elem_classes=["source", "of-typed"]):
        inputs["text"] = _text("text", "Prompts", EXAMPLE, "One per line; behind => the right answer, where there is one.", lines=7,
                               max_lines=14)
    with gr.Column(elem_classes=["source", "of-task"]):
        inputs["task"] = _choice("task", "Task from the lab", [(load_task(name).title, name) for name in BUILTIN_TASKS],
                                 "What the lab asks of its own models, and two examinations.")
    with gr.Column(elem_classes=["source", "of-gym"]):
        problems = [(f"{name.replace('_', ' ')}: {note}", gym.PREFIX + name) for name, note in gym.VETTED.items()]
        inputs["gym"] = _choice("gym", "Task of reasoning-gym", problems,
                                "Found safe and right. Answers are scored in the sandbox, by gym_score.")
    with gr.Column(elem_classes=["source", "of-task", "of-gym"]):
        inputs["rows"] = _text("rows", "Rows", "200", "How many prompts to draw.")
    with gr.Column(elem_classes=["source", "of-file"]):
        island("lab-data-file")
    with gr.Column(elem_classes=["source", "of-hub"]):
        inputs["hub_id"] = _text("hub_id", "Data set id", "", "Such as openai/gsm8k.")
        inputs["hub_config"] = _text("hub_config", "Configuration", "", "Where a data set has several; often main.")
        inputs["hub_split"] = _text("hub_split", "Split", "train", "Such as train or test.")
        inputs["hub_rows"] = _text("hub_rows", "First rows", "1000", "How many rows to take.")
        island("lab-data-fetch")
    inputs["name"] = _text("name", "Name", "", "What the Task fields of the other tabs call it.", placeholder="made from the source")
    inputs["held_out_share"] = _text("held_out_share", "Held-out share", "0.1",
                                     "Part of the rows kept out of training, for evaluation. Chosen by the prompt's text alone.")
    prepare = gr.Button("Prepare data set", elem_id="data-prepare", variant="secondary")
    inputs["model"] = make_field("model", settings.model, prefix=ID, choices=list(MODELS), custom=True)
    inputs["system_prompt"] = make_field("system_prompt", settings.system_prompt, prefix=ID, lines=1)
    _wire(inputs, prepare)


def _text(name: str, label: str, value: str, info: str, **options) -> gr.Textbox:
    return gr.Textbox(value, label=label, info=info, elem_id=f"{ID}-{name}", elem_classes=["setting"], **({"max_lines": 1} | options))


def _choice(name: str, label: str, choices: list[tuple[str, str]], info: str) -> gr.Dropdown:
    return gr.Dropdown(choices, value=choices[0][1], label=label, info=info, filterable=False, elem_id=f"{ID}-{name}",
                       elem_classes=["setting"])


def _wire(inputs: dict, prepare: gr.Button) -> None:
    """assets/js/data.js is told what the fields hold: at the start, after each change, and when a data set is to be prepared."""
    names, fields = json.dumps(list(inputs)), list(inputs.values())
    tell = gr.Button("Tell", elem_id="data-tell", elem_classes=["unseen"])
    gr.on([tell.click, *(field.change for field in fields)], None, fields, None, js=f"(...values) => window.lab.data.told({names}, values)",
          api_visibility="private")
    prepare.click(None, fields, None, js=f"(...values) => void window.lab.data.prepare({names}, values)", api_visibility="private")


def offer_datasets(page: gr.Blocks) -> None:
    """The owner's data sets among the choices of the Task fields, at load and after each change.

    They are this browser's own, so it fetches them: the page itself is the same for everybody.
    """
    by_id = {getattr(block, "elem_id", None): block for block in page.blocks.values()}
    fields = [by_id[name] for name in ("train-task", "lab-task")]
    offer = gr.Button("Offer data sets", elem_id="data-offer", elem_classes=["unseen"])
    fetch = f"""async () => {{
        while (!window.lab?.data) await new Promise((later) => setTimeout(later, 50));
        const choices = await window.lab.data.choices({json.dumps(list(BUILTIN_TASKS))});
        return Array({len(fields)}).fill({{ __type__: "update", choices }});
    }}"""
    gr.on([page.load, offer.click], None, None, fields, js=fetch, api_visibility="private", show_progress="hidden")
    use = gr.Button("Train on this data set", elem_id="data-use", elem_classes=["unseen"])
    use.click(None, None, [by_id["train-task"], by_id["train-rewards"], by_id["train-reward_weights"]], js="() => window.lab.data.used()",
              api_visibility="private")
