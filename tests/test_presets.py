"""Presets are valid settings, and TRL's are really TRL's."""

from __future__ import annotations

import dataclasses

import pytest

from lab.config import ConfigError, RunConfig
from lab.models.registry import ModelError
from lab.models.registry import resolve as resolve_model
from lab.models.shapes import SHAPES
from lab.planner import plan
from lab.presets import PLAIN_GRPO, PRESETS, preset, trl_defaults
from lab.rewards import resolve as resolve_rewards
from lab.tasks import load_task


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_makes_a_config_whose_model_task_and_rewards_exist(name):
    chosen = preset(name)
    config = chosen.config()
    assert {f.name for f in dataclasses.fields(RunConfig)} >= set(chosen.settings)
    assert load_task(config.task, 0).rows(0, 1) and resolve_rewards(config.rewards)
    try:
        resolve_model(config.model)
    except ModelError as error:
        pytest.fail(str(error))
    assert chosen.title and chosen.why.endswith(".") and chosen.source and chosen.group in ("first run", "hardware", "paper")


def test_changes_win_over_the_preset():
    assert preset("first-run").config(max_steps=3).max_steps == 3
    assert preset("first-run").config().max_steps == 40


def test_papers_leave_model_and_task_alone():
    for chosen in PRESETS.values():
        if chosen.group == "paper":
            assert not {"model", "task", "rewards"} & set(chosen.settings), chosen.name


def test_a_papers_preset_leaves_no_rule_of_the_one_chosen_before():
    papers = [chosen for chosen in PRESETS.values() if chosen.group == "paper"]
    assert len(papers) >= 15
    for before in papers:
        for after in papers:
            mixed = RunConfig(**{**before.settings, **after.settings})
            own = after.config()
            for name in PLAIN_GRPO:
                assert getattr(mixed, name) == getattr(own, name), (before.name, after.name, name)


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ConfigError, match="no preset 'x'. Presets: first-run"):
        preset("x")


def test_trls_defaults_are_those_of_the_installed_trl():
    grpo_config = pytest.importorskip("trl", reason="TRL is only needed to compare with it").GRPOConfig
    theirs = {f.name: f.default for f in dataclasses.fields(grpo_config)}
    ours = trl_defaults()
    # TRL counts completions: 8 per device and batch make one prompt of 8; its KL switch is use_bias_correction_kl
    assert ours.pop("prompts_per_step") == theirs["per_device_train_batch_size"] // theirs["num_generations"]
    assert ours.pop("kl_estimator") == ("k3_corrected" if theirs["use_bias_correction_kl"] else "k3")
    shared = {name: value for name, value in ours.items() if name in theirs}
    assert len(shared) >= 15
    assert {name: str(getattr(theirs[name], "value", theirs[name])) for name in shared} == {n: str(v) for n, v in shared.items()}


@pytest.mark.parametrize("name, gigabytes", [("gpu-6gb", 6), ("gpu-8gb", 8), ("gpu-12gb", 12), ("gpu-16gb", 16), ("gpu-24gb", 24)])
def test_a_hardware_preset_fits_its_card_by_the_plan_without_computing_layers_twice(name, gigabytes):
    config = preset(name).config()
    made = plan(config, SHAPES[config.model], prompt_tokens=120, device="cuda", dtype="bfloat16", load_in_4bit=True,
                memory=gigabytes * 1e9)
    assert made.fits and not made.checkpointing, made.sentence
    assert made.peak > 0.25 * gigabytes * 1e9, "a smaller card would do"


def test_the_laptop_preset_fits_a_laptop():
    config = preset("laptop-cpu").config()
    for dtype in ("float32", "bfloat16"):
        made = plan(config, SHAPES["HuggingFaceTB/SmolLM2-135M-Instruct"], prompt_tokens=60, device="cpu", dtype=dtype,
                    load_in_4bit=False, memory=4e9)
        assert made.fits and made.micro_batch_tokens <= config.micro_batch_tokens, made.sentence
