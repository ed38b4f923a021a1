"""RunConfig refuses what cannot work, in a sentence, and survives the trip to JSON."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from lab.config import ConfigError, RunConfig
from lab.contradictions import cautions


def test_nobody_is_asked_by_hand_in_an_evaluation():
    with pytest.raises(ConfigError, match="nobody is asked during an evaluation"):
        RunConfig(eval_rewards=("accuracy", "by_hand(criteria={'clarity': 1})"))


def test_defaults_are_the_papers():
    config = RunConfig()
    assert (config.loss_type, config.scale_rewards, config.kl_estimator) == ("grpo", "group", "k3")
    assert (config.beta, config.epsilon, config.num_iterations) == (0.04, 0.2, 1)


def test_round_trip_through_json_is_equal():
    config = RunConfig(rewards=("accuracy", "format"), reward_weights=(0.8, 0.2), num_generations=5, prompts_per_step=3)
    assert RunConfig.from_dict(config.to_dict()) == config


def test_any_group_size_from_two_and_any_number_of_prompts():
    for num_generations, prompts in ((2, 1), (3, 7), (64, 5)):
        config = RunConfig(num_generations=num_generations, prompts_per_step=prompts)
        assert config.completions_per_step == num_generations * prompts


@pytest.mark.parametrize(("settings", "words"), [
    ({"num_generations": 1}, r"Group size G \(num_generations\) is 1: the smallest value is 2"),
    ({"temperature": float("nan")}, r"Temperature \(temperature\) is nan: a finite number is needed"),
    ({"temperature": "hot"}, r"Temperature \(temperature\) is 'hot': a finite number is needed"),
    ({"loss_type": "ppo2"}, r"Loss \(loss_type\) is 'ppo2': choose one of grpo"),
    ({"epsilon": 1.5}, r"Clip ε \(epsilon\) is 1.5: the largest value is 1.0"),
    ({"seed": 2**32}, r"Seed \(seed\) is 4294967296: the largest value is 4294967295"),
    ({"rewards": ()}, "name at least one reward function"),
    ({"reward_weights": (1.0,)}, "1 number for 2 reward functions"),
    ({"reward_weights": (float("nan"), 1.0)}, "finite numbers are needed"),
    ({"reward_weights": (float("inf"), 1.0)}, "finite numbers are needed"),
    ({"reward_weights": (1e308, 1e308)}, "at most 1,000,000"),
    ({"max_steps": 10**12}, r"Steps \(max_steps\) is 1000000000000: the largest value is 10000000"),
    ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, r"set Ratio level \(importance_sampling_level\) to token"),
    ({"loss_type": "dppo", "importance_sampling_level": "sequence"}, r"set Ratio level \(importance_sampling_level\) to token"),
    ({"reward_weights": (0.0, 0.0)}, "0 for every reward function, so nothing could be learned"),
    ({"loss_type": "luspo"}, r"set Ratio level \(importance_sampling_level\) to sequence"),
    ({"loss_type": "cispo"}, r"for Loss \(loss_type\) cispo it is the largest ratio that counts.*set it to 5"),
    ({"loss_type": "cispo", "epsilon_high": 0.28}, r"Clip ε_high \(epsilon_high\) is 0.28.*would throttle every token"),
    ({"loss_type": "sapo", "delta": 4.0}, r"Loss \(loss_type\) sapo has no clip"),
    ({"delta": 1.1}, "inside the clip at 1 \\+ epsilon = 1.2"),
    ({"multi_objective_aggregation": "normalize_then_sum", "advantage_rule": "rloo"}, r"set Advantage rule \(advantage_rule\) to grpo"),
    ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}, r"Advantage scale \(scale_rewards\) to group"),
    ({"multi_objective_aggregation": "normalize_then_sum", "kl_placement": "reward"}, "one total reward"),
    ({"advantage_rule": "rloo", "rewards": ("accuracy", "steps(each=True)")}, "rewards of single steps .*: set advantage_rule to grpo"),
    ({"advantage_rule": "maxrl", "kl_placement": "reward"}, "makes rewards negative"),
    ({"dead_groups": "skip", "kl_placement": "reward"}, "hardly any group is tied"),
    ({"entropy_coef_min": 2.0}, r"above Largest bonus \(entropy_coef_max\)"),
])
def test_contradictions_are_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        RunConfig(**settings)


@pytest.mark.parametrize("make", [RunConfig.from_dict, lambda settings: RunConfig(**settings),
                                  lambda settings: RunConfig().replace(**settings)])
def test_an_unknown_setting_is_answered_with_the_nearest_and_then_with_all(make):
    words = "Unknown setting learning_rte, epsilom. Did you mean learning_rate. Did you mean epsilon. Known settings: .*adam_beta1, "
    with pytest.raises(ConfigError, match=words):
        make({"learning_rte": 1e-5, "epsilom": 0.2})


def test_a_config_shows_its_settings_to_an_editor():
    assert inspect.signature(RunConfig).parameters["beta"].default == 0.04


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().beta = 0.1


def test_cold_start_examples_that_no_step_uses_are_told():
    told = cautions(RunConfig(task="add2", cold_start="worked"))
    assert len(told) == 1 and "Cold-start steps is 0" in told[0]
    assert cautions(RunConfig(task="add2", cold_start="worked", cold_start_steps=3)) == cautions(RunConfig(task="add2")) == []
