"""The loop: what a step does, what it reports, and that nothing else in the world changes it."""

import json
import math

import numpy as np
import pytest
import torch

from lab.config import ConfigError
from lab.presets import preset
from lab.records import GroupSampled, GroupScored, ScoringFailed, StepRecord, TokensSampled
from lab.rewards import RewardError
from lab.rollout import Rollout
from lab.trainer import Trainer

from .conftest import letters


def numbers(records):
    return [{k: v for k, v in record.metrics.items() if k != "step_time"} for record in records]


def completions_of(record):
    return [c for group in record.groups for c in group.completions]


def constant(completions, **kwargs):
    return [1.0] * len(completions)


# -- one step


def test_a_step_reports_trls_metrics_and_openable_groups(make_trainer):
    record = next(make_trainer())
    assert {"loss", "grad_norm", "learning_rate", "num_tokens", "step_time", "completions/mean_length",
            "completions/clipped_ratio", "completions/mean_terminated_length", "rewards/letters/mean", "rewards/letters/std",
            "reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean",
            "clip_ratio/region_mean", "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max",
            "groups/live", "groups/total"} <= set(record.metrics)
    assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in record.metrics.values())
    assert record.step == 1 and record.iteration == 0 and len(record.groups) == 2
    for group in record.groups:
        rewards = [c.reward for c in group.completions]
        assert group.mean == pytest.approx(np.mean(rewards)) and group.std == pytest.approx(np.std(rewards, ddof=1))
        for c in group.completions:
            assert c.advantage == pytest.approx((c.reward - group.mean) / (group.std + 1e-4), abs=1e-5)
            assert set(c.arrays) == {"sampling_logps", "old_logps", "logps", "ref_logps", "entropy"}
            assert all(a.dtype == np.float32 and len(a) == len(c.token_ids) for a in c.arrays.values())


def test_first_step_has_kl_exactly_zero_and_later_ones_have_not(make_trainer):
    first, second = (lambda t: (next(t), next(t)))(make_trainer(temperature=0.6))
    assert first.metrics["kl"] == 0.0
    assert all(np.array_equal(c.arrays["logps"], c.arrays["ref_logps"]) for c in completions_of(first))
    assert second.metrics["kl"] > 0


def test_what_applies_to_nothing_is_nan_in_the_step_the_store_and_the_frame(make_trainer, tmp_path):
    import lab

    trainer = make_trainer(rewards=("code",), max_steps=2, stop_reward_drop=0.1, stop_window=1)  # these rows have no tests to run
    run = lab.record(trainer, "none", tmp_path)
    assert run.status == "finished"
    step = run.step(1)
    names = ["reward", "reward_std", "rewards/code/mean", "rewards/code/std"]
    assert all(math.isnan(step.metrics[name]) for name in names) and math.isnan(round(step.metrics["reward"], 2))
    assert run.metrics[names].isna().all(axis=None) and set(run.metrics.dtypes[names]) == {np.dtype("float64")}
    assert [(group.mean, group.std, group.dead) for group in step.groups] == [(None, None, True)] * len(step.groups)
    history = json.loads((run.folder / "trainer_state.json").read_text())["log_history"]
    assert "reward" not in history[0] and history[0]["groups/live"] == 0


def test_kl_is_measured_also_when_beta_is_zero(make_trainer):
    trainer = make_trainer(beta=0.0)
    next(trainer)
    assert next(trainer).metrics["kl"] > 0


def test_sampler_and_trainer_agree_at_any_temperature(make_trainer):
    """A log-prob taken without dividing by the temperature would differ by tenths."""
    assert next(make_trainer(temperature=0.6)).metrics["sampling/sampling_logp_difference/max"] < 1e-4


def test_the_adapter_moves_and_the_base_does_not(make_trainer, policy):
    trainer = make_trainer()
    before = policy.adapters.fingerprint(trainer.adapter)
    base = {name: p.clone() for name, p in policy.model.named_parameters() if "lora_" not in name}
    next(trainer)
    assert policy.adapters.fingerprint(trainer.adapter) != before
    assert all(torch.equal(p, base[name]) for name, p in policy.model.named_parameters() if "lora_" not in name)


def test_dead_groups_and_no_beta_leave_the_adapter_bit_identical(make_trainer, policy):
    trainer = make_trainer(beta=0.0)
    next(trainer)  # AdamW has momentum now, which alone would move it
    before = policy.adapters.fingerprint(trainer.adapter)
    trainer.change(rewards=(constant,))
    record = next(trainer)
    assert record.metrics["groups/live"] == 0 and record.metrics["grad_norm"] == 0.0
    assert record.metrics["frac_reward_zero_std"] == 1.0
    assert policy.adapters.fingerprint(trainer.adapter) == before


def test_the_stop_token_is_trained_and_padding_is_not(make_trainer, policy):
    """A batch of one ended and one cut-off completion: the gradient is that of exactly the counted tokens."""
    trainer = make_trainer(beta=0.0, max_completion_length=40)
    prompt = policy.prompt_ids("What is 1 + 2?", "")
    ids, mask = policy.pad_prompts([prompt])

    def rollout(filler):
        return Rollout(ids, mask, torch.tensor([[5, 1, filler], [6, 7, 8]]), torch.tensor([[1, 1, 0], [1, 1, 1]]),
                       torch.tensor([True, False]), torch.zeros(2, 3), torch.tensor([0, 0]), 1.0)

    logps = policy.logps(rollout(0), trainer.adapter)[0]
    assert logps[0, 1] != 0 and logps[0, 2] == 0  # the stop token has a log-prob, padding has none
    assert torch.equal(logps, policy.logps(rollout(99), trainer.adapter)[0])
    logps[0, 1].backward()
    assert any(p.grad.abs().max() > 0 for p in trainer.parameters)
    trainer.optimizer.zero_grad()

    list(trainer._sample()), list(trainer._score())  # and of completions that the model wrote, the last token is the stop token
    sampled, objective = trainer.batch.rollout, trainer._objective()
    logps = policy.logps(sampled, trainer.adapter)[0].detach().requires_grad_()
    objective.loss(logps, torch.zeros_like(logps))[0].backward()
    ended = sampled.finished.nonzero().squeeze(1)
    last = sampled.lengths[ended] - 1
    assert len(ended) and set(sampled.completion_ids[ended, last].tolist()) <= set(policy.eos_ids)
    assert (logps.grad[ended, last] != 0).any() and not logps.grad[~sampled.completion_mask.bool()].any()


def test_cut_off_completions_can_be_masked_out(make_trainer):
    trainer = make_trainer(mask_truncated_completions=True, beta=0.5, max_completion_length=2)
    record = next(trainer)
    cut = [c for c in completions_of(record) if not c.finished]
    assert cut and all(c.reward is not None and c.arrays["logps"].any() for c in cut)
    if len(cut) == 8:
        assert record.metrics["loss"] == 0.0 and record.metrics["kl"] == 0.0


# -- determinism and turns


def test_equal_configs_give_bit_equal_runs(make_trainer, policy):
    one, two = make_trainer(), make_trainer()
    records = list(one)
    torch.manual_seed(999)  # the global generator has no say
    assert numbers(records) == numbers(list(two))
    assert policy.adapters.fingerprint(one.adapter) == policy.adapters.fingerprint(two.adapter)


def test_another_seed_gives_another_run(make_trainer):
    assert numbers([next(make_trainer())]) != numbers([next(make_trainer(seed=43))])


def test_two_trainers_on_one_policy_take_turns_without_noticing(make_trainer, policy):
    settings = (dict(), dict(seed=7, beta=0.0, loss_type="dapo", lora_r=8, temperature=0.8))
    alone = [make_trainer(**s) for s in settings]
    expected = [list(trainer) for trainer in alone]
    together = [make_trainer(**s) for s in settings]
    got, streams = [[], []], [trainer.events() for trainer in together]
    while streams[0] is not None or streams[1] is not None:
        for i, stream in enumerate(streams):
            event = next(stream, None) if stream is not None else None
            if event is None:
                streams[i] = None
            elif isinstance(event, StepRecord):
                got[i].append(event)
    for i in (0, 1):
        assert numbers(got[i]) == numbers(expected[i])
        assert policy.adapters.fingerprint(together[i].adapter) == policy.adapters.fingerprint(alone[i].adapter)


def test_iterating_goes_on_where_it_was_left(make_trainer):
    trainer = make_trainer(max_steps=3)
    for record in trainer:
        assert record.step == 1
        break
    assert [r.step for r in trainer] == [2, 3]
    assert next(trainer, None) is None


def test_events_come_in_order(make_trainer):
    kinds = [type(event) for event in make_trainer(max_steps=1).events()]
    assert kinds[0] is TokensSampled and kinds[-1] is StepRecord
    order = [TokensSampled, GroupSampled, GroupScored, StepRecord]
    assert [order.index(kind) for kind in kinds] == sorted(order.index(kind) for kind in kinds)
    assert kinds.count(GroupSampled) == kinds.count(GroupScored) == 2


def test_partial_texts_end_as_the_completions(make_trainer):
    last, groups = None, []
    for event in make_trainer(max_steps=1).events():
        last = event if isinstance(event, TokensSampled) else last
        if isinstance(event, GroupSampled):
            groups.append(event.group)
    for g, i, text, n_tokens, _ in last.partial:
        completion = groups[g].completions[i]
        assert n_tokens == len(completion.token_ids)
        assert completion.text.startswith(text.rstrip("\ufffd"))  # a character may still be unfinished


# -- several updates per rollout


def test_a_second_update_uses_the_same_completions_and_frozen_old_logps(make_trainer):
    trainer = make_trainer(num_iterations=2, max_steps=3)
    first, second, third = list(trainer)
    kept = [c.arrays["logps"] for c in completions_of(first)]
    assert [first.iteration, second.iteration, third.iteration] == [0, 1, 0]
    assert [c.token_ids for c in completions_of(second)] == [c.token_ids for c in completions_of(first)]
    for c, old in zip(completions_of(second), kept, strict=True):  # the first record keeps its own numbers
        assert np.array_equal(c.arrays["old_logps"], old) and not np.array_equal(c.arrays["logps"], old)
    assert [c.token_ids for c in completions_of(third)] != [c.token_ids for c in completions_of(second)]
    assert second.metrics["num_tokens"] == first.metrics["num_tokens"] < third.metrics["num_tokens"]


# -- rewards that break


def broken(completions, **kwargs):
    raise ZeroDivisionError("seven")


def test_a_broken_reward_raises_its_error_and_the_same_completions_are_scored_once_mended(make_trainer):
    trainer = make_trainer(rewards=(broken,))
    for _ in range(2):
        with pytest.raises(RewardError, match="broken"):
            next(trainer)
    waiting = [c.token_ids for g in trainer.batch.groups for c in g.completions]
    trainer.change(rewards=(letters,))
    record = next(trainer)
    assert record.step == 1 and [c.token_ids for c in completions_of(record)] == waiting
    assert "rewards/letters/mean" in record.metrics


def test_as_an_event_the_failure_can_be_answered_in_place(make_trainer):
    trainer = make_trainer(rewards=(broken,), max_steps=1)
    kinds = []
    for event in trainer.events():
        kinds.append(type(event))
        if isinstance(event, ScoringFailed) and kinds.count(ScoringFailed) == 2:
            trainer.change(rewards=(letters,))
    assert kinds.count(ScoringFailed) == 2 and kinds[-1] is StepRecord and kinds.count(GroupSampled) == 2


def test_a_reward_that_the_advantage_rule_cannot_take_is_told_and_can_be_changed_like_a_broken_one(make_trainer):
    def fewer(completions, **kwargs):
        return [-float(i) for i in range(len(completions))]

    trainer = make_trainer(rewards=(fewer,), advantage_rule="maxrl")
    with pytest.raises(RewardError, match="MaxRL divides by the mean reward .* row 1 has -1. Choose rewards"):
        next(trainer)
    trainer.change(rewards=(letters,))
    assert next(trainer).metrics["rewards/letters/mean"] > 0


def test_a_reward_that_does_not_apply_is_no_zero(make_trainer):
    def sometimes(completions, **kwargs):
        return [None if i == 0 else float(i) for i in range(len(completions))]

    record = next(make_trainer(rewards=(sometimes,)))
    first = completions_of(record)[0]
    assert first.reward is None and first.advantage == 0.0
    assert record.metrics["rewards/sometimes/mean"] == 4.0  # 1 … 7


# -- live changes


def test_live_changes_take_effect_at_the_next_step(make_trainer):
    trainer = make_trainer()
    next(trainer)
    assert trainer.change(learning_rate=5e-4, max_completion_length=3) == 2
    record = next(trainer)
    assert record.metrics["learning_rate"] == 5e-4 and record.metrics["completions/max_length"] <= 3
    next(trainer.events())  # in the middle of step 3
    assert trainer.change(beta=0.5) == 4
    next(trainer)
    assert trainer.config.beta == 0.04
    next(trainer)
    assert trainer.config.beta == 0.5
    assert trainer.changes == [(2, dict(learning_rate=5e-4, max_completion_length=3)), (4, dict(beta=0.5))]


def test_what_cannot_change_is_refused_at_once(make_trainer):
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="num_generations cannot be changed"):
        trainer.change(num_generations=16)
    with pytest.raises(ConfigError, match="learning_rate"):
        trainer.change(learning_rate=-1.0)
    with pytest.raises(ConfigError, match="reward_weights"):
        trainer.change(reward_weights=(1.0, 2.0))


def test_step_time_leaves_out_what_others_did_between_two_events(make_trainer, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("lab.trainer.time.perf_counter", lambda: clock[0])
    for event in make_trainer(max_steps=1).events():
        clock[0], last = clock[0] + 1000, event  # another run's turn
    assert last.metrics["step_time"] == 0.0


# -- learning


def test_a_reward_that_favours_one_token_raises_its_probability(make_trainer, policy):
    ids = policy.prompt_ids("What is 1 + 2?", "")

    def probabilities(adapter):
        with torch.no_grad(), policy.adapters.active(adapter):
            return policy.model(torch.tensor([ids])).logits[0, -1].softmax(-1)

    token = int(probabilities(None).argsort(descending=True)[1])  # the second likeliest first token: found, but not mastered

    def favour(completion_ids, **kwargs):
        return [float(ids[0] == token) for ids in completion_ids]

    trainer = make_trainer(rewards=(favour,), num_generations=16, max_completion_length=2, max_steps=20, beta=0.0,
                           task=["What is 1 + 2?"])
    before = probabilities(None)[token].item()
    list(trainer)
    after = probabilities(trainer.adapter)[token].item()
    assert before < 0.5 and after > before + 0.4


def test_the_first_run_learns_to_add(policy):
    """The embedded model, add2, fixed seed: it starts by guessing and ends by working sums out."""
    config = preset("first-run").config(max_steps=25, seed=42)
    trainer = Trainer(config, policy=policy, adapter="first-run")
    rewards = [record.metrics["reward"] for record in trainer]
    trainer.close()
    assert rewards[0] <= 0.45
    assert np.mean(rewards[-5:]) >= 0.75


def test_a_4bit_run_on_cpu(policy_4bit):
    config = preset("first-run").config(prompts_per_step=2, num_generations=4, max_steps=2, seed=1)
    trainer = Trainer(config, policy=policy_4bit, adapter="four-bit")
    before = policy_4bit.adapters.fingerprint("four-bit")
    first, second = list(trainer)
    after = policy_4bit.adapters.fingerprint("four-bit")
    trainer.close()
    assert all(math.isfinite(c.reward) for record in (first, second) for c in completions_of(record))
    assert first.metrics["kl"] == 0.0 and math.isfinite(second.metrics["kl"])
    assert after != before
