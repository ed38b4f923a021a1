"""The page's frame: header strip, tabs, theme and head. One file per tab; a new tab is one line in `TABS`.

Every gr.HTML here holds a fixed template. What is data reaches the page as JSON and is set as text by assets/js.
"""

from __future__ import annotations

import gradio as gr

from lab.web import tab_data, tab_lab, tab_reward, tab_train
from lab.web.form import trl_css
from lab.web.islands import island

TABS = (tab_lab, tab_reward, tab_data, tab_train)  # Inspect, Runs and Learn join here

THEME = gr.themes.Base(
    primary_hue="zinc", neutral_hue="zinc",
    font=["IBM Plex Sans", "system-ui", "sans-serif"],
    font_mono=["IBM Plex Mono", "ui-monospace", "monospace"],
)

# the theme is chosen before the first paint, so that a dark page never flashes white
HEAD = """
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="lab/css/lab.css">
<script>
  (() => {
    const dark = (localStorage.getItem("lab-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const set = () => document.body && document.body.classList.toggle("dark", dark);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    set() ?? addEventListener("DOMContentLoaded", set);
  })();
</script>
<script type="module" src="lab/js/main.js"></script>
"""


def build_page() -> gr.Blocks:
    """The Gradio page. It makes no promise about data: the same page serves every run and every owner."""
    with gr.Blocks(title="GRPO Lab", analytics_enabled=False, fill_width=True) as page:
        island("lab-strip")
        with gr.Tabs(elem_id="lab-tabs"):
            for tab in TABS:
                with gr.Tab(tab.LABEL, id=tab.ID, elem_id=f"tab-{tab.ID}"):
                    tab.build()
        tab_reward.offer_versions(page)
        tab_data.offer_datasets(page)
    return page


def page_css() -> str:
    """Styles that depend on the fields: TRL's default beside each."""
    return "\n".join(trl_css(tab.ID) for tab in TABS)

