"""Models of other families than our own layers know, small and random: each runs, by a way that gives its own numbers."""

from __future__ import annotations

import pytest
import torch
import transformers

from lab.assets import asset
from lab.config import RunConfig
from lab.models.registry import ModelError
from lab.policy import Policy
from lab.trainer import Trainer
from tests.conftest import add_random_adapter, letters, roll

ENDS = dict(bos_token_id=2, eos_token_id=1)
SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, **ENDS)
# the cap is so low that leaving it out would be seen
GEMMA2 = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=0.02,
                                   initializer_range=0.2, pad_token_id=0)
GPT_NEO = transformers.GPTNeoConfig(vocab_size=320, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global"], 2]],
                                    intermediate_size=128, **ENDS)
GPT_NEOX = transformers.GPTNeoXConfig(**SIZES)
GPT2 = transformers.GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4, n_positions=256, **ENDS)  # layers of transposed weights
GPT_OSS = transformers.GptOssConfig(**SIZES, num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
                                    initializer_range=1.0, pad_token_id=0)  # sinks: attention that goes nowhere
DIFF_LLAMA = transformers.DiffLlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0)  # each layer attends twice
LFM2 = transformers.Lfm2Config(**SIZES, num_key_value_heads=2, layer_types=["conv", "full_attention"], pad_token_id=0)
QWEN3_NEXT = transformers.Qwen3NextConfig(
    **SIZES, num_key_value_heads=2, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    layer_types=["linear_attention", "full_attention"], pad_token_id=0)
PHI_MOE = transformers.PhimoeConfig(**SIZES, num_key_value_heads=2, num_local_experts=2, pad_token_id=0)  # its router is a linear layer
MINIMAX = transformers.MiniMaxConfig(**SIZES, num_key_value_heads=2, num_local_experts=2, block_size=16,
                                     layer_types=["linear_attention", "full_attention"], pad_token_id=0)
HYPERCLOVA = transformers.HyperCLOVAXConfig(**SIZES, num_key_value_heads=2, logits_scaling=2.0, pad_token_id=0)
PHI3_LONG = transformers.Phi3Config(
    **SIZES, num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=40, pad_token_id=0,
    rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 8, long_factor=[3.0] * 8))
WAYS = [(GEMMA2, "plain"), (GPT_NEO, "plain"), (GPT_NEOX, "shared"), (GPT2, "shared"), (GPT_OSS, "plain"), (DIFF_LLAMA, "plain"),
        (LFM2, "plain"), (QWEN3_NEXT, "plain"), (PHI_MOE, "shared")]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A policy on a random model of this config, loaded once."""
    loaded = {}

    def make(config, dtype: str = "float32") -> Policy:
        if (config.model_type, dtype) not in loaded:
            folder = tmp_path_factory.mktemp(config.model_type)
            torch.manual_seed(0)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(folder)
            loaded[config.model_type, dtype] = Policy.load(str(folder), dtype=dtype, device="cpu", num_threads=1)
        return loaded[config.model_type, dtype]

    return make


@pytest.mark.parametrize("config, way", WAYS, ids=lambda x: getattr(x, "model_type", x))
def test_it_trains_by_the_way_that_was_found_right_and_says_which(load, config, way):
    policy = load(config)
    assert policy.fast.way == way and policy.fast.reason.startswith("Plain path" if way == "plain" else "Fast path")
    settings = RunConfig(model=policy.name, rewards=(letters,), num_generations=4, prompts_per_step=2, max_completion_length=12,
                         max_steps=1)
    trainer = Trainer(settings, policy=policy, adapter="trained")
    record = next(trainer)
    assert record.metrics["grad_norm"] > 0 and record.metrics["sampling/sampling_logp_difference/max"] < 1e-3
    trainer.close()


@pytest.mark.parametrize("config", [config for config, _ in WAYS], ids=lambda config: config.model_type)
def test_its_numbers_are_those_of_the_saved_model_reading_each_row_alone(load, config):
    policy = load(config)
    model = transformers.AutoModelForCausalLM.from_pretrained(policy.name, attn_implementation="eager").eval()
    rollout = roll(policy, None, num_generations=2, max_completion_length=8)
    with torch.no_grad():
        ours = policy.logps(rollout, None)[0]
        for row in range(len(rollout)):
            prompt = rollout.prompt_ids[rollout.group_ids[row]][rollout.prompt_mask[rollout.group_ids[row]].bool()]
            written = rollout.completion_ids[row, : rollout.lengths[row]]
            logits = model(input_ids=torch.cat([prompt, written])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, written[:, None]).squeeze(-1)
            torch.testing.assert_close(ours[row, : len(written)], expected, atol=1e-4, rtol=0)
            torch.testing.assert_close(rollout.sampling_logps[row, : len(written)], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("config", [GEMMA2, GPT_NEO, GPT_OSS, DIFF_LLAMA], ids=lambda config: config.model_type)
def test_in_16_bits_where_rounding_would_hide_it_the_same_way_is_taken(load, config):
    policy = load(config, "bfloat16")
    assert policy.fast.way == "plain", policy.fast.reason


@pytest.mark.parametrize("config, sentence", [(MINIMAX, "cannot be sampled here"), (HYPERCLOVA, "makes its logits in a way")],
                         ids=lambda x: getattr(x, "model_type", ""))
def test_what_would_go_wrong_later_is_refused_at_once(load, config, sentence):
    with pytest.raises(ModelError, match=sentence):
        load(config)


def test_a_text_ends_before_long_rope_would_turn_what_is_already_read(load):
    # A prompt and what it continues with are read apart when sampling and together when training: beyond 40 positions the
    # former would keep keys that were turned by the short factors.
    policy = load(PHI3_LONG)
    rollout = roll(policy, None, prompts=("2 + 2 = ?",), max_completion_length=60)
    assert rollout.longest <= 40
    with torch.no_grad():
        torch.testing.assert_close(policy.logps(rollout, None)[0], rollout.sampling_logps, atol=1e-4, rtol=0)


def test_a_padding_token_that_the_model_has_no_embedding_for_pads_nothing(tmp_path):
    folder = asset("models/tiny")
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # as many recipes do, without an embedding for it
    tokenizer.save_pretrained(tmp_path)
    policy = Policy.load(str(tmp_path), device="cpu", num_threads=1)
    assert tokenizer.pad_token_id >= policy.vocab_size > policy.pad_id
    rollout = roll(policy, None, prompts=("2 + 2 = ?", "What is 69 + 13?"), max_completion_length=4)
    with torch.no_grad():
        torch.testing.assert_close(policy.plain_logps(rollout, None)[0], rollout.sampling_logps, atol=1e-4, rtol=0)


def test_a_prompt_with_tokens_that_the_model_does_not_have_is_refused_in_a_sentence(tmp_path):
    config = transformers.LlamaConfig(**SIZES | dict(vocab_size=100), pad_token_id=0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(tmp_path)
    policy = Policy.load(str(tmp_path), device="cpu", num_threads=1)
    with pytest.raises(ModelError, match="token 233 .* only 100 tokens"):
        policy.prompt_ids("What is 69 + 13?", "")


def test_gemma_2_keeps_its_cap_on_attention_scores(load):
    policy = load(GEMMA2)
    rollout = roll(policy, None, num_generations=2, max_completion_length=8)
    ids, mask, positions = rollout.sequences()

    def logits(cap):
        for layer in policy.model.model.layers:
            layer.self_attn.attn_logit_softcapping = cap
        return policy.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits

    uncapped, capped = logits(None), logits(GEMMA2.attn_logit_softcapping)
    prompt = rollout.prompt_ids.shape[1]
    expected = capped[:, prompt - 1 : -1].log_softmax(-1).gather(-1, rollout.completion_ids[..., None]).squeeze(-1)
    expected = expected * rollout.completion_mask
    torch.testing.assert_close(policy.logps(rollout, None)[0], expected, atol=1e-4, rtol=0)
    assert (uncapped - capped).abs().max() > 0.01


@pytest.mark.parametrize("config", [GEMMA2, GPT_NEOX], ids=lambda config: config.model_type)
def test_layers_computed_twice_give_the_same_gradients_of_the_right_adapter(load, config):
    policy = load(config)
    adapter, other = add_random_adapter(policy, seed=1), add_random_adapter(policy, seed=2)
    rollout = roll(policy, adapter)
    parameters = list(policy.adapters.parameters(adapter).values())
    calls = []
    hook = policy.model.get_submodule(policy.model.base_model_prefix).layers[1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))

    def gradients(twice: bool) -> list[torch.Tensor]:
        policy.compute_layers_twice(twice)
        calls.clear()
        return torch.autograd.grad(policy.logps(rollout, adapter)[0].sum(), parameters)

    once, once_calls = gradients(False), len(calls)
    again, again_calls = gradients(True), len(calls)
    policy.compute_layers_twice(False)
    hook.remove()
    assert (once_calls, again_calls) == (1, 2)
    for a, b in zip(once, again, strict=True):
        torch.testing.assert_close(a, b)
    policy.remove_adapter(adapter)
    policy.remove_adapter(other)
