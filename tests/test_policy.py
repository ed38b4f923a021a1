"""The one door between model and algorithm: log-probabilities, entropies and their gradients under named adapters."""

import json
import math
import shutil

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lab.assets import asset
from lab.forward import head
from lab.forward.head import token_logps
from lab.models.registry import ModelError
from lab.policy import Policy

from .conftest import add_random_adapter, roll


def gradients(policy, adapter, rollout, parts=None):
    """d(Σ log-probs weighted by position) / d(adapter), the rows taken together or in parts."""
    parameters = policy.adapters.parameters(adapter)
    for parameter in parameters.values():
        parameter.grad = None
    for rows in parts or [torch.arange(len(rollout))]:
        logps, _ = policy.logps(rollout.rows(rows), adapter)
        (logps * torch.linspace(-1, 1, 64)[: logps.shape[1]]).sum().backward()
    return {key: p.grad.clone() for key, p in parameters.items()}


def reference_logps(model, rollout):
    """Plain full forward of each row alone, without padding: log-probs and entropies as lists of (length,)."""
    logps, entropies = [], []
    for i, group in enumerate(rollout.group_ids.tolist()):
        prompt = rollout.prompt_ids[group][rollout.prompt_mask[group].bool()]
        completion = rollout.completion_ids[i, : rollout.lengths[i]]
        with torch.no_grad():
            logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(logits.float() / rollout.temperature, -1)
        logps.append(log_probs.gather(-1, completion[:, None])[:, 0])
        entropies.append(-(log_probs.exp() * log_probs).sum(-1))
    return logps, entropies


def test_logps_match_a_plain_peft_forward_of_the_saved_adapter(policy, adapter, tmp_path):
    rollout = roll(policy, adapter, ("What is 69 + 13?", "7 - 5 = ?", "Compute 1 + 2 + 3."), temperature=0.7)
    policy.adapters.save(adapter, tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(asset("models/tiny"), dtype=torch.float32)
    plain = peft.PeftModel.from_pretrained(base, tmp_path)
    expected_logps, expected_entropies = reference_logps(plain, rollout)
    with torch.no_grad():
        logps, entropy = policy.logps(rollout, adapter)
    for i, length in enumerate(rollout.lengths):
        torch.testing.assert_close(logps[i, :length], expected_logps[i], atol=1e-4, rtol=0)
        torch.testing.assert_close(entropy[i, :length], expected_entropies[i], atol=1e-4, rtol=0)
        assert not logps[i, length:].any() and not entropy[i, length:].any()


def test_base_is_the_untouched_model(policy, adapter):
    rollout = roll(policy)
    base = transformers.AutoModelForCausalLM.from_pretrained(asset("models/tiny"), dtype=torch.float32)
    logps, _ = policy.frozen_logps(rollout, None, max_tokens=10_000)
    for i, expected in enumerate(reference_logps(base, rollout)[0]):
        torch.testing.assert_close(logps[i, : len(expected)], expected, atol=1e-4, rtol=0)


def test_a_new_adapter_is_exactly_the_base(policy):
    policy.add_adapter("fresh", r=4, alpha=8, seed=3)
    rollout = roll(policy, "fresh")
    fresh, _ = policy.frozen_logps(rollout, "fresh", max_tokens=10_000)
    base, _ = policy.frozen_logps(rollout, None, max_tokens=10_000)
    policy.remove_adapter("fresh")
    assert torch.equal(fresh, base)


def test_padding_and_row_order_change_nothing(policy, adapter):
    rollout = roll(policy, adapter, ("What is 69 + 13?", "7 - 5 = ?"))
    logps, entropy = policy.frozen_logps(rollout, adapter, max_tokens=10_000)
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    shuffled, _ = policy.frozen_logps(rollout.rows(order), adapter, max_tokens=10_000)
    torch.testing.assert_close(shuffled, logps[order, : shuffled.shape[1]], atol=2e-5, rtol=0)
    alone, _ = policy.frozen_logps(rollout.rows(torch.tensor([3])), adapter, max_tokens=10_000)
    torch.testing.assert_close(alone[0], logps[3, : alone.shape[1]], atol=2e-5, rtol=0)


@pytest.mark.parametrize("parts", [[1] * 6, [2, 2, 2], [5, 1]], ids=str)
def test_micro_batch_splits_give_equal_gradients(policy, adapter, parts):
    rollout = roll(policy, adapter)
    whole = gradients(policy, adapter, rollout)
    split = gradients(policy, adapter, rollout, torch.arange(6).split(parts))
    for key in whole:
        torch.testing.assert_close(split[key], whole[key], atol=1e-6 * float(whole[key].abs().max() + 1), rtol=1e-4)


def test_only_the_named_adapter_gets_a_gradient(policy, adapter):
    other = add_random_adapter(policy, seed=2)
    rollout = roll(policy, adapter)
    gradients(policy, adapter, rollout)
    policy.frozen_logps(rollout, other, max_tokens=10_000)
    assert all(p.grad is not None for p in policy.adapters.parameters(adapter).values())
    assert all(p.grad is None for p in policy.adapters.parameters(other).values())
    assert all(p.grad is None for name, p in policy.model.named_parameters() if "lora_" not in name)
    policy.remove_adapter(other)


def test_no_adapter_is_active_outside_a_forward(policy, adapter):
    ids = torch.tensor([policy.prompt_ids("What is 1 + 2?", "")])
    with torch.no_grad():
        before = policy.model(ids).logits
        with policy.adapters.active(adapter):
            inside = policy.model(ids).logits
        after = policy.model(ids).logits
    assert torch.equal(before, after) and not torch.equal(before, inside)


def test_the_head_in_chunks_gives_the_same_values_and_gradients(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 8, generator=generator)
    weight = torch.randn(50, 8, generator=generator)
    tokens = torch.randint(50, (11,), generator=generator)

    def results():
        leaf = hidden.clone().requires_grad_()
        logps, entropy = token_logps(leaf, tokens, lambda h: h @ weight.T, 0.7, 50)
        (logps.sum() - 0.3 * entropy.sum()).backward()
        return logps.detach(), entropy.detach(), leaf.grad

    whole = results()
    monkeypatch.setattr(head, "CHUNK_LOGITS", 4 * 50)  # 3 chunks of 4, 4 and 3 positions
    for got, expected in zip(results(), whole, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def test_logps_and_entropy_by_hand():
    # logits 0, ln 3 at temperature 1: probabilities 1/4 and 3/4; entropy ¼ ln 4 + ¾ ln(4/3).
    logits_of = lambda h: h  # noqa: E731
    logps, entropy = token_logps(torch.tensor([[0.0, math.log(3)]]), torch.tensor([1]), logits_of, 1.0, 2)
    assert logps.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    # At temperature 2 the weights are 1 and √3.
    logps, _ = token_logps(torch.tensor([[0.0, math.log(3)]]), torch.tensor([0]), logits_of, 2.0, 2)
    assert logps.item() == pytest.approx(-math.log(1 + math.sqrt(3)))
    # A forbidden token has probability 0 and adds no entropy.
    _, entropy = token_logps(torch.tensor([[0.0, -math.inf]]), torch.tensor([0]), logits_of, 1.0, 2)
    assert entropy.item() == 0.0


def test_adding_an_adapter_leaves_the_global_random_state_alone(policy):
    before = torch.get_rng_state()
    name = add_random_adapter(policy, seed=5)
    policy.remove_adapter(name)
    assert torch.equal(before, torch.get_rng_state())


def test_the_seed_decides_the_adapters_start(policy):
    prints = []
    for seed in (1, 1, 2):
        policy.add_adapter("seeded", r=4, alpha=8, seed=seed)
        prints.append(policy.adapters.fingerprint("seeded"))
        policy.remove_adapter("seeded")
    assert prints[0] == prints[1] != prints[2]


def test_adapter_sits_on_every_linear_layer_but_the_head(policy, adapter):
    # 4 layers × (q, k, v, o, gate, up, down) × (A, B)
    assert len(policy.adapters.parameters(adapter)) == 4 * 7 * 2
    assert not any("lm_head" in key for key in policy.adapters.parameters(adapter))


def test_removing_an_adapter_leaves_the_others_working(policy):
    rollout = roll(policy)
    kept = add_random_adapter(policy, seed=7)
    expected, _ = policy.frozen_logps(rollout, kept, max_tokens=10_000)
    gone = add_random_adapter(policy, seed=8)
    policy.frozen_logps(rollout, gone, max_tokens=10_000)
    policy.remove_adapter(gone)
    assert torch.equal(policy.frozen_logps(rollout, kept, max_tokens=10_000)[0], expected)
    for use in (lambda: policy.logps(rollout, gone), lambda: roll(policy, gone)):
        with pytest.raises(KeyError, match="no adapter named"):
            use()
    policy.remove_adapter(kept)


@pytest.mark.parametrize("what", ["adding", "using on the plain path", "removing"])
def test_an_adapter_still_learns_after_something_was_done_with_another(policy, what):
    rollout, kept = roll(policy), add_random_adapter(policy, seed=7)
    expected = gradients(policy, kept, rollout)
    other = add_random_adapter(policy, seed=8)
    if what == "using on the plain path":
        with torch.no_grad():
            policy.plain_logps(rollout, other)
    if what == "removing":
        policy.remove_adapter(other)
    found = gradients(policy, kept, rollout)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    for name in (kept, other)[:1 if what == "removing" else 2]:
        policy.remove_adapter(name)


def test_adapter_names_that_look_like_layers_stay_apart(policy):
    rollout = roll(policy)
    for name in ("model", "lora_A", "q_proj", "weight"):
        policy.add_adapter(name, r=2, alpha=4, seed=1)
    assert all(len(policy.adapters.parameters(name)) == 56 for name in ("model", "lora_A", "q_proj", "weight"))
    for name in ("model", "lora_A", "q_proj", "weight"):
        policy.remove_adapter(name)
    assert policy.frozen_logps(rollout, None, max_tokens=10_000)[0].isfinite().all()


# -- continued adapters


def test_a_saved_adapter_can_be_continued(policy, adapter, tmp_path):
    policy.adapters.save(adapter, tmp_path)
    policy.add_adapter("again", r=99, alpha=1, seed=0, path=str(tmp_path))  # rank and alpha are the file's
    assert policy.adapters.fingerprint("again") == policy.adapters.fingerprint(adapter)
    assert all(p.dtype == torch.float32 for p in policy.adapters.parameters("again").values())
    policy.remove_adapter("again")


def test_an_adapter_that_does_not_fit_is_refused_and_leaves_nothing(policy, adapter, tmp_path):
    policy.adapters.save(adapter, tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    weights.popitem()
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="does not fit"):
        policy.add_adapter("bad", r=4, alpha=8, seed=0, path=str(tmp_path))
    assert "bad" not in policy.adapters


def test_an_adapter_without_a_trainable_parameter_is_refused(policy, adapter, tmp_path):
    policy.adapters.save(adapter, tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["nowhere"]}))
    with pytest.raises(ModelError, match="does not fit this model.*nowhere"):
        policy.add_adapter("bad", r=4, alpha=8, seed=0, path=str(tmp_path))
    assert "bad" not in policy.adapters


def test_what_is_not_a_lora_folder_is_refused_in_a_sentence(policy, adapter, tmp_path):
    with pytest.raises(ModelError, match="no adapter_config.json"):
        policy.add_adapter("bad", r=4, alpha=8, seed=0, path=str(tmp_path))


@pytest.mark.parametrize("setting, value", [
    ("peft_type", "IA3"), ("use_dora", True), ("modules_to_save", ["embed_tokens"]), ("bias", "all"), ("lora_bias", True),
    ("trainable_token_indices", [1]), ("layer_replication", [[0, 2], [1, 3]]), ("alora_invocation_tokens", [5]),
    ("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "olora"),  # the base's weights were changed, too
])
def test_an_adapter_that_is_more_than_lora_on_linear_layers_is_refused_by_name(policy, adapter, tmp_path, setting, value):
    policy.adapters.save(adapter, tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {setting: value}))
    with pytest.raises(ModelError, match=f"not a plain LoRA.*{setting}"):
        policy.add_adapter("bad", r=4, alpha=8, seed=0, path=str(tmp_path))


def test_an_adapter_on_the_head_is_refused(policy, tmp_path):
    base = transformers.AutoModelForCausalLM.from_pretrained(asset("models/tiny"))
    peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"])).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="output head"):
        policy.add_adapter("bad", r=4, alpha=8, seed=0, path=str(tmp_path))
    assert "bad" not in policy.adapters


@pytest.mark.parametrize("settings", [
    dict(r=1, use_rslora=True, lora_alpha=3), dict(r=64, target_modules=["q_proj", "down_proj"]), dict(r=4, init_lora_weights="gaussian"),
    dict(r=4, rank_pattern={"q_proj": 8}, alpha_pattern={"q_proj": 32}), dict(r=4, layers_to_transform=[1], layers_pattern="layers"),
], ids=lambda settings: next(name for name in reversed(settings)))
def test_any_plain_lora_of_peft_gives_pefts_log_probabilities(policy, tmp_path, settings):
    base = transformers.AutoModelForCausalLM.from_pretrained(asset("models/tiny"), dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(**dict(target_modules=["q_proj", "v_proj", "up_proj"]) | settings))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(tmp_path)
    policy.add_adapter("theirs", r=4, alpha=8, seed=0, path=str(tmp_path))
    rollout = roll(policy, "theirs")
    ids, mask, positions = rollout.sequences()
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, rollout.prompt_ids.shape[1] - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, rollout.completion_ids[..., None]).squeeze(-1) * rollout.completion_mask
        torch.testing.assert_close(policy.logps(rollout, "theirs")[0], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(rollout.sampling_logps, expected, atol=1e-4, rtol=0)
    policy.remove_adapter("theirs")


# -- precision


def test_lora_is_float32_on_a_bfloat16_base_and_the_base_keeps_its_dtype():
    policy = Policy.load("tiny", device="cpu", dtype="bfloat16")
    name = add_random_adapter(policy, seed=1)
    assert all(p.dtype == torch.float32 for p in policy.adapters.parameters(name).values())
    assert policy.model.get_input_embeddings().weight.dtype == torch.bfloat16
    logps, _ = policy.logps(roll(policy, name), name)
    assert logps.dtype == torch.float32 and logps.isfinite().all()


def test_4bit_gradients_are_right_before_and_after_sampling(policy_4bit):
    """Also where the CPU has AVX512-BF16, on which bitsandbytes 0.50 gives garbage after the first sampling."""
    policy = policy_4bit
    name = add_random_adapter(policy, seed=4)
    rollout = roll(Policy.load("tiny", device="cpu"))  # sampled elsewhere: this model has not run a forward yet
    before = gradients(policy, name, rollout)
    roll(policy, name)
    after = gradients(policy, name, rollout)
    assert all(torch.equal(before[key], after[key]) for key in before)

    exact = _dequantised_copy(policy)
    policy.adapters.save(name, (folder := _fresh_folder("adapter")))
    exact.add_adapter("same", r=4, alpha=8, seed=0, path=str(folder))
    true = gradients(exact, "same", rollout)
    assert all(torch.cosine_similarity(before[k].flatten(), true[k].flatten(), dim=0) > 0.999 for k in true)
    policy.remove_adapter(name)


def test_4bit_kl_is_exactly_zero_for_a_new_adapter(policy_4bit):
    policy_4bit.add_adapter("fresh", r=4, alpha=8, seed=0)
    rollout = roll(policy_4bit, "fresh")
    fresh, _ = policy_4bit.frozen_logps(rollout, "fresh", max_tokens=10_000)
    base, _ = policy_4bit.frozen_logps(rollout, None, max_tokens=10_000)
    policy_4bit.remove_adapter("fresh")
    assert torch.equal(fresh, base)


def test_4bit_leaves_embeddings_and_head_unquantised(policy_4bit):
    assert policy_4bit.model.get_input_embeddings().weight.is_floating_point()
    assert policy_4bit.info["load_in_4bit"] and policy_4bit.info["bytes"] < 4 * 1_832_640


# -- loading


def test_the_number_of_parameters_is_the_bases(policy, policy_4bit, adapter):
    assert policy.info["params"] == policy_4bit.info["params"] == 1_832_640


def test_every_end_token_counts(policy):
    assert policy.eos_ids == [1]
    assert policy.pad_id == 0


def test_a_device_that_is_not_there_is_said_in_a_sentence():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ModelError, match="no cuda device"):
        Policy.load("tiny", device="cuda")


def test_a_damaged_folder_is_said_in_a_sentence(tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(asset("models/tiny"), folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="broken"):
        Policy.load(str(folder), device="cpu")


def test_a_folder_without_a_tokenizer_is_said_in_a_sentence(tmp_path):
    # transformers makes an empty tokenizer for it, and the first prompt would have no token
    config = transformers.Qwen2Config(vocab_size=320, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                      num_key_value_heads=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer. Put tokenizer.json"):
        Policy.load(str(tmp_path), device="cpu")


def test_the_models_own_system_message_is_the_default(policy):
    text = policy.tokenizer.decode(policy.prompt_ids("Hi", ""))
    assert text == "<|system|>Think, then answer.<|end|><|user|>Hi<|end|><|assistant|>"
    assert policy.tokenizer.decode(policy.prompt_ids("Hi", None)) == "<|user|>Hi<|end|><|assistant|>"
    assert policy.tokenizer.decode(policy.prompt_ids("Hi", "Be brief.")).startswith("<|system|>Be brief.<|end|>")


def _dequantised_copy(policy):
    """A float32 policy whose weights are exactly what the 4-bit ones stand for."""
    import bitsandbytes

    exact = Policy.load("tiny", device="cpu")
    wanted = dict(exact.model.named_modules())
    for path, module in policy.model.named_modules():
        path = path.removesuffix(".base_layer")
        if isinstance(module, bitsandbytes.nn.Linear4bit) and path in wanted:
            weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            wanted[path].weight.data = weight.float().view_as(wanted[path].weight)
    return exact


def _fresh_folder(name):
    import tempfile
    from pathlib import Path

    return Path(tempfile.mkdtemp(prefix=name))


def test_an_adapters_name_with_a_dot_is_refused_in_a_sentence(policy):
    with pytest.raises(ValueError, match="use a name without dots"):
        policy.add_adapter("beta-0.5", r=4, alpha=8, seed=0)
