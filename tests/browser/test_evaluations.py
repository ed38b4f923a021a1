"""Evaluations, branches, further steps and a critic's cost, as the Train tab shows them."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from lab.config import RunConfig
from lab.store import ALIVE_STATUSES
from tests.browser.conftest import open_page
from tests.browser.made_runs import write_run
from tests.test_web_evaluations import evaluated

SMALL = RunConfig(task="add2", num_generations=2, prompts_per_step=2, max_completion_length=12, reward_weights=(0.8, 0.2), max_steps=2,
                  eval_prompts=2, eval_samples=2)
A_RUN = 120_000


def trained(lab, owner, config=SMALL, **args):
    """A run of a real engine, at its end or paused after `steps`."""
    run = lab.store.create_run(config.to_dict(), name="small", owner=owner)
    lab.store.send_command("train", {"config": config.to_dict(), "name": "small", **args}, owner=owner, run=run)
    for _ in range(1200):
        if lab.store.run(run).status in ("finished", "paused", "failed"):
            break
        time.sleep(0.1)
    return run


@pytest.fixture
def stopped_at_the_end(lab, owner):
    yield
    for run in lab.store.runs(owner=owner):
        if run.status in ALIVE_STATUSES and run.status != "training":
            lab.store.send_command("stop", owner=owner, run=run.id)


def test_base_and_tuned_stand_side_by_side_and_open_down_to_the_completions(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=12, status="finished", with_groups=False)
    lab.store.write_evaluation(run, evaluated(0, "base", [1, 0, 0], [2, 0, 0]))
    lab.store.write_evaluation(run, evaluated(10, "tuned", [0, 1, 1], [1, 4, 2]))
    open_page(page, lab, f"?run={run}&tab=train")
    panel = page.get_by_role("region", name="Evaluations")
    row = panel.locator("tr[data-step='10']")
    # accuracy 1/3 → 2/3; pass@2 of the base: (1 − C(2,2)/C(4,2)) / 3 = 5/18, tuned: (1/2 + 1 + 5/6) / 3
    expect(row).to_contain_text("0.333 → 0.667")
    expect(row).to_contain_text("+0.333")
    expect(row).to_contain_text("0.278 → 0.778")
    expect(row).to_contain_text("3 × 4")
    figure = panel.locator("figure[data-metric=eval_accuracy]")
    expect(figure).to_have_attribute("data-step", "10")
    page.wait_for_function("document.querySelector('figure[data-metric=eval_accuracy] .plot').data?.length === 4")
    row.get_by_role("button", name=re.compile("^Open")).click()
    answers = panel.get_by_role("region", name="Answers")
    expect(answers.locator("article")).to_have_count(3)
    answers.get_by_role("button", name="Gained 2").click()
    expect(answers.locator("article")).to_have_count(2)
    last = answers.locator("article[data-prompt='2']")
    expect(last.locator("[data-side=tuned]")).to_contain_text("2 of 4")
    last.get_by_role("button", name=re.compile("^Samples")).click()
    expect(last.locator(".sampled")).to_have_count(8)  # four of the base, four of the tuned model
    expect(last.locator(".sampled[data-right=true]")).to_have_count(2)


def test_an_evaluation_that_failed_is_told_until_a_later_one_succeeds(page, lab, owner):
    run = write_run(lab.store, owner=owner, steps=12, status="finished", with_groups=False)
    lab.store.write_evaluation(run, evaluated(0, "base", [1, 0, 0], [2, 0, 0]))
    lab.store.add_event(run, 8, "evaluation_failed", {"message": "accuracy: no answer."})
    panel = open_page(page, lab, f"?run={run}&tab=train").get_by_role("region", name="Evaluations")
    expect(panel).to_contain_text("The evaluation at step 8 failed, and the training went on: accuracy: no answer.")
    lab.store.write_evaluation(run, evaluated(10, "tuned", [0, 1, 1], [1, 4, 2]))
    page.reload()
    expect(panel.locator("tr[data-step='10']")).to_contain_text("0.333 → 0.667")
    expect(panel).not_to_contain_text("failed")


def test_a_run_is_evaluated_on_demand_while_it_is_paused_and_after_its_end(page, lab, owner, stopped_at_the_end):
    run = trained(lab, owner, steps=1)
    open_page(page, lab, f"?run={run}&tab=train")
    panel = page.get_by_role("region", name="Evaluations")
    expect(panel).to_contain_text("Not evaluated yet")
    expect(panel.get_by_role("textbox", name="Held-out prompts to answer")).to_have_value("2")
    panel.get_by_role("button", name="Evaluate now").click()
    expect(panel.locator("tr[data-step='1']")).to_contain_text("2 × 2", timeout=A_RUN)
    page.locator(".strip").get_by_role("button", name="Train", exact=True).click()
    expect(page.locator(".strip")).to_have_attribute("data-state", "finished", timeout=A_RUN)
    panel.get_by_role("textbox", name="Samples per prompt").fill("3")
    panel.get_by_role("button", name="Evaluate now").click()
    expect(panel.locator("tr[data-step='2']")).to_contain_text("2 × 3", timeout=A_RUN)
    assert [(e.step, e.adapter) for e in lab.store.evaluations(run)] == [(1, "base"), (1, "tuned"), (2, "base"), (2, "tuned")]


def test_a_finished_run_is_branched_with_the_forms_settings_and_does_more_steps(page, lab, owner):
    run = trained(lab, owner)
    open_page(page, lab, f"?run={run}&tab=train")
    panel = page.get_by_role("region", name="Go on from this run")
    for name, value in {"max_steps": "3", "temperature": "0.9", "num_generations": "2", "prompts_per_step": "2",
                        "max_completion_length": "12"}.items():
        page.locator(f"#train-{name}").locator("input, textarea").first.fill(value)
    expect(panel.get_by_label("Checkpoint to branch from")).to_have_value("2")
    panel.get_by_role("button", name="Branch", exact=True).click()
    strip = page.locator(".strip")
    expect(strip).not_to_have_attribute("data-run", run, timeout=A_RUN)
    expect(strip).to_have_attribute("data-state", "finished", timeout=A_RUN)
    expect(panel).to_contain_text("Branched from small at step 2")
    (child,) = [each for each in lab.store.runs(owner=owner) if each.parent == run]
    assert (child.parent_step, child.step, child.config["temperature"], child.config["max_steps"]) == (2, 3, 0.9, 3)
    panel.get_by_role("textbox", name="Number of further steps").fill("2")
    panel.get_by_role("button", name="Do more steps").click()
    expect(strip).to_have_attribute("data-step", "5", timeout=A_RUN)
    expect(strip).to_have_attribute("data-state", "finished", timeout=A_RUN)
    panel.get_by_role("button", name="small", exact=True).click()  # back to where it came from
    expect(strip).to_have_attribute("data-run", run)
    expect(panel).to_contain_text("Its branches: ")


def test_what_a_critic_costs_is_shown_beside_grpo(page, lab, owner):
    run = trained(lab, owner, SMALL.replace(algorithm="ppo", loss_type="bnpo"))
    open_page(page, lab, f"?run={run}&tab=train")
    page.wait_for_selector(".curves[data-state=ready]")
    for metric in ("critic/loss", "critic/explained_variance", "critic/value_mean", "critic/value_std", "critic/seconds", "critic/bytes"):
        curve = page.locator(f"figure[data-metric='{metric}']")
        expect(curve).to_be_visible()
        expect(curve).to_have_attribute("data-step", "2")
    panel = page.get_by_role("region", name="What the critic costs")
    expect(panel.get_by_role("row", name=re.compile("^memory"))).to_contain_text(re.compile(r"\d MB 0 MB|\d MB0 MB"))
    expect(panel.get_by_role("row", name=re.compile("^time"))).to_contain_text("% of the step's time")
    expect(panel).to_contain_text("From one step to the next its mean value moves by")
    open_page(page, lab, f"?run={write_run(lab.store, owner=owner, status='finished', with_groups=False)}&tab=train")
    page.wait_for_selector(".curves[data-state=ready]")
    expect(page.get_by_role("region", name="What the critic costs")).to_have_count(0)
    expect(page.locator("figure[data-metric='critic/loss']")).to_be_hidden()


def test_a_branch_that_has_no_step_yet_is_shown_without_asking_for_one(page, lab, owner):
    parent = write_run(lab.store, owner=owner, steps=3, status="finished")
    child = lab.store.create_run(SMALL.to_dict(), name="fresh branch", owner=owner, status="stopped", parent=parent, parent_step=3)
    open_page(page, lab, f"?run={child}&tab=train")  # a route that answers 404 would fail this test at its end
    expect(page.get_by_role("region", name="Go on from this run")).to_contain_text("Branched from made up at step 3")
    expect(page.locator(".newest")).to_contain_text("No step yet")
    page.get_by_role("tab", name="Lab").click()
    expect(page.get_by_role("heading", name="No group yet")).to_be_visible()
