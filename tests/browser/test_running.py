"""Running: a real engine, the real tiny model. From opening the page to a reward curve that has climbed, and what may go wrong."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest
from playwright.sync_api import expect

from lab.config import RunConfig
from tests.browser.conftest import open_page
from tests.test_judge import Server

RUNNING = "document.querySelector('.strip').dataset.kind === 'train' && Number(document.querySelector('.strip').dataset.step) >= 1"
LEARNED = """Number(document.querySelector('figure[data-metric=reward]').dataset.value) >= 0.9
    || document.querySelector('.strip').dataset.state === 'finished'"""
WATCH_THE_GROUP = """() => {
    window.seen = [];
    const start = performance.now(), writing = '.group[data-writing] article .text';
    const scored = '.group:not([data-writing]) article:not([data-advantage=""])';
    new MutationObserver(() => {
        const text = [...document.querySelectorAll(writing)].map((node) => node.textContent).join('');
        window.started ||= document.querySelector('.group[data-writing]') !== null;
        if (text) window.seen.push([performance.now() - start, text.length]);
        if (window.started && document.querySelector(scored)) window.done ??= performance.now() - start;
    }).observe(document.querySelector('#lab-group'), { subtree: true, childList: true, characterData: true, attributes: true });
}"""
A_RUN = 240_000  # milliseconds within which a run, or a restart, must have happened on a crowded machine


@pytest.fixture(scope="module", autouse=True)
def engine_is_ready(lab):
    for _ in range(1200):
        process = lab.store.process("engine")
        if process and process.info.get("phase") not in (None, "starting", "loading") and process.info.get("model"):
            return
        time.sleep(0.1)
    raise AssertionError("the engine was not ready within two minutes")


def write_at_length(page) -> None:
    """Settings under which hardly any completion ends by itself, so that also the fastest machine is seen writing."""
    page.locator("#lab-max_completion_length").get_by_role("textbox", name="Max tokens", exact=True).fill("400")
    page.locator("#lab-temperature").get_by_role("textbox", name="Temperature", exact=True).fill("5.0")


def test_nothing_is_empty_at_first_and_the_recording_says_that_it_is_one(page, lab):
    open_page(page, lab)
    expect(page.locator(".group article")).to_have_count(8)
    expect(page.locator(".glass-head .chip.recorded")).to_have_text("recorded")
    expect(page.locator(".glass-head .summary")).to_contain_text("seed 42")
    expect(page.locator(".frame")).to_have_class(re.compile("recorded"))
    expect(page.locator(".strip .cell.phase")).to_contain_text("Recorded")
    expect(page.locator("#lab-arithmetic .result").first).to_be_visible()
    print(f"\nfrom the command to the first answer {lab.seconds_to_open:.1f} s")


def test_sampling_with_the_keyboard_alone_fills_eight_cards_live(page, lab):
    open_page(page, lab)
    page.get_by_role("textbox", name="Prompt", exact=True).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("What is 69 + 13?")
    write_at_length(page)
    page.get_by_role("textbox", name="Prompt", exact=True).focus()
    page.evaluate(WATCH_THE_GROUP)
    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.done !== undefined")
    articles = page.locator(".group article")
    expect(articles).to_have_count(8)
    seen, done = page.evaluate("[window.seen, window.done]")
    print(f"\nsample: first text {seen[0][0] / 1000 if seen else float('nan'):.2f} s, all scored {done / 1000:.2f} s after the key")
    assert seen, "no text was shown while it was written"
    assert all(articles.nth(i).get_attribute("data-reward") != "" for i in range(8))
    expect(page.locator(".glass-head h2")).to_have_text("What is 69 + 13?")
    expect(page.locator(".glass-head .summary")).to_contain_text("written by the base")
    page.reload()
    expect(articles).to_have_count(8)
    expect(page.locator(".glass-head h2")).to_have_text("What is 69 + 13?")


def test_a_free_prompt_has_no_accuracy_and_never_a_zero_for_it(page, lab):
    open_page(page, lab)
    page.get_by_role("textbox", name="Prompt", exact=True).fill("Name a fruit.")
    page.get_by_role("button", name="Sample", exact=True).click()
    expect(page.locator(".group:not([data-writing]) article .part[data-function=accuracy]").first).to_have_text("–")
    expect(page.locator(".glass-head h2")).to_have_text("Name a fruit.")


def test_a_sample_can_be_cancelled(page, lab):
    open_page(page, lab)
    slider = page.locator("#lab-num_generations").get_by_role("spinbutton")
    slider.fill("64")
    slider.press("Tab")
    write_at_length(page)
    page.get_by_role("button", name="Sample", exact=True).click()
    page.wait_for_selector(".group[data-writing] article")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".glass-head .summary")).to_contain_text("cancelled")


def test_what_cannot_be_sampled_is_refused_with_a_sentence(page, lab, context):
    context.forgive = ["status of 422"]
    open_page(page, lab)
    page.locator("#lab-temperature").get_by_role("textbox", name="Temperature", exact=True).fill("0")
    page.get_by_role("button", name="Sample", exact=True).click()
    notice = page.locator("#lab-notice-lab [data-notice=problem]")
    expect(notice).to_contain_text("Temperature (temperature) is 0.0: the smallest value is 0.05")
    notice.get_by_role("button", name="Close").click()
    expect(notice).to_have_count(0)


def test_one_click_from_opening_the_reward_climbs_to_nine_tenths(context, page, lab):
    opened = time.monotonic()
    open_page(page, lab)
    page.locator(".strip").get_by_role("button", name="Train", exact=True).click()  # the only click: the curves open by themselves
    strip, reward = page.locator(".strip"), page.locator("figure[data-metric=reward]")
    expect(strip).to_have_attribute("data-state", "training", timeout=A_RUN)
    page.wait_for_function(RUNNING, timeout=A_RUN)
    run = re.search(r"run=([\w-]+)", page.url)[1]
    first = float(reward.get_attribute("data-value"))

    page.reload()  # in mid-training: the page takes the run up again, with every step
    expect(strip).to_have_attribute("data-run", run)
    expect(page.locator("[role=tab][aria-selected=true]")).to_have_text("Train")
    second = open_page(context.new_page(), lab, f"?run={run}&tab=train")
    expect(second.locator(".strip")).to_have_attribute("data-run", run)
    second.close()

    page.wait_for_function(LEARNED, timeout=A_RUN)
    reached, step = float(reward.get_attribute("data-value")), int(reward.get_attribute("data-step"))
    seconds = time.monotonic() - opened
    print(f"\nreward {first:.2f} at the first step, {reached:.2f} (mean of 4) at step {step}, {seconds:.0f} s after the page was asked for")
    assert first < 0.4 and reached >= 0.88
    steps = page.evaluate(f"fetch('/api/runs/{run}/steps').then((r) => r.json()).then((s) => s.rows.map((row) => row[0]))")
    assert steps == list(range(1, len(steps) + 1))
    page.wait_for_function("""(() => { const figure = document.querySelector('figure[data-metric=reward]');
        return figure.querySelector('.plot').data[0].x.length === Number(figure.dataset.step); })()""")
    if strip.get_attribute("data-state") == "training":
        page.locator(".strip").get_by_role("button", name="Pause").click()
        expect(strip).to_have_attribute("data-state", "paused", timeout=A_RUN)
        at = int(strip.get_attribute("data-step"))
        page.locator(".strip").get_by_role("button", name="Step", exact=True).click()
        expect(strip).to_have_attribute("data-step", str(at + 1), timeout=A_RUN)
        expect(strip).to_have_attribute("data-state", re.compile("paused|finished"), timeout=A_RUN)
    page.get_by_role("tab", name="Lab").click()
    page.get_by_role("button", name=re.compile("^Tuned")).click()
    page.get_by_role("button", name="Sample", exact=True).click()
    expect(page.locator(".glass-head .summary")).to_contain_text("written by the tuned model", timeout=A_RUN)
    if strip.get_attribute("data-state") == "paused":
        page.locator(".strip").get_by_role("button", name="Stop", exact=True).click()
        expect(strip).to_have_attribute("data-state", "finished", timeout=A_RUN)
        expect(page.locator("#lab-notice-lab [data-notice=stopped]")).to_contain_text("Stopped and saved at step")


def test_while_a_judge_is_silent_the_strip_says_so_and_pause_and_stop_work(page, lab, owner):
    judge, answers = Server(), threading.Event()
    judge.script = lambda asked, number: answers.wait(240) and "5"
    config = RunConfig(num_generations=2, prompts_per_step=1, max_completion_length=8, max_steps=2,
                       rewards=(f"judge(base_url={judge.url!r}, model='m')",))
    run = lab.store.create_run(config.to_dict(), name="judged", owner=owner, status="queued")
    lab.store.send_command("train", run=run, owner=owner)
    open_page(page, lab, f"?run={run}&tab=train")
    strip = page.locator(".strip")
    expect(strip.locator(".cell.phase")).to_contain_text("waits for the judge at 127.0.0.1", timeout=A_RUN)
    for button, state in (("Pause", "paused"), ("Stop", "finished")):
        strip.get_by_role("button", name=button, exact=True).click()
        expect(strip).to_have_attribute("data-state", state, timeout=A_RUN)
    answers.set()
    judge.shutdown()
    judge.server_close()


def test_a_killed_engine_is_named_and_comes_back_and_the_run_can_go_on(page, lab):
    open_page(page, lab, "?tab=train")
    page.locator(".strip").get_by_role("button", name="Train", exact=True).click()
    strip = page.locator(".strip")
    page.wait_for_function(RUNNING, timeout=A_RUN)
    page.get_by_role("tab", name="Lab").click()
    page.get_by_role("button", name="Sample", exact=True).click()  # a sample is let in between two events of the training
    expect(page.locator(".glass-head .summary")).to_contain_text("written by the base", timeout=A_RUN)
    page.get_by_role("tab", name="Train").click()
    expect(strip).to_have_attribute("data-state", "training")
    os.kill(lab.store.process("engine").pid, signal.SIGKILL)
    expect(page.locator("#lab-notice-train [data-notice=engine]")).to_contain_text("The engine has stopped", timeout=A_RUN)
    notice = page.locator("#lab-notice-train [data-notice=interrupted]")
    expect(notice).to_contain_text("Interrupted at step", timeout=A_RUN)
    step = int(strip.get_attribute("data-step"))
    expect(page.locator(".curves figure").first).to_have_attribute("data-step", str(step))  # what was done stays readable
    notice.get_by_role("button", name="Resume").click()
    expect(strip).to_have_attribute("data-state", "training", timeout=A_RUN)
    page.wait_for_function(f"Number(document.querySelector('.strip').dataset.step) > {step}", timeout=A_RUN)
    page.locator(".strip").get_by_role("button", name="Stop", exact=True).click()
    expect(strip).to_have_attribute("data-state", "finished", timeout=A_RUN)


def test_a_killed_web_process_is_noticed_and_the_page_goes_on_when_it_is_back(page, lab, context):
    context.forgive = ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "Failed to load resource",
                       "Connection", "EventSource"]
    open_page(page, lab)
    lab.kill()
    lost = page.locator("#lab-notice-lab [data-notice=lost]")
    expect(lost).to_contain_text("No answer from the lab", timeout=A_RUN)
    expect(page.locator(".strip").get_by_role("button", name="Train", exact=True)).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".group article")).to_have_count(8)  # nothing was blanked
    lab.start()
    expect(page.locator(".strip")).to_have_attribute("data-contact", "live", timeout=A_RUN)
    expect(lost).to_have_count(0)
