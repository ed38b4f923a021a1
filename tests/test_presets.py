"""Presets are valid settings, and TRL's are really TRL's."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lab.config import ConfigError, RunConfig
from lab.contradictions import ON_POLICY, cautions
from lab.grpo import grpo_loss
from lab.models.registry import ModelError
from lab.models.registry import resolve as resolve_model
from lab.models.shapes import SHAPES
from lab.planner import plan
from lab.presets import PLAIN_GRPO, PRESETS, preset, trl_defaults
from lab.rewards import resolve as resolve_rewards
from lab.rules.losses import LATER_SETTINGS
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


@pytest.mark.parametrize("name", ["gspo", "luspo", "cispo", "scalerl", "sapo", "vespo", "dppo", "intellect-2", "v3.2", "dapo", "80-20"])
def test_a_paper_that_acts_on_ratios_has_updates_in_which_they_move(name):
    config = preset(name).config()
    (told,) = cautions(config.replace(num_iterations=1))
    assert cautions(config) == [] and told.startswith("Updates per rollout μ (num_iterations) is 1, so every probability ratio is 1: ")


def test_what_is_said_to_be_idle_on_policy_is_idle():
    def gradient(moved=0.0, **changes):
        """Of one loss with respect to the log-probs (3, 5), on-policy or with a policy that has moved since it sampled."""
        config = RunConfig(**changes)
        logps = torch.linspace(-3, -0.1, 15).view(3, 5).requires_grad_()
        advantages = torch.tensor([1.0, -0.8, -0.2])
        old = logps.detach() - moved * advantages.sign()[:, None] * torch.linspace(-1, 1, 5)  # 0.6: ratios from 0.55 to 1.82
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
        loss, _ = grpo_loss(logps, old, None, advantages, mask, loss_type=config.loss_type, epsilon=config.epsilon,
                            epsilon_high=config.epsilon_high, delta=config.delta, beta=0.0, kl_estimator="k3",
                            importance_sampling_level=config.importance_sampling_level,
                            **{name: getattr(config, name) for name in LATER_SETTINGS})
        return torch.autograd.grad(loss, logps)[0]

    cases = [(dict(importance_sampling_level="sequence"), "grpo"), (dict(epsilon_high=0.4), "grpo"), (dict(delta=1.5), "grpo")]
    cases += [(dict(loss_type=later, epsilon_high=5.0 if later == "cispo" else None), plain) for later, plain in ON_POLICY.items()]
    for changes, plain in cases:
        assert torch.allclose(gradient(**changes), gradient(loss_type=plain), atol=1e-6), changes
        assert not torch.allclose(gradient(0.6, **changes), gradient(0.6, loss_type=plain), atol=1e-3), changes


def test_a_baseline_or_an_action_of_whole_completions_is_not_divided_by_length():
    # RLOO's action is the whole completion, and OPO's baseline is the best one for a sum over tokens: 1/L_i fits neither.
    assert preset("rloo").config().loss_type == "dr_grpo" and preset("opo").config().loss_type == "dapo"


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
