"""PPO beside GRPO: same rollouts and records, a critic that learns, what it costs, and checkpoints that hold it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lab.config import ConfigError, RunConfig
from lab.storage.recorder import open_run, recording
from lab.trainer import Trainer, TrainingError
from lab.training.critic import Critic
from lab.training.ppo_trainer import PPOTrainer
from tests.conftest import SMALL_RUN, letters, roll

PPO = dict(algorithm="ppo", loss_type="bnpo", beta=0.1)


def test_trainer_with_algorithm_ppo_is_a_ppo_trainer_and_its_first_rollout_is_grpos(make_trainer):
    ppo, grpo = make_trainer(**PPO), make_trainer()
    assert type(ppo) is PPOTrainer and type(grpo) is Trainer
    one, other = next(ppo), next(grpo)
    assert [c.token_ids for g in one.groups for c in g.completions] == [c.token_ids for g in other.groups for c in g.completions]
    assert one.metrics["reward"] == other.metrics["reward"]
    assert set(one.metrics) - set(other.metrics) == {
        "critic/loss", "critic/clip_ratio", "critic/grad_norm", "critic/value_mean", "critic/value_std", "critic/explained_variance",
        "critic/seconds", "critic/bytes"}


def test_advantages_of_a_step_by_hand(make_trainer):
    """γ = λ = 1: a token's return is the reward still to come, −β(log π − log π_ref) of later tokens included."""
    trainer = make_trainer(**PPO, gamma=1.0, lam=1.0)
    next(trainer)
    record = next(trainer)  # in the second step neither KL nor values are 0
    raw = []
    for completion in (c for g in record.groups for c in g.completions):
        arrays = completion.arrays
        per_token = -0.1 * (arrays["old_logps"] - arrays["ref_logps"])
        per_token[-1] += completion.reward
        returns = np.cumsum(per_token[::-1])[::-1]
        np.testing.assert_allclose(arrays["returns"], returns, atol=2e-5)
        raw.append(returns - arrays["values"])
    flat = np.concatenate(raw)
    white = (flat - flat.mean()) / flat.std(ddof=1)
    ours = np.concatenate([c.arrays["advantages"] for g in record.groups for c in g.completions])
    np.testing.assert_allclose(ours, white, atol=1e-3)
    first = record.groups[0].completions[0]
    assert first.advantage == pytest.approx(float(first.arrays["advantages"].mean()), abs=1e-5)


def test_kl_is_in_the_reward_and_not_in_the_loss(make_trainer):
    trainer = make_trainer(**PPO)
    next(trainer)
    trainer._apply_changes()
    for _ in trainer._sample():
        pass
    for _ in trainer._score():
        pass
    assert trainer._objective().beta == 0.0 and trainer.config.beta == 0.1


def test_a_completion_without_a_reward_moves_neither_policy_nor_critic(make_trainer):
    def nothing_applies(completions, **kwargs):
        return [None] * len(completions)

    trainer = make_trainer(**PPO, rewards=(nothing_applies,))
    before = trainer.policy.adapters.fingerprint(trainer.adapter), trainer.policy.adapters.fingerprint(trainer.critic.adapter)
    record = next(trainer)
    after = trainer.policy.adapters.fingerprint(trainer.adapter), trainer.policy.adapters.fingerprint(trainer.critic.adapter)
    assert before == after and not trainer.critic.head.weight.any() and record.metrics["grad_norm"] == 0


def test_a_new_critic_knows_nothing_and_learns_to_predict_the_return(policy):
    config = RunConfig(**SMALL_RUN)
    critic = Critic(policy, "judge", config)
    try:
        rollout = roll(policy)
        mask = rollout.completion_mask
        old = critic.values(rollout, max_tokens=4096)
        assert not old.any()
        returns = mask * torch.linspace(0.2, 0.8, len(rollout))[:, None]
        losses = []
        for _ in range(15):
            metrics = critic.backward(rollout, old, returns, mask, cliprange_value=10.0, max_grad_norm=1.0, max_tokens=64)
            losses.append(metrics["critic/loss"])
            critic.step(1e-2)
        # ½·mean of squares of the returns at first
        assert losses[0] == pytest.approx(float(0.5 * (returns.square().sum() / mask.sum())), rel=1e-5)
        assert losses[-1] < 0.1 * losses[0]
    finally:
        critic.close()


def test_the_critics_gradient_does_not_depend_on_micro_batches(policy):
    rollout, weights = roll(policy), []
    for max_tokens in (40, 10_000):
        critic = Critic(policy, "judge", RunConfig(**SMALL_RUN))
        critic.backward(rollout, torch.zeros_like(rollout.sampling_logps), rollout.completion_mask * 0.5, rollout.completion_mask,
                        cliprange_value=0.2, max_grad_norm=0.0, max_tokens=max_tokens)
        critic.step(0.0)
        moments = [critic.optimizer.state[p]["exp_avg"].clone() for p in critic.parameters]
        weights.append(torch.cat([m.flatten() for m in moments]))
        critic.close()
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-5)
    assert weights[0].abs().sum() > 0


def test_a_critics_gradient_that_is_not_finite_ends_the_run_and_moves_neither_of_the_two(make_trainer):
    def enormous(completions, **kwargs):  # finite, but its square is not
        return [1e30 * value for value in letters(completions)]

    trainer = make_trainer(**PPO, rewards=(enormous,))

    def prints():
        return [trainer.policy.adapters.fingerprint(name) for name in (trainer.adapter, trainer.critic.adapter)]

    before = prints()
    with pytest.raises(TrainingError, match="The critic's gradient of step 1 is not finite"):
        next(trainer)
    assert prints() == before and not trainer.critic.head.weight.any() and trainer.step == 0


def test_values_do_not_depend_on_padding_or_company(policy, adapter):
    critic = Critic(policy, "judge", RunConfig(**SMALL_RUN))
    try:
        with torch.no_grad():
            critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        rollout = roll(policy, adapter)
        together = critic.values(rollout, max_tokens=10_000)
        assert not together[rollout.completion_mask == 0].any() and together.any()
        for row in range(len(rollout)):
            alone = critic.values(rollout.rows(torch.tensor([row])), max_tokens=10_000)
            torch.testing.assert_close(alone[0], together[row, : alone.shape[1]], atol=2e-4, rtol=1e-4)
    finally:
        critic.close()


def test_what_the_critic_costs_is_counted(make_trainer):
    trainer = make_trainer(**PPO)
    metrics = next(trainer).metrics
    weights = sum(p.numel() for p in trainer.critic.parameters)
    # weight, gradient and two moments of AdamW in float32, and a step counter of 4 bytes for each tensor
    assert metrics["critic/bytes"] == 4 * 4 * weights + 4 * len(trainer.critic.parameters)
    assert 0 < metrics["critic/seconds"] < metrics["step_time"]


def test_six_steps_equal_three_and_three_resumed_across_a_used_rollout(make_trainer, policy, tmp_path):
    settings = dict(**PPO, num_iterations=2, max_steps=4)
    whole = make_trainer(**settings)
    records = list(whole)
    half = make_trainer(**settings)
    for _ in range(3):  # in the middle of the second rollout
        next(half)
    half.save(tmp_path / "saved")
    resumed = Trainer.load(tmp_path / "saved", policy=policy, adapter="resumed-ppo", rewards=half.config.rewards)
    make_trainer.adopt(resumed)
    last = next(resumed)
    assert type(resumed) is PPOTrainer and last.iteration == 1
    timed = ("step_time", "critic/seconds")
    assert {k: v for k, v in last.metrics.items() if k not in timed} == {k: v for k, v in records[-1].metrics.items() if k not in timed}
    for name in ("adapter", "critic"):
        prints = [policy.adapters.fingerprint(t.adapter if name == "adapter" else t.critic.adapter) for t in (whole, resumed)]
        assert prints[0] == prints[1]
    assert torch.equal(whole.critic.head.weight, resumed.critic.head.weight)


def test_value_estimates_are_stored_as_token_arrays(policy, tmp_path):
    config = RunConfig(**SMALL_RUN | PPO | dict(max_steps=1, rewards=("format",)))
    trainer = Trainer(config, policy=policy, adapter="stored-ppo")
    made = next(recording(trainer, "ppo", tmp_path))
    trainer.close()
    stored = open_run("ppo", tmp_path).step(1).groups[0].completions[0]
    theirs = made.groups[0].completions[0]
    for name in ("values", "returns", "advantages"):
        assert stored.arrays[name].tolist() == theirs.arrays[name].tolist() and len(stored.arrays[name]) == len(stored.token_ids)


def test_ppo_leaves_no_adapter_behind(policy):
    before = policy.adapters.names()
    trainer = Trainer(RunConfig(**SMALL_RUN | PPO), policy=policy, adapter="leaves")
    trainer.close()
    assert policy.adapters.names() == before


def test_settings_that_only_make_sense_within_groups_are_refused():
    with pytest.raises(ConfigError, match="ppo does not compare within groups"):
        RunConfig(algorithm="ppo", dead_groups="resample")
