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
    with gr.Row(elem_classes=["bench"], equal_height=False):
        with gr.Column(elem_classes=["rail", "wide", "data-rail"], scale=0, min_width=296):
            _rail()
        with gr.Column(elem_classes=["glass"], scale=1):
            island("lab-notice-data")
            island("lab-data-preview")
            island("lab-data-sets")
            island("lab-data-scan")


def _rail() -> None:
    inputs = {"source": gr.Dropdown(SOURCES, value="typed", label="Source", filterable=False, elem_id="data-source", elem_classes=["setting"],
                                    info="Where the prompts come from.")}
    with gr.Column(elem_classes=["source", "of-typed"]):
        inputs["text"] = gr.Textbox(EXAMPLE, label="Prompts", lines=7, max_lines=14, elem_id="data-text", elem_classes=["setting"],
                                    info="One per line; behind => the right answer, where there is one.")
    with gr.Column(elem_classes=["source", "of-task"]):
        tasks = [(load_task(name).title, name) for name in BUILTIN_TASKS]
        inputs["task"] = gr.Dropdown(tasks, value="add2", label="Task from the lab", filterable=False, elem_id="data-task",
                                     elem_classes=["setting"])
    with gr.Column(elem_classes=["source", "of-gym"]):
        problems = [(f"{name.replace('_', ' ')}: {note}", gym.PREFIX + name) for name, note in gym.VETTED.items()]
        inputs["gym"] = gr.Dropdown(problems, value=gym.PREFIX + "chain_sum", label="Task of reasoning-gym", elem_id="data-gym",
                                    elem_classes=["setting"], info="Found safe and right. Answers are scored in the sandbox by gym_score.")
    with gr.Column(elem_classes=["source", "of-task", "of-gym"]):
        inputs["rows"] = gr.Textbox("200", label="Rows", max_lines=1, elem_id="data-rows", elem_classes=["setting"],
                                    info="How many prompts to draw.")
    with gr.Column(elem_classes=["source", "of-file"]):
        island("lab-data-file")
    with gr.Column(elem_classes=["source", "of-hub"]):
        for name, label, value, info in (("hub_id", "Data set id", "", "Such as openai/gsm8k."), ("hub_config", "Configuration", "",
                                         "Where a data set has several; often main."), ("hub_split", "Split", "train", "Such as train or test."),
                                         ("hub_rows", "First rows", "1000", "How many rows to take.")):
            inputs[name] = gr.Textbox(value, label=label, max_lines=1, elem_id=f"data-{name}", elem_classes=["setting"], info=info)
        island("lab-data-fetch")
    settings = first_run()
    inputs["name"] = gr.Textbox("", label="Name", max_lines=1, elem_id="data-name", elem_classes=["setting"], placeholder="made from the source",
                                info="What the data set is called in the Task fields of the other tabs.")
    inputs["held_out_share"] = gr.Textbox("0.1", label="Held-out share", max_lines=1, elem_id="data-held_out_share", elem_classes=["setting"],
                                          info="Part of the rows kept out of training, for evaluation. Chosen by the prompt's text alone.")
    prepare = gr.Button("Prepare data set", elem_id="data-prepare", variant="secondary")
    inputs["model"] = make_field("model", settings.model, prefix=ID, choices=list(MODELS), custom=True)
    inputs["system_prompt"] = make_field("system_prompt", settings.system_prompt, prefix=ID, lines=1)
    names, fields = list(inputs), list(inputs.values())
    told = f"(...values) => window.lab.data.told({json.dumps(names)}, values)"
    tell = gr.Button("Tell", elem_id="data-tell", elem_classes=["unseen"])
    gr.on([tell.click, *(field.change for field in fields)], None, fields, None, js=told, api_visibility="private")
    prepare.click(None, fields, None, js=f"(...values) => void window.lab.data.prepare({json.dumps(names)}, values)", api_visibility="private")


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
