"""Groups sampled and scored for the page, without learning from them."""

import numpy as np
import torch

from lab.config import RunConfig
from lab.records import GroupScored, TokensSampled
from lab.training.sampling import sample_group, seeded

from .conftest import letters


def test_sample_group_gives_scored_groups_with_openable_numbers(policy, adapter):
    config = RunConfig(rewards=(letters,), num_generations=3, max_completion_length=8)
    events = list(sample_group(policy, config, [{"prompt": "What is 1 + 2?", "answer": "3"}], adapter))
    assert isinstance(events[0], TokensSampled) and isinstance(events[-1], GroupScored)
    group = events[-1].group
    assert len(group.completions) == 3 and group.row["answer"] == "3"
    for c in group.completions:
        assert c.reward is not None and c.advantage is not None
        assert not np.array_equal(c.arrays["logps"], c.arrays["ref_logps"])  # the adapter differs from the base
        np.testing.assert_allclose(c.arrays["sampling_logps"], c.arrays["old_logps"], atol=1e-4)


def test_sample_group_of_the_base_is_its_own_reference_and_repeats_with_its_seed(policy):
    config = RunConfig(rewards=(letters,), num_generations=2, max_completion_length=8)
    rows = [{"prompt": "What is 1 + 2?"}]
    first, again = ([e for e in sample_group(policy, config, rows, seed=5)][-1].group for _ in range(2))
    assert [c.text for c in first.completions] == [c.text for c in again.completions]
    assert all(np.array_equal(c.arrays["logps"], c.arrays["ref_logps"]) for c in first.completions)


def test_sample_group_measures_against_the_reference_it_is_given(policy, adapter):
    config = RunConfig(rewards=(letters,), num_generations=2, max_completion_length=8, kl_placement="reward", beta=0.5)
    policy.adapters.copy(adapter, "same-numbers")
    for reference, is_zero in (("same-numbers", True), (adapter, True), (None, False)):
        *_, scored = sample_group(policy, config, [{"prompt": "What is 1 + 2?"}], adapter, reference=reference, seed=5)
        for c in scored.group.completions:
            assert np.array_equal(c.arrays["logps"], c.arrays["ref_logps"]) == is_zero
            assert (c.extra["kl_penalty"] == 0.0) == is_zero
    policy.remove_adapter("same-numbers")


def test_seeded_generators_differ_by_every_number():
    draws = {float(torch.rand((), generator=seeded(*n))) for n in ((0, 0), (0, 1), (1, 0), (1, 1), (1,))}
    assert len(draws) == 5
