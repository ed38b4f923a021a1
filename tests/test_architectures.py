"""Models of other families than our own layers know, small and random: each runs, by a way that gives its own numbers."""

from __future__ import annotations

import pytest
import torch
import transformers

from lab.assets import asset
from lab.config import RunConfig
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


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A policy on a random model of this config, loaded once."""
    loaded = {}

    def make(config) -> Policy:
        if config.model_type not in loaded:
            folder = tmp_path_factory.mktemp(config.model_type)
            torch.manual_seed(0)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(folder)
            loaded[config.model_type] = Policy.load(str(folder), device="cpu", num_threads=1)
        return loaded[config.model_type]

    return make


@pytest.mark.parametrize("config, way", [(GEMMA2, "plain"), (GPT_NEO, "plain"), (GPT_NEOX, "shared")],
                         ids=lambda x: getattr(x, "model_type", x))
def test_it_trains_by_the_way_that_was_found_right_and_says_which(load, config, way):
    policy = load(config)
    assert policy.fast.way == way and policy.fast.reason.startswith("Plain path" if way == "plain" else "Fast path")
    settings = RunConfig(model=policy.name, rewards=(letters,), num_generations=4, prompts_per_step=2, max_completion_length=12,
                         max_steps=1)
    trainer = Trainer(settings, policy=policy, adapter="trained")
    record = next(trainer)
    assert record.metrics["grad_norm"] > 0 and record.metrics["sampling/sampling_logp_difference/max"] < 1e-3
    trainer.close()


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
