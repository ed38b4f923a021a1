"""The plan on the page: by the machine that the engine measured, corrected by earlier runs, with its warnings."""

from __future__ import annotations

import pytest

from lab.config import RunConfig
from lab.presets import preset
from tests.webapp import ALICE, BOB, client, store

SPEED = {"flops": 1e11, "bandwidth": 1e10, "call": 3e-6}
MACHINE = {"device": "cpu", "memory": 5e8, "threads": 2, "four_bit": False, "small_model": 20_000_000,
           "speeds": {name: {"1": SPEED, "2": SPEED | {"flops": flops}} for name, flops in (("float32", 2e11), ("bfloat16", 6e11))}}


@pytest.fixture
def machine():
    """Tell the lab another machine: as if the engine had measured it."""
    def tell(**changes):
        store().register("engine", {"phase": "idle", "machine": MACHINE | changes})
    tell()
    yield tell
    store().register("engine", {"phase": "off"})


def plan(owner=ALICE, **settings):
    answer = client(owner).post("/api/plan", json={"config": settings} if settings else {})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_memory_by_part_and_seconds_are_there_before_the_start(machine):
    view = plan()
    assert view["plan"]["fits"] and view["plan"]["seconds"] > 0 and view["plan"]["memory"] > 5e8
    assert {part["name"] for part in view["parts"]} >= {"weights", "adapter", "activations"} and view["parts"][0]["title"] == "base model"
    assert "the model is small" in view["format"] and view["cautions"] == [] and view["beside"] is None
    assert plan(**preset("first-run").config(prompts_per_step=16).to_dict())["plan"]["seconds"] > view["plan"]["seconds"]


def test_a_cut_draw_is_warned_of_in_words(machine):
    (sentence,) = plan(top_p="0.9", top_k="20")["cautions"]
    assert sentence.startswith("top-k and top-p cut unlikely tokens off") and "biased" in sentence


def test_before_the_engine_has_measured_the_machine_it_says_so():
    store().register("engine", {"phase": "starting"})
    view = plan(min_p="0.1")
    assert view["plan"] is None and "measured this machine" in view["note"] and len(view["cautions"]) == 1


def test_a_model_that_is_not_here_is_planned_by_its_known_sizes_or_told_unknown(machine):
    machine(device="cuda", memory=8e9, four_bit=True)
    view = plan(**preset("gpu-8gb").config().to_dict())
    assert view["plan"]["fits"] and 2e9 < view["plan"]["peak"] < 8e9 and view["format"].startswith("bfloat16")
    assert plan(**preset("gpu-24gb").config().to_dict())["plan"]["fits"] is False  # on this card
    assert "not on this machine yet" in plan(model="somebody/else")["note"]


def test_bfloat16_is_expected_where_the_engine_found_it_fast(machine):
    fast = plan(model="Qwen/Qwen2.5-0.5B-Instruct")
    assert fast["format"].startswith("bfloat16: matrix products are 3.0 times")
    machine(speeds={name: {"1": SPEED, "2": SPEED} for name in ("float32", "bfloat16")})
    assert plan(model="Qwen/Qwen2.5-0.5B-Instruct")["format"].startswith("float32: bfloat16 is only 1.0 times")


def test_an_earlier_run_of_the_owners_stands_beside_it_and_corrects_it(machine):
    before = plan()
    measured = {"peak": 1.1e9, "seconds": 4.0, "memory": 1.5, "pace": 2.0, "sentence": "Planned at most 1 GB; measured 1.1 GB and 4 s."}
    report = {"plan": before["plan"], "measured": measured, "prompt_tokens": 30, "device": "cpu", "dtype": "float32", "load_in_4bit": False}
    store().create_run(RunConfig().to_dict(), name="measured", owner=ALICE, status="finished", info={"plan": report})
    after = plan()
    assert after["beside"] == {"run": "measured", "sentence": measured["sentence"]}
    assert after["plan"]["parts"]["weights"] == pytest.approx(1.5 * before["plan"]["parts"]["weights"])
    assert plan(BOB)["beside"] is None


def test_settings_that_cannot_work_are_refused_with_a_sentence(machine):
    answer = client().post("/api/plan", json={"config": {"num_generations": 1}})
    assert answer.status_code == 422 and "num_generations" in answer.json()["error"]
