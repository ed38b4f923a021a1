"""A run stops on collapse, and on nothing else."""

import pytest

from lab.config import RunConfig
from lab.training.stop_rules import StopRules


def step(**metrics):
    return {"reward": 0.5, "entropy": 1.0, "kl": 0.1, "completions/clipped_ratio": 0.0} | metrics


def looked(config, steps):
    rules = StopRules()
    return [rules.look(metrics, config) for metrics in steps]


def test_nothing_stops_a_run_unless_asked():
    awful = step(reward=-9.0, entropy=0.0, kl=99.0, **{"completions/clipped_ratio": 1.0})
    assert looked(RunConfig(), [step(), awful] * 10) == [None] * 20


@pytest.mark.parametrize(("settings", "bad", "words"), [
    (dict(stop_reward_drop=0.3), dict(reward=0.1), "down from 0.5"),
    (dict(stop_entropy_below=0.05), dict(entropy=0.01), "mean entropy over the last 2 steps"),
    (dict(stop_kl_above=2.5), dict(kl=4.0), "mean KL over the last 2 steps"),
    (dict(stop_clipped_above=0.9), {"completions/clipped_ratio": 1.0}, "of the completions were cut off"),
])
def test_each_rule_waits_for_its_window_and_says_why(settings, bad, words):
    config = RunConfig(stop_window=2, **settings)
    said = looked(config, [step(), step(), step(**bad), step(**bad)])
    # the window's mean after one bad step: reward .3 > .5 − .3, entropy .505, KL 2.05, clipped .5: nothing is over yet
    assert said[:3] == [None, None, None] and words in said[3]


def test_a_single_bad_step_within_the_window_is_forgiven():
    config = RunConfig(stop_window=4, stop_reward_drop=0.3)
    assert looked(config, [step()] * 4 + [step(reward=0.0)] + [step()] * 4) == [None] * 9


def test_after_a_stop_a_resumed_run_has_a_fresh_window():
    config, rules = RunConfig(stop_window=2, stop_kl_above=1.0), StopRules()
    assert [bool(rules.look(step(kl=3.0), config)) for _ in range(4)] == [False, True, False, True]
