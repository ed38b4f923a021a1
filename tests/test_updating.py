"""The second half of a step: micro-batches, the gradient, the learning rate, memory that runs short."""

import math

import pytest
import torch

from lab.config import RunConfig
from lab.trainer import TrainingError
from lab.training.objective import Objective
from lab.training.updating import schedule


def test_rows_without_advantage_are_left_out_of_the_backward_exactly(make_trainer, monkeypatch):
    """With β = 0 such a row adds exactly nothing, so leaving it out changes no bit of the gradient's value."""
    def one_group_only(completions, prompts, **kwargs):
        return [float(i) if prompts[i] == prompts[0] else 0.0 for i in range(len(completions))]

    trainer = make_trainer(beta=0.0, rewards=(one_group_only,))
    list(trainer._sample()), list(trainer._score())
    objective = trainer._objective()
    logps, entropy = trainer._backward(objective)
    mask = objective.mask
    skipped = [p.grad.clone() for p in trainer.parameters]
    assert int(objective.teaching().sum()) == 4
    whole, entropies = trainer.policy.logps(trainer.batch.rollout, trainer.adapter)
    trainer.optimizer.zero_grad()
    objective.loss(whole, entropies)[0].backward()
    assert any(g.abs().max() > 0 for g in skipped)
    for got, p in zip(skipped, trainer.parameters, strict=True):
        torch.testing.assert_close(got, p.grad, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(logps, whole.detach(), atol=2e-5, rtol=0)
    assert (entropy[mask.bool()] > 0).all()


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_token_budget_changes_memory_and_never_the_gradient(make_trainer, loss_type):
    gradients = []
    for budget in (16384, 200, 64):
        trainer = make_trainer(loss_type=loss_type, micro_batch_tokens=budget, beta=0.1)
        list(trainer._sample()), list(trainer._score())
        trainer.batch.ref_logps = trainer.batch.rollout.sampling_logps - 0.1
        trainer._backward(trainer._objective())
        gradients.append([p.grad.clone() for p in trainer.parameters])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(b, a, atol=1e-6, rtol=1e-4)


def test_schedules_by_hand():
    linear = RunConfig(max_steps=11, warmup_steps=3, lr_scheduler_type="linear", lr_end_ratio=0.1)
    # Warm-up in four equal parts, then from 1 to 0.1 over the remaining 8 steps, 7 intervals: −0.9/7 each.
    assert [schedule(s, linear) for s in (0, 1, 2)] == [0.25, 0.5, 0.75]
    assert schedule(3, linear) == 1.0 and schedule(10, linear) == pytest.approx(0.1)
    assert schedule(4, linear) == pytest.approx(1 - 0.9 / 7)
    cosine = RunConfig(max_steps=11, lr_scheduler_type="cosine")
    assert schedule(5, cosine) == pytest.approx(0.5) and schedule(10, cosine) == pytest.approx(0.0)
    assert {schedule(s, RunConfig()) for s in range(100)} == {1.0}


def test_a_gradient_that_is_not_finite_stops_the_run_and_spares_the_adapter(make_trainer, policy, monkeypatch):
    trainer = make_trainer()
    before = policy.adapters.fingerprint(trainer.adapter)
    real = Objective.loss
    monkeypatch.setattr(Objective, "loss", lambda *a, **k: (real(*a, **k)[0] * math.inf, real(*a, **k)[1]))
    with pytest.raises(TrainingError, match="not finite"):
        next(trainer)
    assert policy.adapters.fingerprint(trainer.adapter) == before


def test_running_out_of_memory_says_what_to_lower_and_the_run_can_go_on(make_trainer, monkeypatch):
    trainer = make_trainer()

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(trainer.policy, "logps", full)
        with pytest.raises(TrainingError, match="Step 1 needs more memory.*Lower prompts_per_step"):
            next(trainer)
    assert next(trainer).step == 1
