"""The Reward tab in a real browser: written, scored at each save, hacked, frozen, trained with; loops and reloads."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from lab.records import StepRecord
from lab.rewards import relative
from lab.rewards.bench import bench
from tests.browser.conftest import PHONE, open_page, watched
from tests.browser.made_runs import hostile_group, write_run
from tests.test_relative import flat, made_groups

A_RUN = 240_000  # milliseconds within which a run must have moved on a crowded machine
WEIGH = """async ([groups, weights, scale, lengths]) => {
    const weigh = await import(`${window.gradio_config.root}/lab/js/reward_weigh.js`), totals = weigh.totalsOf(groups, weights);
    return { totals, advantages: weigh.sumThenNormalize(totals, scale), apart: weigh.normalizeThenSum(groups, weights),
        ranks: weigh.ranks(totals), shares: weigh.varianceShares(groups, weights), total: weigh.describe(totals, lengths) }; }"""
DIGITS = '''def digits(completions, **kwargs):
    return [float(completion[0]["content"].count("8")) for completion in completions]
'''


@pytest.fixture
def run(lab, owner):
    return write_run(lab.store, owner=owner, steps=3, status="finished")


def open_rewards(page, lab, run):
    open_page(page, lab, f"?tab=reward&run={run}")
    expect(page.locator(".reward-rows article").first).to_be_visible()
    return page.locator("#reward-code .cm-content")


def write(page, editor, source):
    """Replaces what stands in the editor, as a person does, but for its own indentation, which is that of the source."""
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)


def save(page, name):
    page.keyboard.press("Control+s")
    expect(page.locator(".reward-functions tr[data-function=mine] th")).to_contain_text(name)
    expect(page.locator(".reward-status")).not_to_contain_text("Scoring")


def mine(page):
    return page.locator(".reward-functions tr[data-function=mine]")


def test_the_tab_opens_with_a_reward_that_is_scored_hacked_and_explained(page, lab, run):
    open_rewards(page, lab, run)
    expect(page.locator(".reward-head .name")).to_have_text("closeness")
    expect(page.locator(".reward-source header b")).to_have_text("made up, newest: 128 in 16 groups")
    expect(page.locator(".reward-lock")).to_contain_text("Reward code runs")
    row = page.locator(".reward-hostile tr[data-kind='same answer 50 times']")
    expect(row).to_have_attribute("data-earns", "true")
    expect(row).to_contain_text("closeness")
    expect(page.locator(".reward-hostile tr[data-kind='empty text']")).to_have_attribute("data-earns", "false")
    expect(page.locator(".reward-hostile .note")).to_contain_text("the right answer in its place gets 1.0")
    page.get_by_text("What the function is given").click()
    given = page.locator(".given dl").first
    for word in ("prompts", "completions", "answer", "trainer_state", "log_extra", 'completion[0]["content"] is the text'):
        expect(given).to_contain_text(word)


def test_an_edit_is_scored_at_save_while_a_training_runs(page, lab, run, owner):
    config = {"model": "tiny", "task": "add2", "max_steps": 2000, "save_steps": 1000}
    training = page.request.post(f"{lab.address}/api/runs", data={"config": config}, headers={"origin": lab.address}).json()["run"]
    editor = open_rewards(page, lab, run)
    for _ in range(A_RUN // 100):
        if (going := lab.store.run(training)).status == "training" and going.step >= 1:
            break
        time.sleep(0.1)
    assert going.status == "training", going.error
    write(page, editor, DIGITS)
    save(page, "digits")
    print(f"\nsaved while a training runs: {page.locator('.reward-status').inner_text()}")
    expect(mine(page)).not_to_have_attribute("data-mean", "")
    shown = page.locator(".reward-rows article").evaluate_all("rows => rows.map((row) => row.dataset.reward)")
    assert len(shown) == 8 and "" not in shown  # every shown completion has a number
    expect(page.locator(".reward-versus tr[data-measure='rank changed']")).to_contain_text("of 16 groups")
    assert lab.store.run(training).status == "training"
    page.request.post(f"{lab.address}/api/runs/{training}/commands", data={"kind": "stop"}, headers={"origin": lab.address})
    for _ in range(A_RUN // 100):
        if lab.store.run(training).status in ("stopped", "finished"):
            break
        time.sleep(0.1)


def test_errors_stand_at_their_line_with_the_rows_and_the_others_are_scored(page, lab, run):
    editor = open_rewards(page, lab, run)
    write(page, editor, 'def picky(completions, **kwargs):\n    return [1.0 / (len(c[0]["content"]) - 17) for c in completions]\n')
    save(page, "picky")
    error = page.locator(".reward-error")
    expect(error).to_contain_text("Line 2, row")  # "The answer is 82." has 17 characters
    expect(error).to_contain_text("ZeroDivisionError")
    expect(error).to_contain_text("scored.")
    expect(page.locator(".reward-functions .chip")).to_contain_text("failed")
    tinted = page.locator("#reward-code .cm-line").nth(1).evaluate("line => getComputedStyle(line).boxShadow")
    assert tinted != "none"
    page.get_by_role("button", name=re.compile("^Errors")).click()
    expect(page.locator(".rw-group .chip").first).to_contain_text("unscored")


def test_what_is_typed_is_checked_without_a_save(page, lab, run):
    editor = open_rewards(page, lab, run)
    write(page, editor, "def f(completions, level, **kwargs):\n    return [1.0 for c in completions]\n")
    expect(page.locator(".reward-error")).to_contain_text("f needs the column level, which was not stored with these completions")
    write(page, editor, "def f(completions, **kwargs):\n    return [1.0 for c in completions\n")
    expect(page.locator(".reward-error")).to_contain_text("Line 2. SyntaxError: '[' was never closed")
    expect(page.get_by_role("button", name="Freeze as")).to_have_attribute("aria-disabled", "true")


def test_an_endless_loop_is_stopped_its_line_named_and_the_page_stays_live(context, page, lab, run):
    editor = open_rewards(page, lab, run)
    page.get_by_role("button", name="Last group", exact=True).click()  # eight completions: the deadline grows with their number
    expect(page.locator(".reward-source header b")).to_contain_text("8 in 1 group")
    write(page, editor, "def endless(completions, **kwargs):\n    for c in completions:\n        while True:\n            pass\n")
    page.keyboard.press("Control+s")
    expect(page.locator(".reward-status")).to_contain_text("Scoring…")
    page.get_by_role("tab", name="Train").click()  # the page answers meanwhile, and so does a second one
    expect(page.locator(".curves figure").first).to_be_visible()
    second = open_page(context.new_page(), lab, f"?tab=lab&run={run}")
    expect(second.locator(".group article").first).to_be_visible()
    second.close()
    page.get_by_role("tab", name="Reward").click()
    expect(page.locator(".reward-error")).to_contain_text(re.compile(r"Line [34]\. stopped at line [34] of endless\.py"), timeout=120_000)
    write(page, editor, DIGITS)
    save(page, "digits")
    expect(page.locator(".reward-error")).to_have_count(0)


def test_a_draft_survives_a_reload_without_a_save(page, lab, run, owner):
    editor = open_rewards(page, lab, run)
    write(page, editor, DIGITS)
    expect(page.locator(".reward-status")).to_contain_text("Draft kept.")
    page.reload()
    expect(editor).to_contain_text("def digits(completions, **kwargs):")
    expect(mine(page).locator("th")).to_contain_text("digits")
    page.get_by_role("combobox", name="Start from").select_option("template near_length")
    expect(editor).to_contain_text("def near_length")
    page.get_by_role("combobox", name="Start from").select_option("previous")  # what a template replaced can be brought back
    expect(editor).to_contain_text("def digits")


def test_a_weight_moves_totals_and_both_advantages_at_once_as_training_would(page, lab, run):
    open_rewards(page, lab, run)
    asked = []
    page.on("request", lambda request: "bench" in request.url and asked.append(request.url))
    for name, value in (("closeness", "0"), ("accuracy", "0.8"), ("format", "0.2")):
        page.get_by_role("spinbutton", name=f"Weight of {name}", exact=True).fill(value)
    page.get_by_role("button", name=re.compile("^Show all")).click()
    expect(page.locator(".rw-group")).to_have_count(16)
    shown = page.locator(".reward-rows article").evaluate_all(
        "rows => rows.map(({ dataset: d }) => [d.completion, d.reward, d.advantage, d.advantageApart].map(Number))")
    result = bench(["accuracy", "format"], lab.store.step(run, 3).groups + lab.store.step(run, 2).groups, weights=[0.8, 0.2], hostile=False)
    apart = flat(relative.normalize_then_sum(result.rows, result.weights))
    totals, advantages = flat(result.totals), flat(result.advantages)
    for row, *numbers in shown:
        assert numbers == pytest.approx([totals[int(row)], advantages[int(row)], apart[int(row)]], abs=1e-6)
    assert len(shown) == 8 and asked == [], "nothing was asked of the lab"


def test_the_pages_arithmetic_equals_pythons(page, lab, run):
    open_rewards(page, lab, run)
    for seed in range(12):
        groups, weights = made_groups(seed), [[1.0, 1.0, 1.0], [0.7, 0.0, 0.3], [1.0, -0.5, 2.0]][seed % 3]
        scale = ("group", "batch", "none")[seed % 3]
        lengths = [[5 * i + k for i, _ in enumerate(group)] for k, group in enumerate(groups)]
        shown = page.evaluate(WEIGH, [groups, weights, scale, lengths])
        totals = relative.totals_of(groups, weights)
        assert flat(shown["totals"]) == pytest.approx(flat(totals), abs=1e-9)
        assert flat(shown["advantages"]) == pytest.approx(flat(relative.sum_then_normalize(totals, scale)), abs=1e-9)
        assert flat(shown["apart"]) == pytest.approx(flat(relative.normalize_then_sum(groups, weights)), abs=1e-9)
        assert shown["ranks"] == relative.ranks(totals)
        assert shown["shares"] == pytest.approx(relative.variance_shares(groups, weights), abs=1e-9)
        expected = relative.describe(totals, lengths)
        found = SimpleNamespace(**shown["total"])
        assert (found.scored, found.groups, found.dead, found.deadLow, found.deadHigh) == (
            expected.scored, expected.groups, expected.dead, expected.dead_low, expected.dead_high)
        assert (found.mean, found.std, found.within, found.length) == pytest.approx(
            (expected.mean, expected.std, expected.within, expected.length_correlation), abs=1e-9)


def test_typed_text_is_scored_and_a_missing_column_is_named(page, lab, run):
    open_rewards(page, lab, run)
    page.get_by_role("button", name="Typed text", exact=True).click()
    page.get_by_label("Completions, with a line of --- between two").fill("<answer>82</answer>\n---\nno idea\n---\n<answer>80</answer>")
    page.get_by_role("button", name="Score typed text").click()
    expect(page.locator(".reward-rows article")).to_have_count(3)
    rewards = page.locator(".reward-rows article").evaluate_all("rows => rows.map((row) => Number(row.dataset.reward))")
    assert rewards == pytest.approx([1.0, 0.8, 0.0])  # "What is 69 + 13?" stands there as the prompt, and its answer is known
    page.get_by_label("Prompt", exact=True).last.fill("Name a fruit.")
    page.get_by_role("button", name="Score typed text").click()
    expect(page.locator(".reward-error")).to_contain_text("needs 'answer', a column that was not stored")


def test_hostile_texts_of_a_model_stay_text(page, lab, owner):
    hostile = write_run(lab.store, owner=owner, steps=0, status="finished")
    lab.store.write_step(hostile, StepRecord(1, {"reward": 0.4}, [hostile_group()]))
    open_rewards(page, lab, hostile)
    expect(page.locator(".reward-rows article")).to_have_count(8)
    assert page.evaluate("window.pwned") is None
    expect(page.locator(".rw-group .prompt")).to_have_text('<img src=x onerror="window.pwned=1">')


def test_export_and_import_keep_the_source_to_the_letter(page, lab, run, tmp_path):
    editor = open_rewards(page, lab, run)
    source = DIGITS + "\n\n# α ≠ β, tabs\tstay\n"
    path = tmp_path / "digits.py"
    path.write_text(source, encoding="utf-8")
    page.get_by_label("Reward file").set_input_files(path)
    expect(editor).to_contain_text("α ≠ β")
    expect(page.locator(".reward-head .name")).to_have_text("digits")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    assert download.value.suggested_filename == "digits.py"
    assert download.value.path().read_text(encoding="utf-8") == source


def test_a_frozen_reward_is_chosen_in_train_and_the_run_holds_it(page, lab, run, owner):
    editor = open_rewards(page, lab, run)
    write(page, editor, DIGITS)
    save(page, "digits")
    page.get_by_role("button", name="Freeze as digits@1").click()
    expect(page.locator("#lab-reward-head .note")).to_contain_text("digits@1 is frozen")
    page.get_by_role("spinbutton", name="Weight of format", exact=True).fill("0.25")
    page.get_by_role("button", name="Train with digits@1").click()
    expect(page.locator("#train-rewards .token")).to_have_text(["digits@1", "format"])
    weights = page.locator("#train-reward_weights").get_by_role("textbox")
    expect(weights).to_have_value("1, 0.25")
    page.locator("#train-max_steps").get_by_role("textbox").fill("2")
    page.get_by_role("button", name="Start this run").click()
    strip = page.locator(".strip")
    expect(strip).not_to_have_attribute("data-run", run, timeout=A_RUN)
    expect(strip).to_have_attribute("data-state", "finished", timeout=A_RUN)
    trained = lab.store.run(strip.get_attribute("data-run"))
    copy = lab.runs.resolve() / trained.id / "rewards" / "digits@1.py"
    assert copy.read_text() == DIGITS and trained.config["rewards"] == [f"{copy}:digits", "format"]
    metrics = lab.store.steps_after(trained.id)
    assert "rewards/digits/mean" in metrics.columns and len(metrics.rows) == 2


def test_on_a_phone_everything_is_within_the_width(browser, lab, run, owner):
    profile = browser.new_context(viewport=PHONE, has_touch=True, color_scheme="dark", reduced_motion="reduce")
    with watched(profile, lab, owner) as context:
        page = context.new_page()
        open_rewards(page, lab, run)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for panel in (".reward-editor", ".reward-weights", ".reward-hostile", ".reward-source", ".reward-versus", ".reward-rows"):
            box = page.locator(panel).bounding_box()
            assert 200 < box["width"] <= 390, panel


def test_everything_is_reached_with_the_keyboard(page, lab, run):
    open_rewards(page, lab, run)
    page.locator(".rw-group").nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".rw-group").nth(1)).to_have_attribute("aria-expanded", "true")
    page.locator(".reward-rows article").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.reward-rows article')[1]")
    page.get_by_role("slider", name="Weight of format, slider").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("spinbutton", name="Weight of format", exact=True)).to_have_value("0.05")
    assert page.evaluate("document.activeElement.type") == "range", "the redraw left the focus where it was"
