"""Live changes over HTTP: what is refused, what reaches the engine, how changes are told. And the comparison with TRL."""

from __future__ import annotations

import json

import pytest

from lab.assets import asset
from lab.config import LIVE_SETTINGS
from tests.browser.made_runs import write_run
from tests.webapp import ALICE, BOB, client, store


@pytest.fixture
def run():
    run = write_run(store(), owner=ALICE, steps=3, with_groups=False)
    yield run
    store().set_status(run, "finished")


def change(run, owner=ALICE, **settings):
    return client(owner).post(f"/api/runs/{run}/commands", json={"kind": "change", "args": settings})


def told(run):
    return client().get(f"/api/runs/{run}/changes").json()


def test_a_change_is_read_as_it_was_typed_and_waits_for_the_engine(run):
    answer = change(run, learning_rate="1e-3", reward_weights=["0.5", "0.5"], max_completion_length="32")
    assert answer.status_code == 200, answer.text
    args = store().command(answer.json()["command"]).args
    assert args == {"learning_rate": 1e-3, "reward_weights": [0.5, 0.5], "max_completion_length": 32}


@pytest.mark.parametrize("settings, sentence", [
    ({"temperature": "0"}, "Temperature (temperature) is 0.0: the smallest value is 0.05"),
    ({"beta": "a lot"}, "KL weight β (beta) is 'a lot': a number is needed"),
    ({"learning_rate": "inf"}, "Learning rate (learning_rate) is inf: a finite number is needed"),
    ({"reward_weights": ["1"]}, "reward_weights"),
    ({"num_generations": 4}, "Group size G (num_generations) cannot be changed during a run. What can: Reward weights"),
    ({}, "No setting was named"),
])
def test_what_cannot_be_changed_is_refused_with_a_sentence(run, settings, sentence):
    answer = change(run, **settings)
    assert answer.status_code == 422 and sentence in answer.json()["error"]


def test_a_change_is_checked_against_the_changes_before_it(run):
    """DAPO's pair: ε_high must not be below ε; 0.4 is fine by itself once ε_high is 0.5."""
    store().add_event(run, 4, "change", {"epsilon_high": 0.5})
    assert change(run, epsilon=0.4).status_code == 200


def test_only_a_run_that_goes_can_be_changed_and_only_by_its_owner(run):
    assert change(run, BOB, beta=0).status_code == 404
    store().set_status(run, "finished")
    answer = change(run, beta=0)
    assert answer.status_code == 409 and "is finished: settings change while a run goes" in answer.json()["error"]


def test_changes_are_told_with_before_and_after_and_a_resume_tells_none_twice(run):
    made = [(2, {"beta": 0.02}), (3, {"learning_rate": 2e-3, "reward_weights": [0.5, 0.2]})]
    for step, settings in made:
        store().add_event(run, step, "change", settings)
    store().begin_attempt(run, 1)
    for step, settings in made:
        store().add_event(run, step, "change", settings)
    assert [(c["step"], c["what"], c["before"], c["after"]) for c in told(run)["changes"]] == [
        (2, "β", "0.04", "0.02"), (3, "learning rate", "2e-5", "2e-3"), (3, "weight of accuracy", "0.8", "0.5")]
    now = {s["label"]: (s["value"], s["before"]) for s in told(run)["settings"] if not s["group"]}
    assert now == {"Learning rate": ("2e-3", "2e-5"), "Temperature": ("1.0", None), "KL weight β": ("0.02", "0.04"),
                   "Weight of accuracy": ("0.5", "0.8"), "Weight of format": ("0.2", None),
                   "Max tokens": ("48", None)}


def test_every_live_setting_is_offered_and_nothing_else(run):
    assert {s["name"] for s in told(run)["settings"]} == set(LIVE_SETTINGS)


@pytest.mark.parametrize("typed, weights, functions, expected", [
    ("accuracy, length_penalty(target=8, band=2), format", None, ["accuracy", "length_penalty(target=8, band=2)", "format"],
     [0.8, 1.0, 0.2]),  # 0.8 and 0.2 stay with their functions, the new one weighs 1
    ("format", None, ["format"], [0.2]),
    ("format, accuracy", ["0.5", "0.4"], ["format", "accuracy"], [0.5, 0.4]),  # as many as functions: as typed
    ("format", ["0.5", "0.4"], ["format"], [0.4]),  # typed beside the old functions
])
def test_weights_stay_with_their_functions_when_the_functions_change(run, typed, weights, functions, expected):
    from lab.web import changes as web_changes

    found = store().run(run)
    asked = {"rewards": typed} | ({"reward_weights": weights} if weights else {})
    read = web_changes.read_changes(asked, found, [])
    assert list(read["rewards"]) == functions and list(read["reward_weights"]) == expected


def test_a_change_of_functions_is_told_with_the_weight_of_the_new_one(run):
    store().add_event(run, 2, "change", {"rewards": ["accuracy", "format", "brevity"], "reward_weights": [0.8, 0.2, 1.0]})
    assert [(c["what"], c["before"], c["after"]) for c in told(run)["changes"]] == [
        ("rewards", "accuracy, format", "accuracy, format, brevity"), ("weight of brevity", "", "1.0")]


def test_the_comparison_with_trl_is_told_with_its_own_numbers():
    stored, shown = json.loads(asset("trl_parity.json").read_text(encoding="utf-8")), client().get("/api/parity").json()
    assert shown["trl"] == stored["trl"] and shown["cases"] == stored["cases"] == len(stored["rows"])
    assert shown["equal"] == shown["cases"]  # each of them within the tolerance
    for name in ("loss_diff", "grad_diff", "metric_diff"):  # the table per loss is not rounded, the single rows are
        assert shown[name] == pytest.approx(max(row[name] for row in stored["summary"]), rel=0.01)
    assert shown["losses"] == stored["summary"] and shown["differences"] == stored["differences"]
