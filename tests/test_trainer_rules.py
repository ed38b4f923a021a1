"""Every rule of the algorithm through the product's own sampling, scoring and update, on the tiny model."""

import math

import numpy as np
import pytest
import torch

from lab.config import RunConfig
from lab.presets import PRESETS
from lab.records import GroupSampled, TokensSampled
from lab.trainer import Trainer

from .conftest import letters
from .test_checkpoint import arrays, numbers, resumed


def second(completions, **kwargs):
    """Another reward of the same completions: short ones."""
    return [1 / (1 + len(message[0]["content"])) for message in completions]


def halves(completions, **kwargs):
    """Step rewards: the first half of a text, then all of it, by their share of letters."""
    return [[(end, sum(c.isalpha() for c in text[:end]) / end) for end in sorted({max(1, len(text) // 2), len(text)})] if text else None
            for text in (message[0]["content"] for message in completions)]


def completions_of(record):
    return [c for group in record.groups for c in group.completions]


RULES = {
    "rloo": dict(advantage_rule="rloo"),
    "maxrl": dict(advantage_rule="maxrl"),
    "opo": dict(advantage_rule="opo"),
    "rank": dict(advantage_rule="rank"),
    "batch scaling": dict(scale_rewards="batch"),
    "gdpo": dict(multi_objective_aggregation="normalize_then_sum", rewards=(letters, second)),
    "luspo": dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3),
    "cispo": dict(loss_type="cispo", epsilon_high=5.0),
    "sapo": dict(loss_type="sapo"),
    "vespo": dict(loss_type="vespo"),
    "dppo": dict(loss_type="dppo"), "dppo by KL": dict(loss_type="dppo_kl", epsilon=0.05),
    "grpo": dict(), "bnpo": dict(loss_type="bnpo"), "dapo": dict(loss_type="dapo", epsilon_high=0.28),
    "dr_grpo": dict(loss_type="dr_grpo", scale_rewards="none"),
    "gspo": dict(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    "delta": dict(delta=4.0),
    "k1": dict(kl_estimator="k1"), "k2": dict(kl_estimator="k2"), "k3 corrected": dict(kl_estimator="k3_corrected"),
    "KL in the reward": dict(kl_placement="reward"),
    "undecided tokens": dict(top_entropy_quantile=0.2),
    "entropy bonus": dict(entropy_coef=0.1),
    "adaptive bonus": dict(use_adaptive_entropy=True, entropy_target=1.5, entropy_coef_delta=0.01),
    "off-policy mask": dict(off_policy_mask_threshold=0.01),
    "snapshot": dict(reference="snapshot", ref_model_sync_steps=2),
    "ema": dict(reference="ema", ref_model_sync_steps=1, ref_model_mixup_alpha=0.3),
    "skip": dict(dead_groups="skip"),
    "steps": dict(rewards=(halves,)),
    "steps and outcome": dict(rewards=(halves, letters), reward_weights=(0.5, 1.0)),
}


@pytest.mark.parametrize("settings", RULES.values(), ids=RULES.keys())
def test_every_rule_moves_the_adapter_and_three_steps_and_three_resumed_are_six(make_trainer, policy, tmp_path, settings):
    """Two updates per rollout, so that step 3 ends in the middle of one; four steps do: 3 + 1."""
    settings = dict(num_iterations=2, max_steps=4, max_completion_length=8) | settings
    whole = make_trainer(**settings)
    before = policy.adapters.fingerprint(whole.adapter)
    expected = list(whole)
    assert policy.adapters.fingerprint(whole.adapter) != before
    assert all(math.isfinite(v) for record in expected for v in record.metrics.values())

    first = make_trainer(**settings)
    got = [next(first) for _ in range(3)]
    first.save(tmp_path / "run")
    rest = resumed(make_trainer, tmp_path / "run", policy, rewards=settings.get("rewards", (letters,)))
    got += list(rest)
    assert numbers(got) == numbers(expected)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(got[-1]), arrays(expected[-1]), strict=True))
    assert policy.adapters.fingerprint(rest.adapter) == policy.adapters.fingerprint(whole.adapter)


@pytest.mark.parametrize("name", [p.name for p in PRESETS.values() if p.group == "paper"])
def test_every_papers_preset_runs_a_step(make_trainer, name):
    settings = {k: v for k, v in PRESETS[name].settings.items() if k not in ("num_generations", "prompts_per_step",
                                                                            "max_completion_length", "learning_rate", "save_steps")}
    record = next(make_trainer(**settings, max_completion_length=6))
    assert math.isfinite(record.metrics["loss"]) and record.metrics["kl"] == 0.0


# -- references


@pytest.mark.parametrize("kind", ["base", "start", "snapshot", "ema"])
def test_kl_of_step_one_is_exactly_zero_whatever_the_reference(make_trainer, kind):
    assert next(make_trainer(reference=kind)).metrics["kl"] == 0.0


@pytest.mark.parametrize("kind", ["start", "snapshot", "ema"])
def test_kl_of_a_continued_adapter_begins_at_zero_and_against_the_base_it_does_not(make_trainer, tmp_path, kind):
    first = make_trainer(max_steps=2)
    list(first)
    first.save(tmp_path / "a")
    assert next(make_trainer(adapter=str(tmp_path / "a"), reference=kind)).metrics["kl"] == 0.0
    assert next(make_trainer(adapter=str(tmp_path / "a"), reference="base")).metrics["kl"] > 0


def test_a_snapshot_becomes_the_policy_every_n_steps(make_trainer, policy):
    trainer = make_trainer(reference="snapshot", ref_model_sync_steps=2)
    start = policy.adapters.fingerprint(trainer.reference)
    kl = [next(trainer).metrics["kl"] for _ in range(3)]
    assert kl[0] == 0.0 and kl[1] > 0 and kl[2] == 0.0  # step 3 is measured against the policy as it was after step 2
    assert policy.adapters.fingerprint(trainer.reference) != start


def test_an_ema_reference_lies_between_start_and_policy(make_trainer, policy):
    trainer = make_trainer(reference="ema", ref_model_sync_steps=1, ref_model_mixup_alpha=0.25)
    start = {k: p.clone() for k, p in policy.adapters.parameters(trainer.reference).items()}
    next(trainer)
    now, reference = (policy.adapters.parameters(name) for name in (trainer.adapter, trainer.reference))
    for key, value in reference.items():
        torch.testing.assert_close(value.data, 0.25 * now[key].data + 0.75 * start[key].data)


def test_a_branch_may_ask_for_another_reference(make_trainer, policy, tmp_path):
    first = make_trainer(max_steps=2)
    list(first)
    first.save(tmp_path / "run")
    branch = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,), max_steps=3, reference="snapshot")
    assert next(branch).metrics["kl"] == 0.0  # measured against the branch's own start


# -- KL in the reward


def test_kl_in_the_reward_is_taken_off_each_completion_and_shown(make_trainer):
    trainer = make_trainer(kl_placement="reward", beta=0.5, advantage_rule="rloo")
    next(trainer)
    list(trainer._sample()), list(trainer._score())
    assert trainer._objective().beta == 0.0  # and not in the loss as well
    record = next(trainer)
    for c in completions_of(record):
        penalty = 0.5 * float((c.arrays["old_logps"].astype(float) - c.arrays["ref_logps"]).sum())
        assert c.extra["kl_penalty"] == pytest.approx(penalty, abs=1e-5)
        assert c.reward == pytest.approx(c.rewards["letters"] - penalty, abs=1e-5)
    group = record.groups[0]
    rewards = [c.reward for c in group.completions]
    for i, c in enumerate(group.completions):  # leave one out
        assert c.advantage == pytest.approx(rewards[i] - np.mean(rewards[:i] + rewards[i + 1:]), abs=1e-6)


# -- entropy


def test_an_entropy_bonus_alone_makes_the_policy_less_decided(make_trainer):
    def nothing(completions, **kwargs):
        return [0.0] * len(completions)

    trainer = make_trainer(rewards=(nothing,), beta=0.0, entropy_coef=1.0, max_steps=5, seed=3)
    records = list(trainer)
    assert records[0].metrics["policy_loss"] == 0.0
    assert records[0].metrics["loss"] == pytest.approx(-records[0].metrics["entropy"], rel=1e-5)
    assert np.mean([r.metrics["entropy"] for r in records[-2:]]) > records[0].metrics["entropy"] + 0.05


def test_the_adaptive_bonus_grows_below_its_target(make_trainer):
    records = list(make_trainer(use_adaptive_entropy=True, entropy_target=100.0, entropy_coef_delta=0.25, max_steps=3))
    assert [r.metrics["entropy_coef"] for r in records] == [0.0, 0.25, 0.5]


def test_only_the_undecided_tokens_are_learned_from(make_trainer):
    trainer = make_trainer(top_entropy_quantile=0.2, beta=0.0)
    list(trainer._sample()), list(trainer._score())
    objective = trainer._objective()
    kept, tokens = int(objective.undecided.sum()), int(objective.mask.sum())
    assert 0 < kept <= math.ceil(0.2 * tokens) + 1
    logps = trainer.policy.logps(objective.rollout, trainer.adapter)[0].detach().requires_grad_()
    objective.loss(logps, torch.zeros_like(logps))[0].backward()
    assert not logps.grad[objective.undecided == 0].any()


# -- step rewards


def test_each_token_gets_the_steps_that_end_at_it_or_later(make_trainer):
    def at_the_second_token(completions, completion_ids, **kwargs):
        # all texts of the tiny model's prompts have at least two characters here: steps end at character 1 and at the end
        return [[(1, 1.0), (len(m[0]["content"]), float(i % 2))] if len(m[0]["content"]) > 1 else None for i, m in enumerate(completions)]

    record = next(make_trainer(rewards=(at_the_second_token,), scale_rewards="none"))
    for group in record.groups:
        values = [v for c in group.completions for _, v in c.steps.get("at_the_second_token", [])]
        for c in group.completions:
            (_, first), (_, last) = c.steps["at_the_second_token"]
            tokens = c.arrays["advantages"]
            centred = [first - np.mean(values), last - np.mean(values)]
            assert tokens[0] == pytest.approx(sum(centred), abs=1e-6)
            ended = [t for t in tokens if t == pytest.approx(centred[1], abs=1e-6)]
            assert len(tokens) == len(c.token_ids) and ended
            assert c.advantage == pytest.approx(float(np.mean(tokens)), abs=1e-6)


def test_outcome_and_process_rewards_add_up(make_trainer):
    both = next(make_trainer(rewards=(halves, letters), reward_weights=(0.5, 1.0)))
    alone = next(make_trainer(rewards=(letters,)))
    steps = next(make_trainer(rewards=(halves,)))
    for c, outcome, process in zip(*map(completions_of, (both, alone, steps)), strict=True):
        np.testing.assert_allclose(c.arrays["advantages"], 0.5 * process.arrays["advantages"] + outcome.advantage, atol=1e-5)


def test_steps_of_the_working_are_rewarded_at_their_own_tokens(policy):
    config = RunConfig(model="tiny", task="add2", rewards=("steps(each=True)",), num_generations=16, prompts_per_step=4,
                       max_completion_length=40, max_steps=1, lora_r=4)
    trainer = Trainer(config, policy=policy, adapter="steps-each")
    record = next(trainer)
    trainer.close()
    stepped = [c for c in completions_of(record) if c.steps]
    assert stepped and all(len(c.arrays["advantages"]) == len(c.token_ids) for c in stepped)


# -- groups without signal


def tied(completions, **kwargs):
    return [1.0] * len(completions)


def tied_for_the_first_prompt(prompts, completions, **kwargs):
    """The first group of a batch is tied, the others are not."""
    return [1.0 if prompt == prompts[0] else float(i % 4) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("kind", ["keep", "skip", "resample", "replace"])
def test_dead_groups_and_no_beta_leave_the_adapter_bit_identical(make_trainer, policy, kind):
    trainer = make_trainer(beta=0.0, dead_groups=kind, max_resamples=2)
    next(trainer)  # AdamW has momentum now, which alone would move it
    before, tokens = policy.adapters.fingerprint(trainer.adapter), trainer.num_tokens
    trainer.change(rewards=(tied,))
    record = next(trainer)
    assert record.metrics["groups/live"] == 0 and record.metrics["grad_norm"] == 0.0
    assert policy.adapters.fingerprint(trainer.adapter) == before
    if kind in ("resample", "replace"):
        assert record.metrics["groups/resampled"] == 4  # two groups, two rounds
        shown = sum(len(g.prompt_ids) + len(c.token_ids) for g in record.groups for c in g.completions)
        assert record.metrics["num_tokens"] - tokens > 2 * shown  # three samplings were paid for


def test_skipping_dead_groups_keeps_kl_from_pushing_alone(make_trainer, policy):
    settings = dict(beta=1.0, learning_rate=1e-2)
    moved = {}
    for kind in ("keep", "skip"):
        trainer = make_trainer(dead_groups=kind, **settings)
        next(trainer)
        before = policy.adapters.fingerprint(trainer.adapter)
        trainer.change(rewards=(tied,))
        next(trainer)
        moved[kind] = policy.adapters.fingerprint(trainer.adapter) != before
    assert moved == {"keep": True, "skip": False}


def test_a_dead_group_is_sampled_again_with_a_new_prompt_at_most_so_often(make_trainer):
    kept = next(make_trainer(rewards=(tied_for_the_first_prompt,)))
    trainer = make_trainer(rewards=(tied_for_the_first_prompt,), dead_groups="resample", max_resamples=3)
    record = next(trainer)
    assert record.metrics["groups/resampled"] == 3 and record.metrics["groups/live"] == 1
    assert [g.index for g in record.groups] == [0, 1]
    assert record.groups[0].prompt != kept.groups[0].prompt and record.groups[1].prompt == kept.groups[1].prompt
    for c in completions_of(record):  # texts and tensors are of the same completions
        np.testing.assert_allclose(c.arrays["sampling_logps"], c.arrays["logps"], atol=1e-4)


def test_a_group_sampled_again_is_written_under_the_number_of_the_one_it_replaces(make_trainer):
    def tied_for_the_last_prompt(prompts, completions, **kwargs):
        return [1.0 if prompt == prompts[-1] else float(i % 4) for i, prompt in enumerate(prompts)]

    trainer = make_trainer(rewards=(tied_for_the_last_prompt,), dead_groups="resample", max_resamples=1, max_steps=1)
    *events, record = trainer.events()
    sampled = [event.group.index for event in events if isinstance(event, GroupSampled)]
    last = [event for event in events if isinstance(event, TokensSampled)][-1]
    assert sampled == [0, 1, 1] and {place for place, *_ in last.partial} == {1}
    assert last.prompts == [group.prompt for group in record.groups]
    assert {text for _, _, text, _, _ in last.partial} <= {c.text for c in record.groups[1].completions}


def test_replaced_groups_take_prompts_that_had_signal(make_trainer):
    trainer = make_trainer(dead_groups="replace", max_resamples=1, rewards=(letters,))
    live = [g.prompt for g in next(trainer).groups if not g.dead]
    trainer.change(rewards=(tied,))
    record = next(trainer)
    assert live and {g.prompt for g in record.groups} & set(live)
    assert record.metrics["groups/resampled"] == 2


@pytest.mark.parametrize("kind", ["resample", "replace"])
def test_resampled_runs_resume_bit_equal_also_from_the_middle_of_a_step(make_trainer, policy, tmp_path, kind):
    settings = dict(rewards=(tied_for_the_first_prompt,), dead_groups=kind, max_resamples=2, max_steps=3, max_completion_length=6)
    whole = make_trainer(**settings)
    expected = list(whole)
    first = make_trainer(**settings)
    got, stream = [next(first)], first.events()
    while first.batch is None or first.batch.rounds < 1:
        next(stream)
    first.save(tmp_path / "run")  # one round done, one to come
    rest = resumed(make_trainer, tmp_path / "run", policy, rewards=settings["rewards"])
    got += list(rest)
    assert numbers(got) == numbers(expected)
    assert policy.adapters.fingerprint(rest.adapter) == policy.adapters.fingerprint(whole.adapter)


def test_completions_that_grow_alike_are_measured(make_trainer):
    metrics = next(make_trainer(temperature=0.05)).metrics
    varied = next(make_trainer(temperature=2.0)).metrics
    assert metrics["groups/distinct_completions"] < varied["groups/distinct_completions"] <= 1.0


# -- stopping by itself


def test_a_run_that_collapses_stops_with_a_sentence_and_can_be_resumed(make_trainer, policy, tmp_path):
    trainer = make_trainer(stop_clipped_above=0.0, stop_window=2, max_completion_length=2, max_steps=5)
    records = list(trainer)
    assert [r.step for r in records] == [1, 2] and records[0].stopped is None
    assert "cut off. Raise max_completion_length" in records[1].stopped == trainer.stopped
    trainer.save(tmp_path / "run")
    rest = resumed(make_trainer, tmp_path / "run", policy, rewards=(letters,), stop_clipped_above=None)
    assert [r.step for r in rest] == [3, 4, 5]
