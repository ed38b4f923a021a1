"""Reading: groups, arithmetic, curves and addresses, on runs made up beforehand. No model writes anything here."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from decimal import Decimal

import pytest
from playwright.sync_api import expect

from lab.config import RunConfig
from lab.presets import PRESETS
from lab.records import Completion, Group, StepRecord
from lab.web.form import read_form
from tests.browser.conftest import DESK, PHONE, open_page, watched
from tests.browser.made_runs import CONFIG, HOSTILE, groups, hand_worked_group, hostile_group, metrics, scored, write_run, write_step

MINUS = "\u2212"


def rows(page):
    return page.locator(".group article")


def test_a_group_is_read_from_completion_to_reward_to_advantage_to_effect(page, lab, owner):
    run = write_run(lab.store, owner=owner, status="finished")
    open_page(page, lab, f"?run={run}")
    expect(rows(page)).to_have_count(8)
    best = rows(page).first
    expect(best).to_have_attribute("data-completion", "1")  # sampled second, best of the group
    assert float(best.get_attribute("data-reward")) == 1.0
    assert float(best.get_attribute("data-advantage")) == pytest.approx(0.6 / (0.453557 + 1e-4), abs=1e-4)
    expect(best).to_contain_text("+1.323")
    expect(best).to_contain_text("pushed up")
    expect(best).to_contain_text("1.0 × 0.8 + 1.0 × 0.2 = 1.0")
    expect(rows(page).last).to_contain_text(f"{MINUS}0.882")
    expect(rows(page).nth(6)).to_contain_text("cut off")
    expect(page.locator(".group .mean-label")).to_have_text("mean 0.400")


def test_eight_rows_with_the_arithmetic_open_fit_above_the_fold(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished')}")
    expect(page.locator(".arithmetic .result").first).to_be_visible()
    bottom = page.locator("#lab-arithmetic .arithmetic").bounding_box()
    assert bottom["y"] + bottom["height"] <= DESK["height"]
    line, first, last = page.locator(".group .mean-line").bounding_box(), rows(page).first.bounding_box(), rows(page).last.bounding_box()
    assert line["y"] <= first["y"] + 1 and line["y"] + line["height"] >= last["y"] + last["height"] - 1  # unbroken


def test_the_arithmetic_follows_the_pointer_and_the_keyboard(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished')}")
    panel = page.locator("#lab-arithmetic .arithmetic")
    expect(panel).to_contain_text("#2")
    rows(page).nth(2).hover()
    expect(panel).to_contain_text("+0.882")
    rows(page).first.focus()
    page.keyboard.press("ArrowDown")
    expect(panel).to_contain_text("#7")
    expect(rows(page).nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(rows(page).nth(1)).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(rows(page).nth(1)).to_have_attribute("aria-expanded", "false")
    expect(panel).to_contain_text("Dr. GRPO, no division +0.600")
    expect(panel).to_contain_text("RLOO, others’ mean +0.686")  # 8/7 × 0.6


def test_printed_numbers_add_up_as_printed(page, lab, owner):
    open_page(page, lab)
    rng = random.Random(11)
    groups = [[1.0, 1.0, 0.8, 0.2, 0.2, 0.0, 0.0, 0.0], [1.0, 0.9, 0.0, 1.0]]
    groups += [[round(rng.choice([0, 0.2, 0.8, 1, rng.random(), -rng.random()]),
                      rng.choice([1, 2, 3])) for _ in range(rng.randint(2, 16))] for _ in range(150)]
    groups = [group for group in groups if len(set(group)) > 1]
    explained = page.evaluate("""async (groups) => { const m = await import(`${window.gradio_config.root}/lab/js/arithmetic.js`);
        return groups.map((g) => m.explain(g, 0)); }""", groups)
    for group, e in zip(groups, explained, strict=True):
        d = e["digits"]
        printed = lambda value, digits: Decimal(f"{value:.{digits}f}")  # noqa: E731
        mean, std = printed(e["printedMean"], d["mean"]), printed(e["printedStd"], d["std"])
        total = sum(printed(r, d["reward"]) for r in e["shown"])
        assert abs(total / len(group) - mean) <= Decimal(10) ** -d["mean"] / 2, (group, e)
        root = (printed(e["printedSquares"], d["squares"]) / (len(group) - 1)).sqrt()
        assert abs(root - std) <= Decimal(10) ** -d["std"] * Decimal("0.501"), (group, e)
        above, below = printed(e["shown"][0], d["reward"]) - mean, std + Decimal("0.0001")
        assert abs(above - printed(e["above"], d["mean"])) < Decimal("1e-9") and abs(below - printed(e["below"],
            max(4, d["std"]))) < Decimal("1e-9")
        assert abs(above / below - printed(e["advantage"], 3)) <= Decimal("0.00051"), (group, e)


def test_a_row_shows_the_weights_that_made_its_total_when_a_function_does_not_apply(page, lab, owner):
    # accuracy applies to nobody, so its 0.8 goes to format: 1.0 × (0.2 + 0.8) = 1.0, and not 1.0 × 0.2
    run = lab.store.create_run({"rewards": ["accuracy", "format"], "reward_weights": [0.8, 0.2], "max_steps": 1}, name="free", owner=owner,
                               status="finished")
    completions = [Completion(i, f"answer {i}", [1, 2], True, {"accuracy": None, "format": float(i == 0)}, float(i == 0)) for i in range(4)]
    lab.store.write_step(run, StepRecord(1, metrics(1), [scored(Group(0, "Name a fruit.", [1], {"prompt": "Name a fruit."}, completions))]))
    open_page(page, lab, f"?run={run}")
    expect(rows(page)).to_have_count(4)
    expect(rows(page).first).to_contain_text("1.0 × 1 = 1.0")
    expect(rows(page).first).to_contain_text("accuracy cannot be judged here")


def test_a_dead_group_is_named_by_its_kind(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=60, status="finished", with_groups=False)
    open_page(page, lab, f"?run={run}&tab=train")
    dead = page.locator(".lines .line[data-verdict='all right']").first
    expect(dead).to_contain_text("all right")
    dead.click()
    expect(page.locator(".rows-of footer")).to_contain_text("No signal: all right")
    expect(page.locator(".rows-of article").first).to_contain_text("8 ×")  # identical ones stand in one row


def test_hostile_completions_are_plain_text_everywhere(page, lab, owner):
    run = lab.store.create_run({"rewards": ["accuracy", "format"], "max_steps": 1}, name=HOSTILE[0], owner=owner, status="failed")
    lab.store.write_step(run, StepRecord(1, metrics(1), [hostile_group()]))
    lab.store.set_status(run, "failed", error=HOSTILE[1], traceback=HOSTILE[0])
    open_page(page, lab, f"?run={run}")
    expect(rows(page)).to_have_count(8)
    for row in range(1, 8):  # the first is open already
        rows(page).nth(row).focus()
        page.keyboard.press("Enter")
    opened = page.evaluate("[...document.querySelectorAll('.group article[aria-expanded=true] .text')].map((node) => node.textContent)")
    assert sorted(opened) == sorted(HOSTILE)
    expect(page.locator(".glass-head h2")).to_have_text(HOSTILE[0])
    notice = page.locator("#lab-notice-lab [data-notice=failed]")
    notice.get_by_role("button", name="Details").click()
    expect(notice.locator("pre")).to_have_text(HOSTILE[0])
    page.get_by_role("tab", name="Train").click()
    expect(page.locator(".rows-of article")).to_have_count(8)
    page.wait_for_selector(".curves[data-state=ready]")
    assert page.evaluate("window.pwned") is None
    assert page.locator(".island img, .island script, .island svg[onload]").count() == 0


def test_five_thousand_steps_open_fast_grow_by_a_kilobyte_and_keep_the_zoom(page, lab, owner):
    run = lab.store.create_run({"rewards": ["accuracy", "format"], "reward_weights": [0.8, 0.2], "max_steps": 6000,
                                "num_generations": 8}, name="long", owner=owner,
                               status="training")
    for step in range(1, 5001):
        lab.store.write_step(run, StepRecord(step, metrics(step), []))
    before = time.monotonic()
    open_page(page, lab, f"?run={run}&tab=train")
    page.wait_for_selector(".curves[data-state=ready]")
    page.wait_for_function("document.querySelector('figure[data-metric=reward]').dataset.step === '5000'")
    print(f"\n5,000 steps: curves drawn {time.monotonic() - before:.1f} s after the address was entered")
    plot = "document.querySelector('figure[data-metric=kl] .plot')"
    assert page.evaluate(f"{plot}.data[0].x.length") <= 1000
    box = page.locator("figure[data-metric=kl] .plot .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_function(f"{plot}.layout.xaxis.range[0] > 1000")
    zoom = page.evaluate(f"{plot}.layout.xaxis.range")
    sizes = []
    page.on("response", lambda response: "/steps?" in response.url and sizes.append(int(response.headers["content-length"])))
    for step in range(5001, 5004):
        write_step(lab.store, run, step, with_groups=False)
        page.wait_for_function(f"document.querySelector('figure[data-metric=kl]').dataset.step === '{step}'")
    page.wait_for_function(f"{plot}.data[0].x.at(-1) === 5003")
    assert page.evaluate(f"{plot}.layout.xaxis.range") == zoom
    assert sizes and max(sizes) <= 1000
    others = page.evaluate("document.querySelector('figure[data-metric=reward] .plot').layout.xaxis.range")
    assert others[0] < 2 and others[1] > 5003  # curves that were not zoomed show the whole run
    page.locator("figure[data-metric=kl] .plot .nsewdrag").dblclick()
    page.wait_for_function(f"{plot}.layout.xaxis.range[0] < 2")


def test_curves_say_their_newest_value_and_loss_comes_last(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=12, status="finished")
    open_page(page, lab, f"?run={run}&tab=train")
    figures = page.locator(".curves figure:not([hidden])")
    expect(figures).to_have_count(7)
    names = [figures.nth(i).get_attribute("data-metric") for i in range(7)]
    assert names == ["reward", "kl", "groups/live", "entropy", "completions/mean_length", "grad_norm", "loss"]
    reward = page.locator("figure[data-metric=reward]")
    expect(reward).to_have_attribute("data-step", "12")
    assert float(reward.get_attribute("data-value")) == pytest.approx(sum(metrics(step)["reward"] for step in range(9, 13)) / 4, abs=1e-3)
    expect(page.locator("figure[data-metric='loss']")).to_contain_text("≈ 0 is normal")
    expect(page.locator(".progress")).to_contain_text("Step 12 of 40")


@pytest.mark.parametrize("step", [6, 12, 19, 28, 39])
def test_a_value_off_the_scale_is_written_whole_and_with_digits_that_say_something(page, lab, owner, step):
    run = lab.store.create_run(CONFIG.to_dict(), name="still near the reference", owner=owner, status="finished")
    for each in range(1, 41):
        kl = 0.0009 if each in (step, step - 1) else 4e-5
        lab.store.write_step(run, StepRecord(each, metrics(each) | {"kl": kl}, []), seconds=0.97)
    page.set_viewport_size({"width": 1280, "height": 720})
    open_page(page, lab, f"?run={run}&tab=train")
    figure = page.locator("figure[data-metric=kl]")
    written = figure.locator(".annotation-text", has_text="off the scale")
    expect(written).to_contain_text("0.00090 off the scale")
    outer, inner = figure.bounding_box(), written.bounding_box()
    assert outer["x"] <= inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"]


def test_completions_that_grow_alike_are_a_warning(page, lab, owner):
    # The hand-worked group has eight texts, all different. Of a group of eight equal ones and one more half: (8 + 1) of 16 is more
    # than a half, (8 + 1 + 1) of 24 is not.
    run = write_run(lab.store, owner=owner, steps=1, status="finished", with_groups=False)
    alike = [[replace(c, text="<answer>82</answer>") for c in hand_worked_group().completions] for _ in range(2)]
    groups = [hand_worked_group(0), *(replace(hand_worked_group(i), completions=same) for i, same in enumerate(alike, 1))]
    lab.store.write_step(run, StepRecord(2, metrics(2), groups[:2]), seconds=1.0)
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.locator(".lines-of header")).to_contain_text("9 of 16 texts differ")
    expect(page.locator(".lines-of header .chip")).to_be_hidden()
    lab.store.write_step(run, StepRecord(3, metrics(3), groups), seconds=1.0)
    expect(page.locator(".lines-of header")).to_contain_text("10 of 24 texts differ")
    expect(page.locator(".lines-of header .chip")).to_be_visible()
    expect(page.locator(".lines-of header .chip")).to_have_attribute("title", re.compile("nothing left to compare"))


def test_what_has_nothing_to_show_leaves_no_gap_and_the_rail_reaches_the_end(page, lab):
    open_page(page, lab, "?tab=train")
    expect(page.locator("figure[data-metric=reward] .plot")).to_be_visible()
    gaps = """() => { const shown = [...document.querySelectorAll('.glass > *')].filter((node) => node.offsetParent);
        return shown.slice(1).map((node, i) => node.getBoundingClientRect().top - shown[i].getBoundingClientRect().bottom); }"""
    page.wait_for_function(f"({gaps})().every((gap) => gap <= 10.5)")
    page.get_by_role("tab", name="Lab").click()
    expect(page.locator(".debate")).to_be_visible()
    ends = page.evaluate("""[...document.querySelectorAll('.rail, .glass')].filter((node) => node.offsetParent)
        .map((node) => node.getBoundingClientRect().bottom)""")
    assert abs(ends[0] - ends[1]) <= 1, ends


def test_the_page_opens_on_the_step_of_the_recording_where_completions_differ_though_its_course_comes_late(page, lab):
    """Every answer about the course waits until the page has asked for the groups of some step twice over."""
    page.route("**/steps?*", lambda route: (page.wait_for_timeout(1500), route.continue_()))
    open_page(page, lab)
    expect(page.locator(".group article")).to_have_count(8)
    expect(page.locator(".glass-head .summary")).to_contain_text("step 10")


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_prompts_of_the_newest_step_can_be_read_whole(page, lab, owner, width):
    """A sentence is whole in its line; a page of text is whole in the panel of the chosen group, if need be by scrolling."""
    sentence, story = "Weng earns $12 an hour and babysat 50 minutes. How much did she earn?", "She sold half as many clips in May. " * 40
    run = lab.store.create_run(CONFIG.to_dict(), name="wordy", owner=owner, status="stopped")
    wordy = [replace(group, prompt=text) for group, text in zip(groups(1)[:3], (sentence, story, "1 + 1"), strict=True)]
    lab.store.write_step(run, StepRecord(1, metrics(1), wordy), seconds=1.0)
    page.set_viewport_size({"width": width, "height": 800})
    open_page(page, lab, f"?run={run}&tab=train")
    hidden = "node => Math.max(node.scrollWidth - node.clientWidth, node.scrollHeight - node.clientHeight)"
    for number, text in enumerate((sentence, story)):
        line = page.locator(f".lines .line[data-group='{number}']")
        line.click()
        whole = page.locator(".rows-of header .prompt")
        expect(whole).to_have_text(text.strip())
        assert whole.evaluate("node => node.scrollWidth <= node.clientWidth")
        if text is sentence:
            assert whole.evaluate(hidden) <= 0 and line.locator(".prompt").evaluate(hidden) <= 0
        else:
            assert whole.evaluate("node => getComputedStyle(node).overflowY") == "auto"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_batch_that_serves_several_steps_is_said_to_be_the_same_groups(page, lab, owner):
    config = replace(CONFIG, algorithm="ppo", num_iterations=2)
    run = lab.store.create_run(config.to_dict(), name="twice", owner=owner, status="stopped")
    for step in (1, 2):
        lab.store.write_step(run, StepRecord(step, metrics(step), groups(1), iteration=step - 1), seconds=1.0)
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.locator(".newest .use")).to_have_text("use 2 of 2: the same groups as step 1")
    page.get_by_role("tab", name="Lab").click()
    expect(page.locator(".glass-head .summary")).to_contain_text("use 2 of 2: the same groups as step 1")
    open_page(page, lab, f"?run={run}&tab=train&step=1")
    newer = page.get_by_role("button", name="1 newer step")
    newer.wait_for()  # told only after the page has heard of the run again: the step that was asked for is still there
    expect(page.locator(".newest .use")).to_have_text("use 1 of 2: sampled for this step")
    newer.click()
    expect(page.locator(".newest .use")).to_have_text("use 2 of 2: the same groups as step 1")
    run = write_run(lab.store, owner=owner, steps=2, status="stopped")
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.locator(".newest header b").first).to_have_text("Newest step, 8 groups")
    expect(page.locator(".newest .use")).to_have_text("")


@pytest.mark.parametrize("way, shown", [("Plain path: this architecture does not run with shared prompts, it refuses.", True),
                                        ("Fast path: prompts are shared by their group. Checked against the plain path.", False)])
def test_a_model_on_the_plain_path_says_so(page, lab, way, shown):
    def with_way(route):
        answer = route.fetch()
        now = answer.json()
        now["engine"]["info"]["path"] = way  # as of a model of another family, which the lab does not bring
        route.fulfill(response=answer, json=now)

    page.route("**/api/live?*", with_way)
    open_page(page, lab)
    cell = page.locator(".strip .cell.model")
    expect(cell).to_have_attribute("title", way)
    expect(cell.get_by_text("plain path")).to_be_visible(visible=shown)


def test_the_address_restores_tab_run_step_and_group(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=5, status="finished")
    open_page(page, lab, f"?run={run}&tab=train")
    page.locator(".lines .line").nth(3).click()
    chosen = page.locator(".lines .line[aria-selected=true]").get_attribute("data-group")
    expect(page).to_have_url(re.compile(f"group={chosen}"))
    page.reload()
    expect(page.locator("[role=tab][aria-selected=true]")).to_have_text("Train")
    expect(page.locator(".lines .line[aria-selected=true]")).to_have_attribute("data-group", chosen)
    page.get_by_role("button", name="Open in Lab").click()
    expect(page).to_have_url(re.compile("tab=lab.*step=5|step=5.*tab=lab"))
    prompt = page.locator(".glass-head h2").text_content()
    page.reload()
    expect(page.locator(".glass-head h2")).to_have_text(prompt)


def test_eight_tabs_of_one_browser_all_stay_live(context, lab, owner):
    run = write_run(lab.store, owner=owner, steps=3, with_groups=False)
    pages = [open_page(context.new_page(), lab, f"?run={run}") for _ in range(8)]
    write_step(lab.store, run, 4)
    for page in pages:
        expect(page.locator(".strip")).to_have_attribute("data-step", "4")
    lab.store.set_status(run, "finished")


def test_dragging_or_typing_a_students_reward_moves_every_advantage(page, lab, owner):
    open_page(page, lab)
    students = page.locator(".debate article")
    advantages = lambda: [float(students.nth(i).get_attribute("data-advantage")) for i in range(4)]  # noqa: E731
    # mean 0.725, squares 0.7075, sample std √(0.7075 / 3) = 0.48563
    assert advantages() == pytest.approx([0.5662, 0.3603, -1.4926, 0.5662], abs=2e-4)
    chen = page.get_by_role("textbox", name="Reward of Chen")
    chen.fill("1.0")
    assert advantages() == pytest.approx([0.4990, -1.4970, 0.4990, 0.4990], abs=2e-4)  # mean 0.975, std 0.05
    expect(page.locator(".debate .mean-label")).to_have_text("mean 0.975")
    ring = page.locator(".debate article").nth(0).get_by_role("slider")
    box = ring.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] - 5000, box["y"], steps=3)
    page.mouse.up()
    assert float(students.nth(0).get_attribute("data-reward")) == 0.0 and advantages()[0] < -1.4 and advantages()[2] > 0
    ring.focus()
    page.keyboard.press("ArrowRight")
    assert float(students.nth(0).get_attribute("data-reward")) == pytest.approx(0.05)


def test_what_stands_in_the_way_says_what_is_so_and_what_to_press(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=7, status="finished", name="my run")
    lab.store.set_status(run, "interrupted",
                         error="The engine stopped unexpectedly at step 7; the last checkpoint is step 5. Resume goes on from there.")
    open_page(page, lab, f"?run={run}")
    notice = page.locator("#lab-notice-lab .notice:is([data-notice=interrupted], [data-notice=failed], [data-notice=waiting])")
    expect(notice).to_contain_text("Interrupted at step 7")
    expect(notice.get_by_role("button", name="Resume")).to_be_visible()
    expect(page.locator(".strip")).to_have_attribute("data-state", "failed")
    lab.store.set_status(run, "failed", error="out of memory", traceback="Traceback: the long story")
    expect(notice).to_contain_text("the run failed")
    notice.get_by_role("button", name="Details").click()
    expect(notice.locator("pre")).to_contain_text("the long story")
    lab.store.set_status(run, "paused", error="Reward my_reward, row 3: returned 'good', a number was expected.")
    expect(notice).to_contain_text("a reward could not be given")
    expect(notice).to_contain_text("row 3")
    expect(page.locator(".strip")).to_have_attribute("data-state", "paused")
    notice.get_by_role("button", name="Open Reward").click()
    expect(page.get_by_role("tab", name="Reward")).to_have_attribute("aria-selected", "true")


def test_a_refusal_goes_when_what_stood_in_the_way_has_gone(page, lab, owner, context):
    context.forgive = ["409"]
    run = write_run(lab.store, owner=owner, steps=3, status="paused", name="mine")
    open_page(page, lab, f"?run={run}&tab=train")
    page.get_by_role("button", name="Start this run").click()
    problem = page.locator("#lab-notice-train [data-notice=problem]")
    expect(problem).to_contain_text("mine is still paused")
    lab.store.set_status(run, "stopped")
    expect(problem).to_have_count(0)


@pytest.mark.parametrize(("weights", "said"), [((0.8, 0.2), "mean reward 0.90 reached at step"), ((2.0, 1.0), None)])
def test_the_goal_is_nine_tenths_of_what_can_be_earned(page, lab, owner, weights, said):
    """The made-up rewards climb past 0.9; with weights that sum to 3 the goal is 2.7, which they never reach."""
    run = write_run(lab.store, owner=owner, steps=60, status="stopped", with_groups=False,
                    config=replace(CONFIG, reward_weights=weights, max_steps=60))
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.locator(".progress .step-now")).to_have_text("Step 60")
    goal = page.locator(".progress .goal")
    expect(goal).to_contain_text(said) if said else expect(goal).to_be_hidden()


def test_light_and_dark_are_remembered(page, lab, owner):
    open_page(page, lab)
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.wait_for_selector(".strip")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark == "rgb(14, 17, 20)"


@pytest.mark.parametrize("tab", ["lab", "train"])
def test_a_phone_has_one_column_and_no_sideways_scroll(browser, lab, owner, tab):
    run = write_run(lab.store, owner=owner, steps=9, status="finished")
    with watched(browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True), lab, owner) as context:
        page = open_page(context.new_page(), lab, f"?run={run}&tab={tab}")
        expect(page.locator(".group article" if tab == "lab" else ".curves figure").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        for name in ("Sample", "Train", "Stop"):
            assert page.get_by_role("button", name=name, exact=True).bounding_box()["height"] >= 44
        page.get_by_role("button", name="Settings").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_only_the_complete_weights_of_the_fonts_are_used(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, steps=3, status='finished')}")
    expect(rows(page)).to_have_count(8)
    weights = page.evaluate("""[...document.querySelectorAll('*')].filter((node) => node.checkVisibility())
        .map((node) => getComputedStyle(node).fontWeight)""")
    assert set(weights) <= {"400", "700"}
    loaded = page.evaluate("[...document.fonts].filter((f) => f.status === 'loaded').map((f) => `${f.family} ${f.weight}`)")
    assert all("IBM Plex" in font and font.endswith((" 400", " 700")) for font in loaded) and loaded


def test_a_preset_fills_the_form_also_where_it_is_folded_and_the_run_gets_it(page, lab, context):
    asked, context.forgive = [], ["status of 422"]
    open_page(page, lab, "?tab=train")
    page.route("**/api/runs", lambda route: (asked.append(route.request.post_data_json),
                                             route.fulfill(status=422, json={"error": "not in this test"})))
    page.locator("#train-preset input").click()
    page.get_by_role("option", name="paper: DAPO").click()
    expect(page.locator("#lab-plan")).to_contain_text("8 prompts × 16 completions")
    steps = page.get_by_role("textbox", name="Steps", exact=True)
    steps.fill("7")
    expect(page.locator("#lab-plan")).to_contain_text("7 steps")
    page.locator(".strip").get_by_role("button", name="Train", exact=True).click()
    expect(page.locator("#lab-notice-train [data-notice=problem]")).to_contain_text("not in this test")
    config = RunConfig.from_dict(read_form(asked[0]["config"]))
    assert config == PRESETS["first-run"].config(**PRESETS["dapo"].settings, max_steps=7)


def test_groups_are_held_while_somebody_reads_and_newer_ones_are_announced(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=3)
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.locator(".lines-of header")).to_contain_text("Newest step, 8 groups")
    line = page.locator(".lines .line").nth(2)
    line.focus()
    write_step(lab.store, run, 4)
    newer = page.get_by_role("button", name="1 newer step")
    expect(newer).to_be_visible()
    expect(line).to_be_focused()  # the redraw of curves and strip stole nothing
    newer.click()
    expect(newer).to_be_hidden()
    expect(page.locator(".lines-of header")).to_contain_text("Newest step")
    lab.store.set_status(run, "finished")


def test_the_curves_can_be_read_as_a_table(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=6, status="finished")
    open_page(page, lab, f"?run={run}&tab=train")
    page.get_by_role("button", name="Show the numbers as a table").click()
    table = page.get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(7)
    expect(table.get_by_role("row").nth(1)).to_contain_text(f"{metrics(6)['reward']:.3f}")
