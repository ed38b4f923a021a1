"""Decoding in fixed buffers writes what the ordinary loop writes. Here the step is called where CUDA would replay a graph."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import transformers

from lab.assets import asset
from lab.forward import decode, fast_path, graph, static_decode
from lab.forward.decode import PlainDecoding, SharedDecoding
from lab.forward.static_decode import StaticDecoding
from lab.policy import Policy
from lab.rollout import SamplingSettings

from .conftest import add_random_adapter, roll
from .test_fast_equals_plain import SMALL, assert_same_rollout, greedy, prompts_of, use_own_modules


@pytest.fixture
def sizes(monkeypatch):
    """Every size of bucket that a test goes through, in order, the smallest having 4 slots."""
    monkeypatch.setattr(static_decode, "SHORTEST", 4)
    seen: list[static_decode.Size] = []

    class Seen(static_decode.Bucket):
        def __init__(self, size, like):
            seen.append(size)
            super().__init__(size, like)

    monkeypatch.setattr(static_decode, "Bucket", Seen)
    return seen


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A random model of Qwen2's architecture, with biases that are not 0 as in trained ones, and 3 query heads to a key head."""
    folder = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**SMALL | dict(num_attention_heads=6)))
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3) if "bias" in name or "norm" in name else parameter.data.mul_(4.0)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(folder)
    return Policy.load(str(folder), dtype="float32", device="cpu", load_in_4bit=False)


def some_end(policy, monkeypatch):
    """An eighth of the vocabulary ends a completion, so rows leave the batch one after the other."""
    monkeypatch.setattr(policy, "eos_ids", list(range(0, policy.vocab_size, 8)))


@pytest.mark.parametrize("num_generations", [2, 3, 8, 16])
@pytest.mark.parametrize("draw", [dict(), dict(greedy=False, seed=3, temperature=0.7)], ids=["greedy", "drawn"])
def test_ragged_prompts_with_rows_dropped(policy, adapter, sizes, monkeypatch, num_generations, draw):
    some_end(policy, monkeypatch)
    prompts, settings = prompts_of(policy, 9, 4, 17), dict(num_generations=num_generations) | draw
    static = greedy(policy, prompts, adapter, StaticDecoding, **settings)
    assert_same_rollout(static, greedy(policy, prompts, adapter, SharedDecoding, **settings))
    assert_same_rollout(static, greedy(policy, prompts, adapter, PlainDecoding, **settings))
    # 3 lanes → 4, 17 prompt tokens → 32, and the slots of the first token → 4.
    assert sizes[0] == (4, num_generations, 32, 4) and len(set(sizes)) > 1


@pytest.mark.parametrize("rows", [1, 7, 9])
def test_refilled_from_a_queue(policy, adapter, sizes, monkeypatch, rows):
    some_end(policy, monkeypatch)
    monkeypatch.setattr(decode, "MAX_ROWS", rows)  # one group at a time, two, three
    prompts, settings = prompts_of(policy, 9, 4, 17, 6, 9, 33, 2), dict(greedy=False, seed=5, max_completion_length=20)
    assert_same_rollout(greedy(policy, prompts, adapter, StaticDecoding, **settings),
                        greedy(policy, prompts, adapter, PlainDecoding, **settings))
    widths = {size.prompt for size in sizes}
    assert 64 in widths and len(widths) > 1  # 33 tokens need 64 slots, and no other prompt does
    assert max(size.lanes for size in sizes) <= (1 if rows == 1 else 4 if rows == 7 else 8)


def test_slots_grow_in_powers_of_two(policy, adapter, sizes):
    prompts = prompts_of(policy, 5, 3)
    assert_same_rollout(greedy(policy, prompts, adapter, StaticDecoding, max_completion_length=21),
                        greedy(policy, prompts, adapter, PlainDecoding, max_completion_length=21))
    assert [size.slots for size in sizes if size.seats == 3][:3] == [4, 8, 16]


def test_qwens_family(qwen, sizes, monkeypatch):
    adapter = add_random_adapter(qwen, seed=1)
    some_end(qwen, monkeypatch)
    for lengths, settings in (((9, 4), dict(num_generations=5)), ((3, 30, 8, 8, 1), dict(greedy=False, seed=2, num_generations=4))):
        prompts = prompts_of(qwen, *lengths)
        assert_same_rollout(greedy(qwen, prompts, adapter, StaticDecoding, **settings),
                            greedy(qwen, prompts, adapter, PlainDecoding, **settings))


@pytest.mark.parametrize("body", ["own layers with the adapter beside the weights", "the model's own modules"])
def test_without_a_merged_copy(policy, adapter, sizes, monkeypatch, body):
    use_own_modules(policy, monkeypatch) if "modules" in body else monkeypatch.setattr(policy, "fast", replace(policy.fast, merges=False))
    prompts = prompts_of(policy, 9, 4)
    assert_same_rollout(greedy(policy, prompts, adapter, StaticDecoding), greedy(policy, prompts, adapter, PlainDecoding))


def test_a_base_in_4_bits(policy_4bit, sizes):
    prompts = prompts_of(policy_4bit, 9, 4)
    assert_same_rollout(greedy(policy_4bit, prompts, None, StaticDecoding), greedy(policy_4bit, prompts, None, SharedDecoding))


def test_a_step_reads_and_writes_the_same_memory_until_the_bucket_changes(policy, adapter, monkeypatch):
    seen = []
    real = static_decode._logits

    def logits(policy, body, adapter, bucket):
        tensors = [bucket.tokens, bucket.positions, bucket._slot, bucket._mask, *sum(bucket._prompt + bucket._own, [])]
        seen.append((bucket.size, [(x.data_ptr(), x.shape) for x in tensors]))
        return real(policy, body, adapter, bucket)

    monkeypatch.setattr(static_decode, "_logits", logits)
    monkeypatch.setattr(static_decode, "SHORTEST", 8)
    greedy(policy, prompts_of(policy, 9, 4), adapter, StaticDecoding, max_completion_length=12)
    # The first of 12 tokens comes from reading the prompts, the others from steps: 8 in the first bucket, 3 in the next.
    assert [size.slots for size, _ in seen] == [8] * 8 + [16] * 3
    assert all(places == seen[0][1] for _, places in seen[:8]) and all(places == seen[8][1] for _, places in seen[8:])


def test_a_step_may_be_called_twice_as_before_a_capture(policy, adapter, sizes, monkeypatch):
    expected = greedy(policy, prompts_of(policy, 9, 4), adapter, SharedDecoding)

    def warmed_up(step, device):
        for _ in range(graph.WARM_UPS):
            step()
        return step

    monkeypatch.setattr(graph, "captured", warmed_up)
    assert_same_rollout(greedy(policy, prompts_of(policy, 9, 4), adapter, StaticDecoding), expected)


def test_buffers_go_with_their_batch(policy, adapter):
    prompts = prompts_of(policy, 9)
    batch = StaticDecoding(policy, prompts, adapter, SamplingSettings(2, 5), torch.Generator())
    gc.disable()  # a cycle of references would be kept until the collector comes by
    try:
        with torch.no_grad():
            while batch.writing:
                batch.advance()
        bucket = weakref.ref(batch._bucket)
        del batch
        assert bucket() is None
    finally:
        gc.enable()


def test_a_failed_capture_ends_the_use_of_graphs_and_says_so(policy, adapter, monkeypatch):
    def refuses(step, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(policy, "fast", replace(policy.fast, graphs=True))
    assert policy.fast.way.endswith(" and CUDA graphs")
    expected = greedy(policy, prompts_of(policy, 9, 4), adapter, SharedDecoding)
    monkeypatch.setattr(graph, "captured", refuses)
    assert_same_rollout(greedy(policy, prompts_of(policy, 9, 4), adapter, StaticDecoding), expected)
    assert not policy.fast.graphs and policy.fast.reason.count("not permitted when stream is capturing") == 1
    assert type(policy.decoding(prompts_of(policy, 9), adapter, SamplingSettings(2, 4), torch.Generator())) is SharedDecoding


def test_a_policy_with_graphs_samples_with_them(policy, adapter, monkeypatch):
    expected = roll(policy, adapter)
    monkeypatch.setattr(policy, "fast", replace(policy.fast, graphs=True))
    assert type(policy.decoding([[5]], adapter, SamplingSettings(2, 4), torch.Generator())) is StaticDecoding
    assert_same_rollout(roll(policy, adapter), expected)


class OnCuda:
    """A policy that says it is on CUDA and computes where it is: all of `choose` but the capture."""

    def __init__(self, policy):
        self.__dict__ |= vars(policy) | dict(device=torch.device("cuda"), _policy=policy)

    def __getattr__(self, name):
        return getattr(self._policy, name)


@pytest.fixture
def on_cuda(policy, monkeypatch):
    """The check at load time runs on the CPU; what it found there may be changed."""
    real = static_decode.difference
    monkeypatch.setattr(static_decode, "difference", lambda _: real(policy))
    return OnCuda(policy)


def test_graphs_are_taken_where_the_check_passes_and_kept_in_the_name_of_the_way(on_cuda, policy):
    chosen = static_decode.choose(on_cuda)
    assert chosen.graphs and chosen.way == policy.fast.way + fast_path.GRAPHS and "Sampling replays CUDA graphs" in chosen.reason
    assert static_decode.choose(OnCuda(policy), chosen.way).graphs


def test_a_run_that_began_without_graphs_goes_on_without_and_a_cpu_has_none(on_cuda, policy):
    assert static_decode.choose(on_cuda, "own with a merged copy") == policy.fast
    assert static_decode.choose(policy) == policy.fast and not policy.fast.graphs
    assert fast_path.choose(policy, "own" + fast_path.GRAPHS).way == "own"  # moved to a machine without


def test_a_wrong_step_fails_the_check(on_cuda, monkeypatch):
    real = static_decode.Bucket.begin
    monkeypatch.setattr(static_decode.Bucket, "begin", lambda self, slot, *others: real(self, max(0, slot - 1), *others))
    chosen = static_decode.choose(on_cuda)
    assert not chosen.graphs and "differ by" in chosen.reason


def test_a_check_that_breaks_off_leaves_the_ordinary_loop(on_cuda, monkeypatch):
    monkeypatch.setattr(static_decode, "difference", lambda _: 1 / 0)
    chosen = static_decode.choose(on_cuda)
    assert not chosen.graphs and "ZeroDivisionError" in chosen.reason
