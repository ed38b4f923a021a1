"""The panel for scores given by hand, on a run that really waits: keyboard, totals, preview, reload, giving."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lab.config import RunConfig
from tests.browser.conftest import DESK, PHONE, open_page

SMALL = RunConfig(task="add2", num_generations=4, prompts_per_step=1, max_completion_length=16, rewards=("by_hand",), max_steps=2, seed=3)


@pytest.fixture
def run(lab, owner):
    run = lab.store.create_run(SMALL.to_dict(), name="by hand", owner=owner)
    lab.store.send_command("train", {}, owner=owner, run=run)
    yield run
    lab.store.send_command("stop", owner=owner, run=run)


def test_a_waiting_group_is_scored_by_keyboard_and_the_run_goes_on(page, lab, run):
    open_page(page, lab, f"?run={run}&tab=train")
    panel = page.get_by_role("form", name="Scores by hand")
    expect(panel.get_by_role("heading", name="Step 1 waits for your scores")).to_be_visible(timeout=120_000)
    expect(page.locator(".notice[data-notice=waiting]")).to_have_count(0)
    give = panel.get_by_role("button", name="Give these scores")
    expect(give).to_have_attribute("aria-disabled", "true")
    rows = panel.get_by_role("article")
    expect(rows).to_have_count(4)
    page.set_viewport_size(PHONE)  # also there everything that is to be scored and typed is within reach
    assert panel.evaluate("(node) => Math.round(node.getBoundingClientRect().right) <= document.documentElement.clientWidth")
    page.set_viewport_size(DESK)
    clarity = panel.get_by_role("slider", name="clarity of completion 1")
    expect(clarity).to_have_attribute("aria-valuetext", "not scored")
    clarity.focus()
    for name in ("clarity", "correctness", "relevance"):
        page.keyboard.press("End")  # 1 of 1
        expect(panel.get_by_role("slider", name=f"{name} of completion 1")).to_have_attribute("aria-valuetext", "1")
        page.keyboard.press("Tab")  # the number
        page.keyboard.press("Tab")
    expect(rows.nth(0)).to_have_attribute("data-reward", "1")
    panel.get_by_role("textbox", name="clarity of completion 2, as a number").fill("1")
    expect(panel).to_contain_text("Completion 2 has no correctness yet")
    expect(give).to_have_attribute("aria-disabled", "true")
    panel.get_by_role("textbox", name="correctness of completion 2, as a number").fill("0,25")
    panel.get_by_role("textbox", name="relevance of completion 2, as a number").fill("0.5")
    expect(rows.nth(1)).to_have_attribute("data-reward", "0.5")  # (1·1 + 2·0.25 + 1·0.5) / 4
    # two scores 1 and 0.5: mean 0.75, std 0.35355, (1 − 0.75) / 0.35365 = 0.707
    expect(rows.nth(0).locator(".adv")).to_have_text("+0.707")
    expect(panel).to_contain_text("2 of 4 scored. The others are left out of the group.")

    page.reload()
    expect(panel.get_by_role("textbox", name="correctness of completion 2, as a number")).to_have_value("0.25")
    page.get_by_role("tab", name="Lab").click()
    expect(page.locator("#lab-byhand-lab").get_by_role("form", name="Scores by hand")).to_be_visible()
    give.focus()
    page.keyboard.press("Enter")
    expect(panel.get_by_role("heading", name="Step 2 waits for your scores")).to_be_visible(timeout=120_000)
    expect(rows.nth(0)).to_have_attribute("data-reward", "")
    rewards = [c.reward for c in lab.store.step(run, 1).groups[0].completions]
    assert rewards == [1.0, 0.5, None, None]
    assert re.fullmatch(r"[0-9a-f]{16}", [e for e in lab.store.events(run) if e.kind == "scores"][0].data["id"])


def test_scores_that_do_not_fit_are_kept_and_refused_in_words(page, lab, run, context):
    context.forgive = ["status of 409"]
    open_page(page, lab, f"?run={run}&tab=train")
    panel = page.get_by_role("form", name="Scores by hand")
    expect(panel.get_by_role("article")).to_have_count(4, timeout=120_000)
    typed = panel.get_by_role("textbox", name="clarity of completion 1, as a number")
    typed.fill("7")
    expect(typed).to_have_attribute("aria-invalid", "true")
    for name in ("clarity", "correctness", "relevance"):
        panel.get_by_role("textbox", name=f"{name} of completion 1, as a number").fill("1")
    refusal = {"error": "These completions no longer wait for scores. Look at the run again."}
    page.route("**/scores", lambda route: route.fulfill(status=409, json=refusal) if route.request.method == "POST" else route.continue_())
    panel.get_by_role("button", name="Give these scores").click()
    expect(panel.get_by_role("alert")).to_contain_text("no longer wait")
    expect(typed).to_have_value("1")
