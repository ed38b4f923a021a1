"""Places on the page that assets/js fills."""

from __future__ import annotations

import gradio as gr


def island(name: str) -> gr.HTML:
    """An empty element with the id `name`. Its template is fixed: no data ever goes through Gradio's template compiler,
    which would run what it finds there."""
    return gr.HTML(value=None, html_template=f'<div id="{name}"></div>', js_on_load="", apply_default_css=False, elem_classes=["island"])
