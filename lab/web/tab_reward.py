"""Reward tab: write a reward function, see at each save what it does on real completions and how it can be hacked, freeze it.

Gradio holds the editor; the panels around it are drawn by assets/js/reward*.js from what lab.web.reward answers.
"""

from __future__ import annotations

import gradio as gr

from lab.web.islands import island

ID, LABEL = "reward", "Reward"


def build() -> None:
    """The tab's components: the editor and the weights at the left, what they make of completions at the right."""
    with gr.Row(elem_classes=["bench", "reward-bench"], equal_height=False):
        with gr.Column(elem_classes=["glass", "reward-left"], scale=0, min_width=320):
            with gr.Column(elem_classes=["panel", "reward-editor"]):
                island("lab-reward-head")
                code = gr.Code(value="", language="python", lines=14, max_lines=22, show_label=False, label="Reward function",
                               elem_id="reward-code", autocomplete=True, buttons=[])
                island("lab-reward-check")
            island("lab-reward-weights")
            island("lab-reward-hostile")
        with gr.Column(elem_classes=["glass", "reward-right"], scale=1):
            island("lab-notice-reward")
            island("lab-reward-source")
            island("lab-reward-versus")
            island("lab-reward-functions")
            island("lab-reward-rows")
    put = gr.Button("Put into the editor", elem_id="reward-put", elem_classes=["unseen"])
    put.click(None, None, code, js="() => window.lab.reward.text()", api_visibility="private")
    code.change(None, code, None, js="(source) => void window.lab.reward.typed(source)", api_visibility="private")


def offer_versions(page: gr.Blocks) -> None:
    """Frozen rewards among the choices of every field that asks for reward functions, at load and after each freeze.

    The choices are this browser's, so they are fetched by it: the page itself is the same for everybody.
    """
    by_id = {block.elem_id: block for block in page.blocks.values() if getattr(block, "elem_id", None)}
    fields = [by_id[name] for name in ("train-rewards", "train-eval_rewards", "lab-rewards")]
    offer = gr.Button("Offer frozen rewards", elem_id="reward-offer", elem_classes=["unseen"])
    fetch = f"""async () => {{
        while (!window.lab?.reward) await new Promise((later) => setTimeout(later, 50));
        const choices = await window.lab.reward.choices();
        return Array({len(fields)}).fill({{ __type__: "update", ...(choices && {{ choices }}) }});
    }}"""
    gr.on([page.load, offer.click], None, None, fields, js=fetch, api_visibility="private", show_progress="hidden")
    use = gr.Button("Train with this reward", elem_id="reward-use", elem_classes=["unseen"])
    use.click(None, None, [by_id["train-rewards"], by_id["train-reward_weights"]], js="() => window.lab.reward.chosen()",
              api_visibility="private")
