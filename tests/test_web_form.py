"""The form is made from RunConfig: every field is there, with the same help, and what is typed comes back as it should."""

from __future__ import annotations

import dataclasses

import pytest

from lab.config import ConfigError, RunConfig
from lab.presets import PRESETS
from lab.web.form import FIELDS, as_text, form_value, help_text, read_form
from tests.webapp import client


@pytest.fixture(scope="module")
def components():
    return {c["props"].get("elem_id"): c for c in client().get("/config").json()["components"] if c["props"].get("elem_id")}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunConfig)])
def test_every_field_is_in_the_train_form_with_its_label_and_help(components, name):
    meta = FIELDS[name].metadata
    shown = components[f"train-{name}"]["props"]
    assert shown["label"] == meta["label"]
    assert shown["info"] == help_text(name) and meta["help"] in shown["info"]
    if meta["trl"] is not None:
        assert f"TRL {as_text(meta['trl'])}" in shown["info"]


def test_the_lab_form_shows_the_settings_of_a_sample(components):
    for name in ("system_prompt", "model", "task", "num_generations", "temperature", "max_completion_length", "seed", "rewards",
                 "reward_weights"):
        assert components[f"lab-{name}"]["props"]["info"] == help_text(name)
    slider = components["lab-num_generations"]["props"]
    assert (slider["minimum"], slider["maximum"]) == (2, 64)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_the_form(name):
    config = PRESETS[name].config()
    typed = {field: form_value(field, getattr(config, field)) for field in FIELDS}
    assert RunConfig.from_dict(read_form(typed)) == config


@pytest.mark.parametrize(("value", "text"), [(2e-3, "2e-3"), (2e-5, "2e-5"), (1.5e-4, "1.5e-4"), (0.04, "0.04"), (1.0, "1.0"), (0.0, "0.0"),
                                             (None, ""), ((0.8, 0.2), "0.8, 0.2"), (48, "48"), (10.0, "10.0")])
def test_settings_are_written_as_one_would_type_them(value, text):
    assert as_text(value) == text


@pytest.mark.parametrize(("name", "typed", "value"), [
    ("learning_rate", " 2e-3 ", 2e-3), ("beta", "\u22120", 0.0), ("max_steps", "40", 40), ("max_steps", "4e1", 40), ("epsilon_high",
        "", None),
    ("epsilon_high", "0.28", 0.28), ("delta", "none", None), ("adapter", "", None), ("reward_weights", "", None), ("reward_weights",
        "0.8; 0.2", (0.8, 0.2)),
    ("load_in_4bit", "", None), ("load_in_4bit", "true", True), ("load_in_4bit", "false", False), ("system_prompt", "", ""),
    ("system_prompt", "none", None), ("system_prompt", "Think.", "Think."), ("rewards", ["format"],
        ("format",)), ("num_generations", 8, 8)])
def test_what_is_typed_becomes_the_setting(name, typed, value):
    read = read_form({name: typed})[name]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("typed", ["", "ten", "1.5", "nan", "inf", "1e999"])
def test_what_is_no_whole_number_is_refused_by_name(typed):
    with pytest.raises(ConfigError, match=r"Steps \(max_steps\)"):
        read_form({"max_steps": typed})


def test_the_page_has_the_buttons_and_the_prompt_box_that_others_rely_on(components):
    assert components["lab-prompt"]["props"]["label"] == "Prompt"
    assert components["lab-sample"]["props"]["value"] == "Sample"
    assert components["train-start"]["props"]["value"] == "Start this run"


def test_every_value_one_can_choose_is_explained():
    choices = client().get("/api/choices").json()["choices"]
    assert {name: set(known) for name, known in choices.items()} == {
        name: set(field.metadata["choices"]) for name, field in FIELDS.items() if field.metadata["choices"]}
