"""The fast path is the plain path, only faster: log-probabilities, gradients and greedy text, over shapes and model families."""

from __future__ import annotations

import pytest
import torch

from lab.policy import Policy
from lab.rollout import Rollout, pad_left


def rollout_of(policy: Policy, groups: list[tuple[int, list[int]]], temperature: float = 1.0) -> Rollout:
    """Random tokens: for each group its prompt's length and the lengths of its completions."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, policy.vocab_size, (length,), generator=generator).tolist() for length, _ in groups]
    lengths = torch.tensor([c for _, completions in groups for c in completions])
    prompt_ids, prompt_mask = pad_left(prompts, policy.pad_id, policy.device)
    width = int(lengths.max())
    return Rollout(
        prompt_ids=prompt_ids, prompt_mask=prompt_mask,
        completion_ids=torch.randint(3, policy.vocab_size, (len(lengths), width), generator=generator),
        completion_mask=(torch.arange(width) < lengths[:, None]).long(),
        finished=torch.ones(len(lengths), dtype=torch.bool), sampling_logps=torch.zeros(len(lengths), width),
        group_ids=torch.tensor([i for i, (_, completions) in enumerate(groups) for _ in completions]), temperature=temperature,
    )


SHAPES = {
    "one group, equal lengths": [(20, [12] * 8)],
    "ragged": [(20, [1, 5, 12, 3, 9, 2, 12, 7])],
    "several prompts": [(20, [4, 6]), (7, [9, 1]), (13, [5, 5])],
    "left-over row": [(11, [6, 2, 8]), (5, [4])],
    "G of 16": [(9, list(range(1, 17)))],
}


def logps_and_gradients(policy: Policy, compute, rollout: Rollout, adapter: str):
    parameters = policy.adapters.parameters(adapter)
    logps, entropy = compute(rollout, adapter)
    weight = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    gradients = torch.autograd.grad((logps * weight).sum(), list(parameters.values()))
    return logps.detach(), entropy.detach(), dict(zip(parameters, gradients, strict=True))


def assert_same(policy: Policy, rollout: Rollout, adapter: str) -> None:
    fast, fast_entropy, fast_gradients = logps_and_gradients(policy, policy.logps, rollout, adapter)
    plain, plain_entropy, plain_gradients = logps_and_gradients(policy, policy.plain_logps, rollout, adapter)
    assert (fast - plain).abs().max() < 1e-4
    assert (fast_entropy - plain_entropy).abs().max() < 1e-4
    for key, gradient in plain_gradients.items():
        assert (fast_gradients[key] - gradient).norm() <= 1e-4 * gradient.norm(), key


@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_and_lora_gradients_are_those_of_the_plain_path(policy, adapter, shape):
    assert policy.fast.body is not None, policy.fast.reason
    assert_same(policy, rollout_of(policy, SHAPES[shape], temperature=0.8), adapter)


def test_the_base_without_adapter_is_also_the_same(policy, adapter):
    rollout = rollout_of(policy, SHAPES["ragged"])
    with torch.no_grad():
        assert (policy.logps(rollout, None)[0] - policy.plain_logps(rollout, None)[0]).abs().max() < 1e-4
        assert (policy.logps(rollout, adapter)[0] - policy.logps(rollout, None)[0]).abs().max() > 0.01, "the adapter does nothing"


def test_micro_batches_keep_every_row_once_and_within_the_budget(policy):
    rollout = rollout_of(policy, SHAPES["several prompts"] + SHAPES["ragged"])
    for budget in (1, 30, 60, 10_000):
        batches = [rows.tolist() for rows in policy.micro_batches(rollout, budget)]
        assert sum(batches, []) == list(range(len(rollout)))
        for rows in batches:
            groups = {rollout.group_ids[i].item() for i in rows}
            tokens = rollout.lengths[rows].sum() + rollout.prompt_mask[list(groups)].sum()
            assert tokens <= budget or len(rows) == 1
    # 60 tokens: 20 + 4 + 6 and 7 + 9 + 1 fit together, 13 + 5 + 5 more do not.
    assert [len(b) for b in policy.micro_batches(rollout_of(policy, SHAPES["several prompts"]), 60)] == [4, 2]
