"""The two forms agree, survive a reload, and are what Train starts with; a cancelled sample keeps what was written."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import open_page


def field(page, side, name):
    return page.locator(f"#{side}-{name}").locator("input, textarea").first


def test_what_was_touched_last_in_either_form_is_what_train_starts_with(page, lab, owner):
    open_page(page, lab)
    train = page.locator(".strip").get_by_role("button", name="Train", exact=True)
    expect(train).to_have_attribute("title", re.compile("Starts tiny on add2.*temperature 1.0.*seed 42"))
    field(page, "lab", "temperature").fill("0.7")
    field(page, "lab", "seed").fill("7")
    expect(train).to_have_attribute("title", re.compile("temperature 0.7.*seed 7"))  # said before it starts
    page.get_by_role("tab", name="Train").click()
    expect(field(page, "train", "temperature")).to_have_value("0.7")  # and shown where it can be changed
    expect(field(page, "train", "seed")).to_have_value("7")
    field(page, "train", "seed").fill("8")
    field(page, "train", "max_steps").fill("1")
    field(page, "train", "num_generations").fill("2")
    field(page, "train", "prompts_per_step").fill("2")
    page.get_by_role("tab", name="Lab").click()
    expect(field(page, "lab", "seed")).to_have_value("8")
    page.reload()  # nothing that was typed is lost
    expect(field(page, "lab", "temperature")).to_have_value("0.7")
    expect(train).to_have_attribute("title", re.compile("2 prompts × 2, temperature 0.7.*seed 8"))
    train.click()
    expect(page.locator(".strip")).to_have_attribute("data-state", re.compile("finished|training|loading"), timeout=120_000)
    expect(page.locator(".strip")).to_have_attribute("data-state", "finished", timeout=120_000)
    (run,) = lab.store.runs(owner=owner)
    started = {name: run.config[name] for name in ("temperature", "seed", "max_steps", "num_generations", "prompts_per_step")}
    assert started == {"temperature": 0.7, "seed": 8, "max_steps": 1, "num_generations": 2, "prompts_per_step": 2}
    assert run.config["learning_rate"] == 2e-3  # what no form was asked to change is the first run's


def test_another_model_brings_the_settings_with_which_it_learns_to_both_forms(page, lab):
    open_page(page, lab)
    model = field(page, "lab", "model")
    model.click()
    page.get_by_role("option", name="smollm2-135m").click()
    expect(field(page, "lab", "max_completion_length")).to_have_value("32")
    page.get_by_role("tab", name="Train").click()
    expect(field(page, "train", "model")).to_have_value("smollm2-135m")
    expect(field(page, "train", "task")).to_have_value("one_word")
    expect(field(page, "train", "learning_rate")).to_have_value("2e-4")


def test_a_cancelled_sample_keeps_what_was_written_and_says_that_it_was_not_scored(page, lab):
    open_page(page, lab)
    field(page, "lab", "num_generations").fill("64")
    field(page, "lab", "max_completion_length").fill("400")
    field(page, "lab", "temperature").fill("5.0")  # hardly any ends by itself
    page.get_by_role("button", name="Sample", exact=True).click()
    page.wait_for_function("[...document.querySelectorAll('.group[data-writing] article .text')].some((node) => node.textContent)")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".glass-head .summary")).to_contain_text("cancelled, not scored", timeout=120_000)
    texts = page.locator(".group article .text").all_text_contents()
    assert any(texts)
    assert page.locator(".group article:not([data-reward=''])").count() == 0
    page.locator(".group article").nth(1).click()
    expect(page.locator(".group article .more:visible").last).to_contain_text("cancelled before it")  # no token count that nobody knows
    expect(page.locator(".group")).not_to_contain_text("0 tokens")
    page.reload()
    expect(page.locator(".glass-head .summary")).to_contain_text("cancelled, not scored")
    expect(page.locator(".group article").first).to_be_visible()


def test_the_plan_is_of_what_the_form_holds_after_a_reload_too(page, lab, context):
    context.forgive = ["422"]
    open_page(page, lab, "?tab=train")
    field(page, "train", "num_generations").fill("5")
    sums = page.locator("#lab-plan .sum")
    expect(sums).to_have_text("8 prompts × 5 completions = 40 per step")
    page.reload()
    expect(field(page, "train", "num_generations")).to_have_value("5")
    page.wait_for_timeout(1000)  # what a late second word would need to take it back
    expect(sums).to_have_text("8 prompts × 5 completions = 40 per step")
    page.locator("#train-preset input").click()
    page.get_by_role("option", name="paper: PPO", exact=True).click()  # each batch serves four steps: 40 steps want 10 batches of 64
    expect(sums).to_have_text("8 prompts × 8 completions = 64 for every 4 steps")
    expect(page.locator("#lab-plan .steps")).to_have_text("40 steps, 640 completions, each used in 4 updates")
    for nonsense in ("-5", "NaN", "0", ""):  # nothing is added up, and the reason is said
        field(page, "train", "max_steps").fill(nonsense)
        expect(page.locator("#lab-plan .cost")).to_contain_text("Steps (max_steps) is")
        expect(sums).to_have_text("")
        expect(page.locator("#lab-plan .steps")).to_have_text("")


def test_what_the_labs_group_size_makes_of_a_training_step_is_said_beside_it(page, lab, context):
    """The numbers are the plan's, for the settings that Train would start with; the preset's group has 8."""
    open_page(page, lab)
    page.wait_for_function("fetch('api/plan', {method: 'POST', body: '{}', headers: {'content-type': 'application/json'}})"
                           ".then((answer) => answer.json()).then((view) => view.plan !== null)", timeout=120_000)
    note = page.locator("#lab-shared-size p")
    expect(note).to_be_hidden()
    field(page, "lab", "num_generations").fill("32")
    expect(note).to_have_text(re.compile(r"^Train uses 32 too: a step takes at most [\d.]+ s.*; with 8, the preset's, [\d.]+ s"))
    with_32, with_8 = re.findall(r"at most ([\d.]+ (?:s|min))|preset's, ([\d.]+ (?:s|min))", note.text_content())
    page.get_by_role("tab", name="Train").click()
    need = page.locator("#lab-plan .need")
    expect(page.locator("#lab-plan .sum")).to_have_text("8 prompts × 32 completions = 256 per step")
    expect(need).to_contain_text(f"{with_32[0]} a step at most")
    field(page, "train", "num_generations").fill("8")
    expect(need).to_contain_text(f"{with_8[1]} a step at most")
    page.get_by_role("tab", name="Lab").click()
    expect(note).to_be_hidden()


def test_every_tab_stop_of_the_forms_has_a_name(page, lab):
    open_page(page, lab, "?tab=train")
    page.wait_for_selector("#train-rewards input")
    nameless = """() => [...document.querySelectorAll('.rail [tabindex="0"], .rail button, .rail input')].filter((node) => node.offsetParent
        && !node.closest('.wire') && !node.getAttribute('aria-label') && !node.title && !node.textContent.trim() && !node.labels?.length)
        .map((node) => node.outerHTML.slice(0, 120))"""
    assert page.evaluate(nameless) == []
    expect(page.locator("#train-rewards").get_by_role("button", name="Remove accuracy", exact=True)).to_be_visible()
    expect(page.locator("#train-rewards").get_by_role("button", name="Remove all", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Lab").click()
    page.wait_for_selector("#lab-rewards input")
    assert page.evaluate(nameless) == []


def test_no_tab_stop_loses_the_focus_on_the_way_through_a_form(page, lab):
    open_page(page, lab)
    page.get_by_role("textbox", name="System message", exact=True).focus()
    stops = []
    for _ in range(4):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName"))
    assert stops == ["Model", "Task", "number input for Group size G", "range slider for Group size G"]


def test_the_help_of_a_field_covers_what_stands_below_it(page, lab):
    """Gradio lifts labels above what is beside them: the next field's would be read through the help."""
    open_page(page, lab)
    field(page, "lab", "temperature").focus()
    page.wait_for_function("getComputedStyle(document.querySelector('#lab-temperature .info-text')).visibility === 'visible'")
    on_top = """() => { const label = document.querySelector('#lab-seed [data-testid=block-info]').getBoundingClientRect();
        const help = document.querySelector('#lab-temperature .info-text');
        help.style.pointerEvents = 'auto';
        return help.contains(document.elementFromPoint(label.left + 8, label.top + label.height / 2)); }"""
    assert page.evaluate(on_top)
