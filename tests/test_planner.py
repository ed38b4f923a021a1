"""The plan's numbers, by hand where a hand can follow, and what it decides."""

from __future__ import annotations

import json

import pytest
import torch

from lab import planner
from lab.assets import asset
from lab.config import RunConfig
from lab.models.registry import weight_bytes
from lab.planner import Corrections, ModelShape, Speed, Written, compare, plan
from lab.training.critic import Critic

from .test_reward_model import save_classifier

SMOLLM2 = dict(model_type="llama", num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
               num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)
QWEN_1_5B = dict(model_type="qwen2", num_hidden_layers=28, hidden_size=1536, intermediate_size=8960, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)


UNCORRECTED = Corrections()


def planned(shape=SMOLLM2, memory=None, four_bit=False, device="cpu", speed=None, corrections=UNCORRECTED, **settings):
    config = RunConfig(**dict(num_generations=8, prompts_per_step=1, max_completion_length=64) | settings)
    return plan(config, ModelShape.of(shape), prompt_tokens=60, device=device, dtype="bfloat16", load_in_4bit=four_bit,
                memory=memory, speed=speed, corrections=corrections)


def test_sizes_of_a_known_model():
    shape = ModelShape.of(SMOLLM2)
    # A layer: q and o 576 · 576, k and v 576 · 192, three of 576 · 1536; 30 layers. PEFT counts 4,884,480 weights at r = 16.
    assert shape.linear == 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) == 106_168_320
    assert shape.lora(16) == 4_884_480
    assert shape.embeddings == 28_311_552


def test_the_tiny_models_own_config_is_read():
    shape = ModelShape.of(json.loads((asset("models/tiny") / "config.json").read_text()))
    assert (shape.layers, shape.hidden, shape.key_width) == (4, 192, 192)


def test_parts_by_hand():
    made = planned()
    assert made.parts["weights"] == 2 * (106_168_320 + 28_311_552)
    assert made.parts["adapter"] == 16 * 4_884_480
    # keys and values of 60 + 8 · 64 tokens, 30 layers, 192 wide, float32
    assert made.parts["cache"] == 2 * 30 * 192 * 572 * 4
    # per token and layer: 2 · 576 + 2 · 576 + 2 · 192 + 2 · 1536 + 7 · 16 numbers of 2 bytes and two of 4
    assert made.parts["activations"] == 572 * 30 * (5872 * 2 + 8)
    assert made.peak == max(made.sampling, made.training)


def test_four_bits_shrink_only_the_layers_and_are_copied_for_sampling_where_there_is_room():
    made = planned(four_bit=True)
    assert made.parts["weights"] == 0.516 * 106_168_320 + 2 * 28_311_552
    assert made.parts["copy"] == 2 * 106_168_320  # has 16 bits
    assert planned(four_bit=True, memory=made.parts["weights"] + made.parts["program"] + 3 * 2 * 106_168_320 - 1).parts["copy"] == 0


def test_the_head_is_laid_out_anew_for_sampling_on_a_cpu_and_stays_while_learning():
    made, parts = planned(), planned().parts
    always = parts["weights"] + parts["adapter"] + parts["program"] + 2 * 28_311_552
    assert made.sampling == always + parts["copy"] + parts["cache"]
    assert made.training == always + parts["activations"] + max(parts["workspace"], parts["head"])
    assert planned(device="cuda").parts["head_copy"] == 0


def test_less_memory_means_smaller_micro_batches_then_layers_computed_twice_then_no():
    big = dict(shape=QWEN_1_5B, device="cuda", four_bit=True, max_completion_length=512, prompts_per_step=4)
    plans = [planned(memory=gb * 1e9, **big) for gb in (80, 24, 3, 2)]
    assert [p.fits for p in plans] == [True, True, True, False]
    assert [p.checkpointing for p in plans[:3]] == [False, False, True]
    assert plans[1].micro_batch_tokens < plans[0].micro_batch_tokens
    assert all(p.peak <= gb * 1e9 for p, gb in zip(plans[:3], (80, 24, 3), strict=True))
    assert "more than there is" in plans[3].sentence


def test_fixed_buffers_on_cuda_by_hand():
    # Bytes of a token: keys and values of 30 layers, 192 wide, 2 bytes each.
    token = 2 * 30 * 192 * 2
    # 3 prompts of 60 tokens: 4 lanes of 128 prompt slots and 8 · 128 written ones; before, 3 · (60 + 8 · 64) as they were read.
    assert planned(device="cuda", prompts_per_step=3).parts["cache"] == token * (4 * (128 + 8 * 128) + 3 * (60 + 8 * 64))
    # 300 tokens: the slots were 256 and become 512, and both are there while one is moved into the other.
    made = planned(device="cuda", max_completion_length=300)
    assert made.parts["cache"] == token * ((128 + 8 * 512) + (128 + 8 * 256))
    assert planned(device="cuda", max_completion_length=257).parts["cache"] == token * ((128 + 8 * 256) + (128 + 8 * 128))
    # 64 rows decode together, so of 20 prompts 8 have a lane.
    assert planned(device="cuda", prompts_per_step=20).parts["cache"] == planned(device="cuda", prompts_per_step=8).parts["cache"]
    # Other families have no fixed buffers.
    assert planned(shape=SMOLLM2 | {"model_type": "gemma3"}, device="cuda").parts["cache"] == token * 572


def test_fixed_buffers_have_the_planned_sizes(policy):
    from lab.forward import decode, shared_cache, static_decode
    from lab.rollout import SamplingSettings

    assert (planner.MAX_ROWS, planner.SLOTS, planner.SHORTEST_BUCKET) == (decode.MAX_ROWS, shared_cache.SLOTS, static_decode.SHORTEST)
    batch = static_decode.StaticDecoding(policy, [[5] * 60] * 3, None, SamplingSettings(2, 140), torch.Generator())
    batch._eos = set()  # every row runs to its full length
    moved = []
    with torch.no_grad():
        while batch.writing:
            before = batch._bucket
            batch.advance()
            if batch._bucket is not before:
                moved.append(sum(x.nbytes for layers in (batch._bucket._prompt, batch._bucket._own) for pair in layers for x in pair))
    config = RunConfig(num_generations=2, prompts_per_step=3, max_completion_length=140)
    shape = ModelShape.of(policy.model.config.to_dict())
    made = plan(config, shape, prompt_tokens=60, device="cuda", dtype="float32", load_in_4bit=False)
    assert len(moved) == 2 and made.parts["cache"] == sum(moved)


def test_a_reward_model_weighs_what_its_files_say(tmp_path):
    save_classifier(tmp_path / "judge", 1)
    from transformers import AutoModelForSequenceClassification

    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "judge").num_parameters()
    # embeddings 1024 · 32, q, k, v, o 4 · 32 · 32, three of 32 · 48, three norms of 32, one output of 32; float32
    assert loaded == 1024 * 32 + 4 * 32 * 32 + 3 * 32 * 48 + 3 * 32 + 32
    reward = f"reward_model(model='{tmp_path / 'judge'}')"
    made = planned(rewards=("brevity", reward, reward))  # loaded once
    assert made.parts["rewards"] == 4 * loaded
    assert (made.sampling, made.training) == (planned().sampling + 4 * loaded, planned().training + 4 * loaded)
    assert made.not_counted == () and "not counted" not in made.sentence
    assert planned(eval_rewards=("accuracy", reward)).parts["rewards"] == 0
    assert planned(eval_rewards=("accuracy", reward), eval_steps=5).parts["rewards"] == 4 * loaded


def test_a_reward_model_in_16_bits_takes_half(tmp_path):
    save_classifier(tmp_path / "judge", 1)
    file = tmp_path / "judge" / "config.json"
    whole = weight_bytes(tmp_path / "judge")
    file.write_text(file.read_text().replace('"float32"', '"bfloat16"'))
    assert weight_bytes(tmp_path / "judge") == whole / 2


def test_a_reward_model_that_is_not_here_is_said_not_to_be_counted():
    made = planned(rewards=("reward_model(model='somebody/judge')", "brevity"))
    assert made.parts["rewards"] == 0 and made.peak == planned().peak
    assert made.sentence.endswith(" The reward model somebody/judge is not on this machine yet and is not counted.")
    assert made.to_dict()["not_counted"] == ("somebody/judge",)


def test_ppos_critic_is_a_second_adapter_with_its_optimiser(policy):
    config = RunConfig(algorithm="ppo", lora_r=8)
    shape = ModelShape.of(policy.model.config.to_dict())
    made = plan(config, shape, prompt_tokens=20, device="cpu", dtype="float32", load_in_4bit=False)
    critic = Critic(policy, "critic", config)
    try:
        for parameter in critic.parameters:
            parameter.grad = torch.zeros_like(parameter)
        critic.optimizer.step()
        # The value head, 192 weights and a bias with gradient and two moments, is all that is beside the adapter; AdamW also
        # counts the steps of each tensor.
        tensors = len(critic.parameters)
        assert critic.bytes == made.parts["adapter"] / 2 + 16 * (192 + 1) + 4 * tensors
    finally:
        critic.close()


def test_settings_that_grow_grow_the_plan():
    base = planned().peak
    assert planned(num_generations=16).peak > base
    assert planned(max_completion_length=256).peak > base
    assert planned(lora_r=64).peak > base


def test_measured_memory_and_seconds_correct_the_next_plan():
    machine = Speed(1e11, 5e9)
    plain, corrected = planned(speed=machine), planned(speed=machine, corrections=Corrections(memory=1.2, pace=3.0))
    assert corrected.peak == pytest.approx(1.2 * plain.peak)
    assert corrected.seconds == pytest.approx(3 * plain.seconds)


def test_a_measurement_that_something_else_disturbed_does_not_go_all_the_way():
    assert Corrections(memory=9.0, pace=0.001) == Corrections(memory=2.0, pace=0.1)


def test_a_measurement_is_compared_with_what_the_completions_as_they_were_should_have_taken():
    machine, config = Speed(1e11, 5e9), RunConfig(num_generations=8, prompts_per_step=1, max_completion_length=64)
    where = dict(prompt_tokens=60, device="cpu", dtype="bfloat16", load_in_4bit=False, memory=None, speed=machine)
    made = plan(config, ModelShape.of(SMOLLM2), **where)
    full = compare(made, config, ModelShape.of(SMOLLM2), Written(64, 64), peak=made.peak, seconds=made.seconds, **where)
    assert (full["memory"], full["pace"]) == pytest.approx((1.0, 1.0))
    # Completions of half the length in half the time: the machine is as fast as thought, not twice as fast.
    half = plan(config.replace(max_completion_length=32), ModelShape.of(SMOLLM2), **where)
    short = compare(made, config, ModelShape.of(SMOLLM2), Written(32, 32), peak=half.peak, seconds=half.seconds, **where)
    assert (short["memory"], short["pace"]) == pytest.approx((1.0, 1.0))
    assert "32 tokens on average" in short["sentence"] and "measured" in short["sentence"]


def test_seconds_follow_the_machine():
    # Twice the speed in both respects, half of the time.
    slow, fast = planned(speed=Speed(1e11, 5e9)), planned(speed=Speed(2e11, 1e10))
    assert slow.seconds == pytest.approx(2 * fast.seconds)
    assert planned().seconds is None
