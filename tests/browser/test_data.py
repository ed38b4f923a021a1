"""The Data tab in a real browser, with the real engine: from a file to a data set, its difficulty, and a run on a part of it."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, open_page, watched

LONG = 240_000  # milliseconds within which the engine must have loaded and answered on a crowded machine
HOSTILE = '<img src=x onerror="window.pwned=1">'


@pytest.fixture
def data(page, lab):
    open_page(page, lab, "?tab=data")
    expect(page.locator(".data-preview tbody tr")).to_have_count(3)
    return page


def source(page, name: str) -> None:
    page.locator("#data-source input").click()
    page.get_by_role("option", name=name).click()


def field(page, name: str):
    return page.locator(f"#data-{name} :is(textarea, input)").first


def upload(page, tmp_path, name: str, content: str | bytes) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    page.set_input_files("#data-file", str(tmp_path / name))


def prepare(page, name: str) -> None:
    field(page, "name").fill(name)
    page.get_by_role("button", name="Prepare data set").click()
    expect(page.locator(".set", has_text=name)).to_be_visible()


def test_typed_prompts_become_a_data_set_that_the_other_tabs_offer(data, context):
    page, context.forgive = data, ["status of 422"]
    field(page, "text").fill("Name a river. => the Rajang\nName a hill.\nName a lake.\n=> 5")
    expect(page.get_by_role("alert").filter(has_text="Line 4 has an answer but no prompt")).to_be_visible()
    field(page, "text").fill("Name a river. => the Rajang\nName a hill.\nName a lake.")
    expect(page.locator(".data-preview header")).to_contain_text("3 rows · 1 with an answer")
    seen = page.locator(".data-prompts pre").first
    expect(seen).to_have_text("<|system|>Think, then answer.<|end|><|user|>Name a river.<|end|><|assistant|>")
    field(page, "system_prompt").fill("Answer in Malay.")
    expect(seen).to_contain_text("<|system|>Answer in Malay.<|end|>")
    field(page, "held_out_share").fill("0")
    prepare(page, "Waters")
    page.reload()
    expect(page.locator(".set b")).to_have_text(["Waters"])
    for tab in ("train", "lab"):
        page.get_by_role("tab", name=tab.capitalize(), exact=True).click()
        page.locator(f"#{tab}-task input").click()
        expect(page.get_by_role("option", name="Waters (3 rows)")).to_be_visible()
        page.keyboard.press("Escape")


def test_a_file_is_mapped_by_its_columns_and_shown_as_text(data, tmp_path):
    page = data
    source(page, "A file of yours")
    expect(page.locator(".data-preview header")).to_contain_text("Choose a file first.")
    rows = [{"soal": f"What is {n} + 1? {HOSTILE}", "betul": str(n + 1), f"note {HOSTILE}": "=1+1"} for n in range(12)]
    upload(page, tmp_path, "sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    expect(page.get_by_role("alert").filter(has_text="Say which column holds the prompt.")).to_be_visible()
    use = page.get_by_label("Use of column soal")
    use.focus()
    use.select_option("prompt")
    expect(page.locator(".data-preview header")).to_contain_text("12 rows · no answers")
    expect(page.get_by_label("Use of column soal")).to_be_focused()  # a redraw never takes the focus away
    page.get_by_label("Use of column betul").select_option("answer")
    expect(page.locator(".data-preview header")).to_contain_text("all with an answer")
    page.get_by_label("Use of column note").select_option("")
    expect(page.locator(".data-preview td").first).to_have_text(f"What is 0 + 1? {HOSTILE}")
    expect(page.locator(".data-prompts pre").first).to_contain_text(HOSTILE)
    prepare(page, f"Sums {HOSTILE}")
    assert page.evaluate("window.pwned") is None
    with page.expect_download() as download:
        page.locator(".set").get_by_role("link", name="JSONL").click()
    kept = [json.loads(line) for line in open(download.value.path(), encoding="utf-8")]
    assert len(kept) == 12 and kept[3]["prompt"] == rows[3]["soal"] and kept[3]["answer"] == "4"
    assert not any(name.startswith("note") for name in kept[0])


REFUSED = [
    ("rows.parquet", b"\x80\x05\x95rest", "rows.parquet is not a Parquet file but a Python pickle, which can run code when it is read."),
    ("german.csv", "prompt\nschön\n".encode("latin-1"), "german.csv is not UTF-8 text (line 2, byte 0xf6): save it as UTF-8."),
    ("twice.csv", b"prompt,prompt\na,b\n", "twice.csv has two columns named 'prompt'."),
]


def test_a_refused_file_is_one_sentence_and_nothing_of_it_is_taken(data, context, tmp_path):
    context.forgive = ["status of 422"]
    source(data, "A file of yours")
    for name, content, said in REFUSED:
        upload(data, tmp_path, name, content)
        expect(data.get_by_role("alert").filter(has_text=said)).to_be_visible()
        expect(data.locator("#lab-data-file .note")).to_have_text("Nothing of it was taken.")
        expect(data.locator(".data-preview td")).to_have_count(0)
    data.get_by_role("button", name="Prepare data set").click()
    expect(data.get_by_role("alert").filter(has_text="Choose a file first.")).to_be_visible()


def test_a_scan_shows_who_has_signal_and_a_part_is_kept_and_trained_on(data, lab):
    page = data
    source(page, "A task that comes with the lab")
    field(page, "rows").fill("24")
    expect(page.locator(".data-preview header")).to_contain_text("3 held out")
    prepare(page, "Twenty-four sums")
    panel = page.get_by_role("region", name="Difficulty")
    panel.get_by_label("Prompts at most").fill("12")
    panel.get_by_role("button", name="Scan", exact=True).click()
    expect(page.locator(".set .scanned")).to_have_text(re.compile(r"signal in \d+ of 12"), timeout=LONG)
    expect(panel.locator(".hard tr")).to_have_count(12)
    rates = [float(panel.locator(".hard tr").nth(n).get_attribute("data-p")) for n in range(12)]
    live = sum(0 < rate < 1 for rate in rates)
    expect(panel.locator(".figures b").first).to_have_text(f"{live} of 12")
    expect(panel.locator(".figures")).to_contain_text("live groups at G 8")
    panel.get_by_label("Order").select_option("hardest")
    shown = [float(panel.locator(".hard tr").nth(n).get_attribute("data-p")) for n in range(12)]
    assert shown == sorted(rates)
    panel.get_by_label("to", exact=True).fill("1.0")
    panel.get_by_role("button", name="Keep as a new data set").click()
    kept = sum(0.1 <= rate <= 1.0 for rate in rates)
    part = page.locator(".set", has_text="Twenty-four sums 0.1–1")
    expect(part).to_contain_text(f"{kept} prompts · 3 held out")
    part.get_by_role("button", name="Train on it").click()
    expect(page.locator("#train-task input")).to_have_value(f"Twenty-four sums 0.1–1 ({kept + 3} rows)")
    expect(page.locator("#train-rewards")).to_contain_text("format")
    expect(page.locator("#train-reward_weights input, #train-reward_weights textarea").first).to_have_value("0.8, 0.2")  # as it was


def test_train_on_it_outlasts_what_the_train_form_held_before_a_reload(data, lab):
    page = data
    prepare(page, "Three sums")
    page.get_by_role("tab", name="Train").click()
    page.locator("#train-seed input, #train-seed textarea").first.fill("7")
    expect(page.locator(".strip").get_by_role("button", name="Train", exact=True)).to_have_attribute("title", re.compile("seed 7"))
    page.get_by_role("tab", name="Data").click()
    page.reload()  # from here on the Train tab is not built before the button asks for it
    page.locator(".set", has_text="Three sums").get_by_role("button", name="Train on it").click()
    expect(page.locator("#train-task input")).to_have_value("Three sums (3 rows)")
    expect(page.locator("#train-seed input, #train-seed textarea").first).to_have_value("7")


def test_a_scan_can_be_cancelled_and_a_set_deleted(data, lab):
    page = data
    source(page, "A task that comes with the lab")
    field(page, "rows").fill("2000")
    expect(page.locator(".data-preview header")).to_contain_text("held out")
    prepare(page, "Many sums")
    panel = page.get_by_role("region", name="Difficulty")
    for label, value in (("Samples of each prompt", "64"), ("Prompts at most", "4096"), ("Max tokens", "400")):
        panel.get_by_label(label).fill(value)
    panel.get_by_role("button", name="Scan", exact=True).click()
    panel.get_by_role("button", name="Cancel scan").click()
    expect(page.locator(".set .scanned")).to_have_text(re.compile("cancelled|signal in"), timeout=LONG)
    expect(panel.get_by_role("button", name="Scan", exact=True)).to_be_visible()
    delete = page.locator(".set").get_by_role("button", name="Delete")
    delete.click()
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator(".set")).to_have_count(0)
    expect(page.locator(".data-sets")).to_contain_text("Many sums was deleted.")


def test_the_preflight_says_whether_anything_can_be_learned(page, lab):
    open_page(page, lab, "?tab=train")
    page.get_by_role("button", name="Pre-flight").click()
    panel = page.get_by_role("group").filter(has_text="Pre-flight")
    expect(panel).to_have_attribute("data-state", re.compile("good|care"), timeout=LONG)
    expect(panel.locator("summary")).to_contain_text(re.compile(r"\d of 4 groups have signal"))
    panel.locator("summary").focus()
    if panel.get_attribute("open") is None:
        page.keyboard.press("Enter")
    expect(panel.locator("article[data-reward-function=accuracy]")).to_contain_text("best 1.00")
    page.locator("#train-max_completion_length").get_by_role("textbox").fill("2")
    page.get_by_role("button", name="Pre-flight").click()
    expect(panel).to_have_attribute("data-state", "stop", timeout=LONG)
    expect(panel).to_contain_text("All 32 completions were cut off at 2 tokens: raise Max tokens.")


def test_on_a_phone_the_tab_scrolls_only_down(browser, lab, owner):
    with watched(browser.new_context(viewport=PHONE, reduced_motion="reduce"), lab, owner) as context:
        page = open_page(context.new_page(), lab, "?tab=data")
        expect(page.locator(".data-preview tbody tr")).to_have_count(3)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        expect(page.locator(".data-sets")).to_contain_text("None yet.")  # what other owners prepared is theirs
        page.get_by_role("tab", name="Train", exact=True).click()  # not hidden behind the page's tools
        expect(page.get_by_role("tab", name="Train", exact=True)).to_have_attribute("aria-selected", "true")
