"""The decoding loop: the right tokens, their log-probabilities, and nothing else touched."""

import pytest
import torch
import transformers

from lab import rollout as rollout_module
from lab.assets import asset
from lab.forward import decode
from lab.rollout import SamplingSettings, sample

from .conftest import roll

PROMPTS = ("What is 69 + 13?", "7 - 5 = ?", "Compute 12 + 7 + 30.")


def sampler_of(policy, adapter=None, prompts=PROMPTS, seed=0, **settings):
    settings = SamplingSettings(**dict(num_generations=2, max_completion_length=16) | settings)
    return sample(policy, [policy.prompt_ids(p, "") for p in prompts], adapter, settings, torch.Generator().manual_seed(seed))


def completions(rollout):
    return [ids[:length] for ids, length in zip(rollout.completion_ids.tolist(), rollout.lengths.tolist(), strict=True)]


def test_greedy_equals_generate(policy):
    model = transformers.AutoModelForCausalLM.from_pretrained(asset("models/tiny"), dtype=torch.float32)
    rollout = roll(policy, None, PROMPTS, num_generations=2, max_completion_length=32, greedy=True)
    for row, ids in enumerate(completions(rollout)):
        prompt = torch.tensor([policy.prompt_ids(PROMPTS[row // 2], "")])
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, temperature=None,
                                  max_new_tokens=32)
        assert ids == expected[0, prompt.shape[1] :].tolist()


def test_sampling_logps_are_the_trainers(policy, adapter):
    rollout = roll(policy, adapter, PROMPTS, temperature=0.8)
    logps, _ = policy.frozen_logps(rollout, adapter, max_tokens=10_000)
    torch.testing.assert_close(rollout.sampling_logps, logps, atol=1e-4, rtol=0)


def test_same_seed_same_rollout_and_another_seed_another(policy, adapter):
    first, again, other = (roll(policy, adapter, PROMPTS, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.completion_ids, again.completion_ids)
    assert torch.equal(first.sampling_logps, again.sampling_logps)
    assert completions(first) != completions(other)


def test_the_global_random_state_is_left_alone(policy, adapter):
    before = torch.get_rng_state()
    roll(policy, adapter)
    assert torch.equal(before, torch.get_rng_state())


def test_mask_counts_the_stop_token_and_nothing_after_it(policy, monkeypatch):
    # Half of the vocabulary ends a completion, so lengths differ whatever the model has learned.
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 2)))
    rollout = roll(policy, None, PROMPTS, num_generations=8, max_completion_length=3)
    assert len(set(rollout.lengths.tolist())) > 1
    for ids, finished in zip(completions(rollout), rollout.finished.tolist(), strict=True):
        assert all(token % 2 for token in ids[:-1])
        assert finished == (ids[-1] % 2 == 0)
        assert finished or len(ids) == 3
    mask = rollout.completion_mask.bool()
    assert (rollout.completion_ids[~mask] == policy.pad_id).all()
    assert (rollout.sampling_logps[~mask] == 0).all()


def test_taking_ended_rows_out_of_the_batch_changes_nothing(policy, monkeypatch):
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 8)))
    rollouts = []
    for share in (0.0, 1.0):  # never, and as soon as one row ends
        monkeypatch.setattr(decode, "COMPACT_BELOW", share)
        rollouts.append(roll(policy, None, PROMPTS, num_generations=6))
    assert torch.equal(rollouts[0].completion_ids, rollouts[1].completion_ids)
    torch.testing.assert_close(rollouts[0].sampling_logps, rollouts[1].sampling_logps, atol=1e-5, rtol=0)


def test_progress_grows_and_ends_as_the_rollout(policy):
    sampler, seen = sampler_of(policy), []
    try:
        while True:
            seen.append([list(tokens) for tokens in next(sampler).tokens])
    except StopIteration as stop:
        rollout = stop.value
    assert all(len(tokens) == 1 for tokens in seen[0])  # the first token is shown at once
    assert seen[-1] == completions(rollout)


def test_no_adapter_is_active_between_two_yields(policy, adapter):
    ids = torch.tensor([policy.prompt_ids("What is 1 + 2?", "")])
    with torch.no_grad():
        expected = policy.model(ids).logits
        for _ in sampler_of(policy, adapter):
            assert torch.equal(policy.model(ids).logits, expected)
            assert not torch.is_grad_enabled()  # the caller's own no_grad, still in force


def test_two_samplers_take_turns_without_noticing(policy, adapter, monkeypatch):
    monkeypatch.setattr(rollout_module, "SECONDS_BETWEEN_PARTIALS", 0.0)  # a yield after every token
    alone = [roll(policy, name, PROMPTS, seed=seed, num_generations=2, max_completion_length=16)
             for name, seed in ((adapter, 1), (None, 2))]
    samplers = [sampler_of(policy, adapter, seed=1), sampler_of(policy, None, seed=2)]
    together = [None, None]
    while any(r is None for r in together):
        for i, sampler in enumerate(samplers):
            try:
                next(sampler)
            except StopIteration as stop:
                together[i] = together[i] or stop.value
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.completion_ids, b.completion_ids) and torch.equal(a.sampling_logps, b.sampling_logps)


def test_rows_of_a_rollout_keep_their_prompts(policy):
    rollout = roll(policy, None, PROMPTS)
    part = rollout.rows(torch.tensor([7, 2]))
    assert [part.prompt_ids[g][part.prompt_mask[g].bool()].tolist() for g in part.group_ids.tolist()] == \
        [policy.prompt_ids(PROMPTS[2], ""), policy.prompt_ids(PROMPTS[0], "")]
    assert completions(part) == [completions(rollout)[7], completions(rollout)[2]]


def test_micro_batches_cover_every_row_once_within_the_budget(policy):
    rollout = roll(policy, None, PROMPTS, num_generations=5)
    batches = list(rollout.micro_batches(200))
    assert sorted(torch.cat(batches).tolist()) == list(range(15))
    assert all(rollout.rows(rows).sequences()[0].numel() <= 200 for rows in batches)
    assert [len(rows) for rows in rollout.micro_batches(1)] == [1] * 15


def test_a_prompt_without_room_for_an_answer_is_refused(policy):
    with pytest.raises(ValueError, match="no room"):
        next(sampler_of(policy, prompts=("7" * 600,)))


def test_completions_stop_where_the_models_positions_end(policy):
    prompt = "7" * (policy.max_positions - 40)
    rollout = roll(policy, None, (prompt,), num_generations=2, max_completion_length=100)
    assert rollout.completion_ids.shape[1] <= policy.max_positions - len(policy.prompt_ids(prompt, ""))
