"""Live changes, the comparison with TRL, other advantage rules and tied groups, as the page shows them."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import time

import pytest
import torch
from playwright.sync_api import expect

from lab import config
from lab.config import RunConfig
from lab.grpo import group_advantages
from lab.rules.advantages import ADVANTAGE_RULES, advantages_of
from lab.rules.dead_groups import tied_probability
from tests.browser.conftest import open_page
from tests.browser.made_runs import CONFIG, write_run

SMALL = RunConfig(task="add2", num_generations=4, prompts_per_step=2, max_completion_length=16, reward_weights=(0.8, 0.2), max_steps=40)
OWN_RULES = """async ([rewards, lengths]) =>
    (await import(`${window.gradio_config.root}/lab/js/rules.js`)).underEveryRule(rewards, lengths)"""
TIED = """async ([p, size]) => (await import(`${window.gradio_config.root}/lab/js/tied.js`)).tiedProbability(p, size)"""


def in_python(rule: str, rewards: list[float], lengths: list[int]) -> list[float]:
    totals, one_group = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.long)
    if rule == "dr_grpo":
        return group_advantages(totals, group_ids=one_group, scale_rewards="none").tolist()
    return ADVANTAGE_RULES[rule](totals, group_ids=one_group, scale_rewards="none", lengths=torch.tensor(lengths)).tolist()


def test_every_rule_gives_the_page_what_it_gives_training(page, lab):
    open_page(page, lab)
    rng = random.Random(5)
    groups = [[0.2, 1.0, 0.0, 0.8, 0.2, 0.0, 1.0, 0.0], [1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 2.0], [0.1 + 0.2, 0.3, 0.0]]
    groups += [[rng.choice([0, 0.2, 1, rng.random()]) for _ in range(rng.randint(2, 16))] for _ in range(20)]
    for rewards in groups:
        lengths = [rng.randint(1, 48) for _ in rewards]
        shown = {rule["name"]: rule for rule in page.evaluate(OWN_RULES, [rewards, lengths])}
        assert set(shown) == set(ADVANTAGE_RULES) - {"grpo"} | {"dr_grpo"}  # GRPO's own is the panel's large number
        for name, rule in shown.items():
            if name == "maxrl" and min(rewards) < 0:
                assert rule["advantages"] is None and "at least 0" in rule["why"]
            else:
                assert rule["advantages"] == pytest.approx(in_python(name, rewards, lengths), abs=1e-9), (name, rewards)


UNDER_WAY = """async ([way, groups, weights, place]) =>
    (await import(`${window.gradio_config.root}/lab/js/rules.js`)).underWay(way, groups, weights, place)"""
WAYS = """async () => (await import(`${window.gradio_config.root}/lab/js/rules.js`)).WAYS"""


def test_the_page_can_choose_every_rule_scale_and_way_of_joining_and_computes_them_as_training_does(page, lab):
    open_page(page, lab)
    ways = page.evaluate(WAYS)
    assert {name: tuple(values) for name, values in ways.items()} == {
        "advantage_rule": config.ADVANTAGE_RULES, "scale_rewards": config.SCALE_REWARDS, "multi_objective_aggregation": config.AGGREGATIONS}
    rng, weights = random.Random(7), [0.8, 0.2]
    sizes = [4, 6, 3]
    parts = [[[rng.choice([0.0, 1.0]) for _ in range(n)], [rng.choice([0.0, 0.5, 1.0]) for _ in range(n)]] for n in sizes]
    parts[2] = [[1.0] * 3, [0.5] * 3]  # a tied group
    parts[1][1] = [None] * 6  # a function that applies to nobody in its group
    lengths = [[rng.randint(1, 40) for _ in range(n)] for n in sizes]
    ids = torch.tensor([g for g, n in enumerate(sizes) for _ in range(n)])
    rows = torch.tensor([[math.nan if value is None else value for value in (parts[g][0][i], parts[g][1][i])]
                         for g, n in enumerate(sizes) for i in range(n)], dtype=torch.float64)
    totals = None
    for rule in config.ADVANTAGE_RULES:
        for scale in config.SCALE_REWARDS:
            for several in config.AGGREGATIONS:
                way = {"advantage_rule": rule, "scale_rewards": scale, "multi_objective_aggregation": several}
                totals, expected = advantages_of(rows, torch.tensor(weights, dtype=torch.float64), group_ids=ids,
                                                 lengths=torch.tensor([n for group in lengths for n in group]), **way)
                groups = [{"totals": totals[ids == g].tolist(), "lengths": lengths[g], "parts": parts[g]} for g in range(3)]
                for place in range(3):
                    shown = page.evaluate(UNDER_WAY, [way, groups, weights, place])
                    if several == "normalize_then_sum" and (rule, scale) != ("grpo", "group"):
                        assert shown["advantages"] is None and "own rule and scale" in shown["why"]  # the config refuses it too
                    else:
                        assert shown["advantages"] == pytest.approx(expected[ids == place].tolist(), abs=1e-9), (way, place)


def test_a_group_is_compared_under_two_rules_side_by_side(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished')}")
    panel = page.locator("details.compare")
    panel.get_by_text("Compare rules").click()
    second = panel.locator("tr[data-completion='1'] td[data-column='1']")
    expect(panel.locator("tr[data-completion='1'] td[data-column='0']")).to_have_text("+1.323")  # 0.6 / 0.4537
    expect(second).to_have_text("+0.600")  # not divided
    panel.get_by_label("Rule, second column").select_option("maxrl")
    expect(second).to_have_text("+1.500")  # 0.6 / 0.4
    expect(panel.get_by_role("status").nth(1)).to_contain_text("the rarer success is")
    panel.get_by_label("Several, second column").select_option("normalize_then_sum")
    expect(panel.get_by_role("status").nth(1)).to_contain_text("choose the rule grpo")
    expect(second).to_have_text("–")


def test_the_same_completion_under_every_other_rule(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished')}")
    footer = page.locator("#lab-arithmetic .arithmetic footer")
    # rewards 0.2, 1, 0, 0.8, 0.2, 0, 1, 0 of 12, 22, 8, 6, 12, 48, 12, 11 tokens; the second is shown: reward 1, mean 0.4
    expect(footer).to_contain_text("Dr. GRPO, no division +0.600")
    expect(footer).to_contain_text("MaxRL, divided by the mean +1.500")  # 0.6 / 0.4
    expect(footer).to_contain_text("OPO, mean weighted by length +0.667")  # 1 − (2.4 + 22 + 4.8 + 2.4 + 12) / 131
    expect(footer).to_contain_text(re.compile("rank, share beaten . lost to \\+0.857"))  # six beaten, one equal: 6 / 7


def test_tied_groups_are_calculated_with_the_share_of_right_ones(page, lab, owner):
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished')}")
    tied = page.get_by_role("region", name="Tied groups")
    p = tied.get_by_role("textbox")
    expect(p).to_have_value("0.375")  # three of the eight are right
    expect(tied).to_contain_text("3 of 8 right here")
    expect(tied.locator("[data-size='8']")).to_have_text("G 8 2.4 %")  # 0.00039 + 0.02328
    p.fill("0.2")
    expect(tied.locator("[data-size='8']")).to_have_text("G 8 16.8 %")  # 0.8^8
    p.fill("2")
    expect(tied).to_contain_text("A probability lies between 0 and 1")
    for chance, size in ((0.2, 8), (0.0, 4), (1.0, 16), (0.37, 5)):
        assert page.evaluate(TIED, [chance, size]) == pytest.approx(tied_probability(chance, size), abs=1e-15)


def test_changes_are_listed_and_marked_on_every_curve(page, lab, owner):
    run = write_run(lab.store, owner=owner, status="finished")
    lab.store.add_event(run, 14, "change", {"beta": 0.02})
    lab.store.add_event(run, 18, "change", {"temperature": 0.9})
    open_page(page, lab, f"?run={run}&tab=train")
    page.wait_for_selector(".curves[data-state=ready]")
    entries = page.get_by_role("region", name="Changes").locator(".entries > div")
    expect(entries).to_have_text(["step 18, temperature1.0 to 0.9", "step 14, β0.04 to 0.02"])
    expect(page.get_by_role("form", name="Settings you can change now")).to_have_count(0)  # the run is over
    page.wait_for_function("""[...document.querySelectorAll('.curves figure:not([hidden]) .plot')].every((plot) =>
        String(plot.layout?.shapes?.map((shape) => shape.x0)) === '14,18')""")
    said = "metric => document.querySelector(`figure[data-metric='${metric}'] .plot`).layout.annotations.map((note) => note.text)"
    assert page.evaluate(said, "reward") == ["β 0.04 to 0.02", "temperature 1.0 to 0.9"]
    assert page.evaluate(said, "entropy") == ["▼", "▼"]


def test_a_resume_that_computes_otherwise_than_before_is_told(page, lab, owner):
    run = write_run(lab.store, owner=owner, status="finished")
    words = "Steps from here on are not bit-equal to a run that never stopped: version of torch 1.0 before, 2.0 now."
    lab.store.add_event(run, 5, "resumed", {"attempt": 2, "reached_before": 7, "not_as_before": None})
    lab.store.add_event(run, 12, "resumed", {"attempt": 3, "reached_before": 13, "not_as_before": words})
    open_page(page, lab, f"?run={run}&tab=train")
    expect(page.get_by_role("region", name="Changes").locator("p")).to_have_text([f"Resumed after step 12. {words}"])


def test_a_refused_change_says_why_and_keeps_what_was_typed(page, lab, owner, context):
    context.forgive = ["status of 422"]
    run = write_run(lab.store, owner=owner, steps=4, status="paused", config=CONFIG)
    open_page(page, lab, f"?run={run}&tab=train")
    form = page.get_by_role("form", name="Settings you can change now")
    temperature = form.get_by_role("textbox", name="Temperature")
    temperature.fill("0")
    temperature.press("Enter")
    expect(form.get_by_role("alert")).to_have_text("Temperature (temperature) is 0.0: the smallest value is 0.05.")
    expect(temperature).to_have_value("0")
    temperature.press("Escape")
    expect(temperature).to_have_value("1.0")
    expect(form.get_by_role("alert")).to_have_count(0)
    lab.store.set_status(run, "finished")


def test_a_change_of_a_going_run_holds_from_the_next_step(page, lab, owner):
    run = lab.store.create_run(SMALL.to_dict(), name="live", owner=owner)
    lab.store.send_command("train", {"config": SMALL.to_dict(), "name": "live", "steps": 2}, owner=owner, run=run)
    open_page(page, lab, f"?run={run}&tab=train")
    strip = page.locator(".strip")
    expect(strip).to_have_attribute("data-state", "paused", timeout=120_000)
    form = page.get_by_role("form", name="Settings you can change now")
    form.get_by_role("textbox", name="Learning rate").fill("0.001")
    form.get_by_role("textbox", name="Weight of accuracy").fill("1")
    form.get_by_role("button", name="Change from the next step").click()
    entries = page.get_by_role("region", name="Changes").locator(".entries > div")
    expect(entries).to_have_text(["step 3, weight of accuracy0.8 to 1.0", "step 3, learning rate2e-5 to 1e-3"], timeout=120_000)
    expect(form.get_by_role("textbox", name="Learning rate")).to_have_value("1e-3")
    expect(form.get_by_role("button", name="Change from the next step")).to_have_count(0)
    strip.get_by_role("button", name="Step", exact=True).click()
    expect(strip).to_have_attribute("data-step", "3", timeout=120_000)
    rates = page.evaluate(f"fetch('/api/runs/{run}/steps?columns=learning_rate').then((r) => r.json()).then((s) => s.rows)")
    assert rates == [[1, 2e-5], [2, 2e-5], [3, 1e-3]]
    assert "checkpoint" in [event.kind for event in lab.store.events(run) if event.step == 2]  # saved before the change
    lab.store.send_command("stop", owner=owner, run=run)
    for _ in range(600):
        if lab.store.run(run).status == "stopped":
            break
        time.sleep(0.1)


def test_a_press_of_pause_is_answered_before_the_step_ends(page, lab, owner):
    # 64 texts of 400 tokens that hardly ever end by themselves: no machine is through with the step before the button is pressed
    slow = dataclasses.replace(SMALL, num_generations=64, prompts_per_step=1, max_completion_length=400, temperature=5.0)
    run = lab.store.create_run(slow.to_dict(), name="slow", owner=owner)
    lab.store.send_command("train", {"config": slow.to_dict(), "name": "slow"}, owner=owner, run=run)
    open_page(page, lab, f"?run={run}&tab=train")
    strip = page.locator(".strip")
    expect(strip).to_have_attribute("data-state", "training", timeout=120_000)
    strip.get_by_role("button", name="Pause").click()
    expect(strip.locator(".cell.phase")).to_contain_text("Pausing")
    expect(strip.locator(".cell.phase")).to_contain_text("Paused", timeout=120_000)
    strip.get_by_role("button", name="Stop", exact=True).click()
    expect(strip).to_have_attribute("data-state", "finished", timeout=120_000)


def test_the_comparison_with_trl_can_be_read_beside_the_settings(page, lab):
    open_page(page, lab, "?tab=train")
    parity = page.locator("details.parity")
    found = page.evaluate("fetch('/api/parity').then((answer) => answer.json())")
    expect(parity.locator("summary")).to_have_text(f"Verified against TRL {found['trl']}{found['equal']:,} of {found['cases']:,} "
                                                   "combinations equal")
    parity.locator("summary").click()
    expect(parity.get_by_role("row")).to_have_count(1 + len(found["losses"]))
    expect(parity.get_by_role("listitem")).to_have_text(found["differences"])
