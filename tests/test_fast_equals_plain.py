"""The fast path is the plain path, only faster: log-probabilities, gradients and greedy text, over shapes and model families."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers

from lab.assets import asset
from lab.forward import decode, shared_cache
from lab.forward.blocks import LlamaBody
from lab.forward.bodies import HuggingFaceBody
from lab.forward.decode import PlainDecoding, SharedDecoding
from lab.forward.fast_path import differ
from lab.forward.merged import MergedBody
from lab.policy import Policy
from lab.rollout import Rollout, SamplingSettings, pad_left

from .conftest import add_random_adapter


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


def use_own_modules(policy: Policy, monkeypatch) -> None:
    """As for a family that has no layers of ours."""
    body = HuggingFaceBody(policy.model, policy.adapters)
    monkeypatch.setattr(policy, "fast", replace(policy.fast, body=body, merges=False))


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


@pytest.mark.parametrize("body", [HuggingFaceBody, LlamaBody])
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_and_lora_gradients_are_those_of_the_plain_path(policy, adapter, shape, body, monkeypatch):
    assert isinstance(policy.fast.body, LlamaBody), policy.fast.reason
    if body is HuggingFaceBody:
        use_own_modules(policy, monkeypatch)
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


def greedy(policy: Policy, prompts: list[list[int]], adapter: str | None, way, seed: int = 0, **settings) -> Rollout:
    settings = SamplingSettings(**dict(num_generations=3, max_completion_length=12, greedy=True) | settings)
    batch = way(policy, prompts, adapter, settings, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        while batch.writing:
            batch.advance()
    return batch.rollout()


def prompts_of(policy: Policy, *lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, policy.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def assert_same_rollout(a: Rollout, b: Rollout) -> None:
    assert torch.equal(a.completion_ids, b.completion_ids)
    assert torch.equal(a.finished, b.finished)
    torch.testing.assert_close(a.sampling_logps, b.sampling_logps, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampler", ["merged copy", "own modules"])
def test_shared_decoding_writes_what_plain_decoding_writes(policy, adapter, sampler, monkeypatch):
    if sampler == "own modules":
        use_own_modules(policy, monkeypatch)
    else:
        assert isinstance(policy.fast.sampler(policy.model, adapter), MergedBody), policy.fast.reason
    # An eighth of the vocabulary ends a completion, so rows leave the batch one after the other.
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 8)))
    prompts = prompts_of(policy, 9, 4, 17)
    for settings in (dict(), dict(greedy=False, seed=3, num_generations=6, temperature=0.7), dict(greedy=False, seed=4, top_k=5)):
        assert_same_rollout(greedy(policy, prompts, adapter, SharedDecoding, **settings),
                            greedy(policy, prompts, adapter, PlainDecoding, **settings))


@pytest.mark.parametrize("rows", [1, 7, 9])
def test_a_queue_of_prompts_changes_no_completion(policy, adapter, monkeypatch, rows):
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 8)))
    prompts = prompts_of(policy, 9, 4, 17, 6, 9)
    settings = dict(greedy=False, seed=5, num_generations=3)
    at_once = greedy(policy, prompts, adapter, SharedDecoding, **settings)
    monkeypatch.setattr(decode, "MAX_ROWS", rows)  # one group at a time, two, three
    assert_same_rollout(greedy(policy, prompts, adapter, SharedDecoding, **settings), at_once)


@pytest.mark.parametrize("rows", [9, 64])
def test_keys_and_values_are_moved_only_to_take_less_room(policy, monkeypatch, rows):
    # a third of the vocabulary ends a completion: groups of 7 shrink below their share long before the next fits in
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 3)))
    monkeypatch.setattr(decode, "MAX_ROWS", rows)
    sizes, keep = [], shared_cache.SharedCache.keep

    def spied(self, places):
        sizes.append((self.lanes * self.seats, places.numel()))
        keep(self, places)

    monkeypatch.setattr(shared_cache.SharedCache, "keep", spied)
    greedy(policy, prompts_of(policy, *[9] * 12), None, SharedDecoding, greedy=False, num_generations=7, max_completion_length=20)
    assert sizes and all(after < before for before, after in sizes), sizes


def test_more_tokens_than_one_allocation_of_slots(policy, adapter, monkeypatch):
    monkeypatch.setattr(shared_cache, "SLOTS", 4)
    prompts = prompts_of(policy, 5, 3)
    assert_same_rollout(greedy(policy, prompts, adapter, SharedDecoding, max_completion_length=21),
                        greedy(policy, prompts, adapter, PlainDecoding, max_completion_length=21))


def test_each_batch_is_sampled_with_the_adapter_as_it_is_then(policy, adapter):
    prompts = prompts_of(policy, 9)
    first = greedy(policy, prompts, adapter, SharedDecoding)
    base = greedy(policy, prompts, None, SharedDecoding)
    with torch.no_grad():
        for parameter in policy.adapters.parameters(adapter).values():
            parameter.mul_(-1.5)  # in place, as an optimiser does
    changed = greedy(policy, prompts, adapter, SharedDecoding)
    assert not torch.equal(changed.sampling_logps, first.sampling_logps)
    assert_same_rollout(changed, greedy(policy, prompts, adapter, PlainDecoding))
    assert_same_rollout(base, greedy(policy, prompts, None, PlainDecoding))


def test_sampling_leaves_the_base_as_it_was(policy, adapter):
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    greedy(policy, prompts_of(policy, 9), adapter, SharedDecoding)
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())


def test_four_bits_give_the_plain_paths_numbers_through_our_own_layers(policy_4bit):
    assert isinstance(policy_4bit.fast.body, LlamaBody), policy_4bit.fast.reason
    adapter = add_random_adapter(policy_4bit, seed=1)
    rollout = rollout_of(policy_4bit, SHAPES["several prompts"])
    before, _, gradients_before = logps_and_gradients(policy_4bit, policy_4bit.logps, rollout, adapter)
    greedy(policy_4bit, prompts_of(policy_4bit, 9), adapter, SharedDecoding)
    after, _, gradients_after = logps_and_gradients(policy_4bit, policy_4bit.logps, rollout, adapter)
    plain, _, gradients_plain = logps_and_gradients(policy_4bit, policy_4bit.plain_logps, rollout, adapter)
    policy_4bit.remove_adapter(adapter)
    assert torch.equal(before, after), "sampling must leave the 4-bit weights as they are"
    assert (before - plain).abs().max() < 1e-4
    for key, gradient in gradients_plain.items():
        assert torch.equal(gradients_before[key], gradients_after[key])
        assert (gradients_before[key] - gradient).norm() <= 1e-3 * gradient.norm(), key


def test_layers_computed_twice_change_no_bit(policy, adapter, monkeypatch):
    rollout = rollout_of(policy, SHAPES["several prompts"])
    logps, _, gradients = logps_and_gradients(policy, policy.logps, rollout, adapter)
    monkeypatch.setattr(policy.fast.body, "twice", True)
    again, _, gradients_again = logps_and_gradients(policy, policy.logps, rollout, adapter)
    assert torch.equal(logps, again)
    assert all(torch.equal(gradients[key], gradients_again[key]) for key in gradients)


SMALL = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=1)
FAMILIES = {  # what makes log-probabilities; None: the plain path
    "qwen2": (transformers.Qwen2Config(**SMALL), LlamaBody),
    "qwen3": (transformers.Qwen3Config(**SMALL), LlamaBody),
    "mistral": (transformers.MistralConfig(**SMALL, sliding_window=None), HuggingFaceBody),
    "phi3": (transformers.Phi3Config(**SMALL), HuggingFaceBody),
    "gpt_neox": (transformers.GPTNeoXConfig(**SMALL | dict(head_dim=None, num_key_value_heads=None)), HuggingFaceBody),
    "gemma3, with a wide window": (transformers.Gemma3TextConfig(**SMALL, sliding_window=128), HuggingFaceBody),
    "mistral, with a window smaller than a prompt": (transformers.MistralConfig(**SMALL, sliding_window=4), type(None)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_take_the_fastest_way_that_is_right_for_them(family, tmp_path):
    config, expected = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3)  # as trained ones, not the 0 and 1 they start with
        else:
            parameter.data.mul_(4.0)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(tmp_path)
    policy = Policy.load(str(tmp_path), dtype="float32", device="cpu", load_in_4bit=False)
    assert isinstance(policy.fast.body, expected), policy.fast.reason
    adapter = add_random_adapter(policy, seed=1)
    assert_same(policy, rollout_of(policy, SHAPES["several prompts"]), adapter)
    prompts = prompts_of(policy, 9, 4)
    fast = policy.decoding(prompts, adapter, SamplingSettings(3, 8, greedy=True), torch.Generator())
    with torch.no_grad():
        while fast.writing:
            fast.advance()
    assert_same_rollout(fast.rollout(), greedy(policy, prompts, adapter, PlainDecoding, max_completion_length=8))


def test_sequences_longer_than_a_window_take_the_plain_way(policy, monkeypatch):
    monkeypatch.setattr(policy, "fast", replace(policy.fast, longest=31))
    settings = SamplingSettings(2, 12)
    for prompt_length, way in ((19, SharedDecoding), (20, PlainDecoding)):
        prompts = prompts_of(policy, prompt_length)
        assert type(policy.decoding(prompts, None, settings, torch.Generator())) is way
    used = []
    monkeypatch.setattr(policy, "plain_logps", lambda rollout, adapter: used.append(rollout.longest))
    for length in (11, 12):
        policy.logps(rollout_of(policy, [(20, [length, 3])]), None)
    assert used == [32]


@pytest.mark.parametrize("dtype, load_in_4bit, gaps, expected", [
    (torch.float32, False, [0.0] * 19 + [0.002], 0.002),
    (torch.float32, False, [0.0009] * 20, None),
    (torch.bfloat16, False, [0.05] * 19 + [0.5], None),  # rounding moves single tokens far, all of them together little
    (torch.float32, True, [0.05] * 19 + [0.5], None),  # a base in 4 bits is unpacked to 16
    (torch.bfloat16, False, [0.25] * 20, 0.25),
    (torch.bfloat16, False, [0.0] * 19 + [math.nan], math.inf),
], ids=str)
def test_how_far_two_right_ways_may_be_apart(dtype, load_in_4bit, gaps, expected):
    found = differ(torch.tensor(gaps), torch.zeros(len(gaps)), SimpleNamespace(dtype=dtype, load_in_4bit=load_in_4bit))
    assert found == (None if expected is None else pytest.approx(expected))
