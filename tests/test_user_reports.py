"""What users of other GRPO trainers reported: the list is whole (`tests.reports`), and what no other module tests is tested here."""

import ast
import json
import threading
from pathlib import Path

import pytest
import torch

from lab.config import RunConfig
from lab.forward.fast_path import FastPath
from lab.grpo import POLICY_TERMS, grpo_loss
from lab.policy import Policy
from lab.rewards import resolve, score
from lab.rules.losses import LATER_SETTINGS
from lab.trainer import Trainer, sample_group
from lab.training.cold_start import as_rollout

from .conftest import add_random_adapter, letters, roll
from .reports import REPORTS

NOT_OF_ONE_DEVICE = {2, 11, 20, 31, 35, 38}


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.row} {report.seen}")
def test_every_report_has_its_tests(report):
    assert report.tests
    for name in report.tests:
        module, _, function = name.partition(".")
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), name


def test_every_row_of_one_device_is_in_the_list():
    assert {report.row for report in REPORTS} | NOT_OF_ONE_DEVICE == set(range(1, 43))


@pytest.mark.parametrize("path", ["own layers", "the model's own forward"])
def test_dropout_of_a_continued_adapter_is_off_in_every_pass(make_trainer, policy, tmp_path, monkeypatch, path):
    if path == "the model's own forward":  # where PEFT's dropout would act
        monkeypatch.setattr(policy, "fast", FastPath(None, False, "asked for"))
    first = make_trainer(max_steps=1)
    next(first)
    folder = first.save(tmp_path / "a")
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"lora_dropout": 0.5, "inference_mode": True}))
    record = next(make_trainer(adapter=str(folder)))
    assert record.metrics["kl"] == 0.0 and record.metrics["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.parametrize("loss_type", POLICY_TERMS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_without_kl_every_loss_still_moves_the_weights(loss_type, level):
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    settings = {name: getattr(RunConfig(), name) for name in LATER_SETTINGS}
    loss, _ = grpo_loss(
        logps, None, None, torch.tensor([1.0, -1.0]), torch.ones(2, 3), loss_type=loss_type, epsilon=0.2,
        epsilon_high=5.0 if loss_type == "cispo" else None, delta=None, beta=0.0, kl_estimator="k3",
        importance_sampling_level=level, max_completion_length=3, **settings,
    )
    loss.backward()
    assert (logps.grad[0] < 0).all() and (logps.grad[1] > 0).all()


def test_steps_and_prompts_do_not_depend_on_the_group_size(make_trainer):
    seen = {}
    for num_generations in (2, 5):
        records = list(make_trainer(num_generations=num_generations, prompts_per_step=3, max_steps=2, max_completion_length=2))
        assert [len(group.completions) for record in records for group in record.groups] == [num_generations] * 6
        seen[num_generations] = [group.prompt for record in records for group in record.groups]
    assert len(seen[2]) == 6 and seen[2] == seen[5]


def test_sampling_reads_every_token_once(policy):
    """With a cache a prompt is read once and each new token once; without one, each token reads all before it again."""
    read = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: read.append(inputs[0].numel()))
    try:
        rollout = roll(policy, num_generations=4, max_completion_length=24)
    finally:
        hook.remove()
    assert 0 < sum(read) <= rollout.prompt_ids.numel() + int(rollout.lengths.sum())


def test_a_template_that_opens_the_thinking_itself_does_not_make_the_format_reward_0(policy, monkeypatch):
    monkeypatch.setattr(policy.tokenizer, "chat_template", policy.tokenizer.chat_template + "<think>")
    config = RunConfig(model="tiny", task="add2", rewards=("format", "regex(pattern='<think>')"), num_generations=2,
                       max_completion_length=4)
    [group] = finished(sample_group(policy, config, [{"prompt": "What is 1 + 1?", "answer": "2"}]))
    assert policy.decode(group.prompt_ids).endswith("<think>") and group.row["prefill"] == "<think>"
    assert [c.rewards["regex"] for c in group.completions] == [1.0, 1.0]  # the whole answer is judged, not only its rest
    for completion in group.completions:
        completion.text = "1 + 1 = 2</think><answer>2</answer>"
    score(resolve(config.rewards), None, [group])
    assert [c.rewards["format"] for c in group.completions] == [1.0, 1.0]


def test_without_such_a_template_a_completion_that_only_closes_the_thinking_has_no_format(policy):
    config = RunConfig(model="tiny", task="add2", rewards=("format",), num_generations=2, max_completion_length=4)
    [group] = finished(sample_group(policy, config, [{"prompt": "What is 1 + 1?", "answer": "2"}]))
    assert "prefill" not in group.row
    group.completions[0].text = "1 + 1 = 2</think><answer>2</answer>"
    score(resolve(config.rewards), None, [group])
    assert group.completions[0].rewards["format"] == 0.0


def test_a_cold_start_does_not_open_the_thinking_twice(policy, monkeypatch):
    monkeypatch.setattr(policy.tokenizer, "chat_template", policy.tokenizer.chat_template + "<think>")
    rollout = as_rollout(policy, [{"prompt": "1 + 1 = ?", "completion": "<think>1+1=2</think><answer>2</answer>"}], "")
    assert policy.decode(rollout.completion_ids[0].tolist()) == "1+1=2</think><answer>2</answer>"


def test_4_bits_are_unpacked_once_for_a_batch_and_not_again_for_every_token(policy_4bit, monkeypatch):
    """What makes 4 bits slower than 16 is unpacking them at each product. Counted, not timed: a sampling of 32 tokens asks as
    often as one of 4, once for each linear layer of the copy, and no product is made with packed weights at all."""
    import bitsandbytes

    asked = []
    for name in ("dequantize_4bit", "gemv_4bit"):
        monkeypatch.setattr(bitsandbytes.functional, name, counting(getattr(bitsandbytes.functional, name), asked))
    monkeypatch.setattr(bitsandbytes, "matmul_4bit", counting(bitsandbytes.matmul_4bit, asked))
    counts, tokens = {}, {}
    for length in (4, 32):
        asked.clear()
        rollout = roll(policy_4bit, num_generations=3, max_completion_length=length)
        counts[length], tokens[length] = len(asked), int(rollout.lengths.sum())
    layers = [m for m in policy_4bit.model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]  # not peft's wrappers of that name
    assert tokens[32] > tokens[4]
    assert counts == {4: len(layers), 32: len(layers)}


def counting(function, calls):
    def counted(*args, **kwargs):
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return counted


def test_weights_in_4_bits_are_never_merged(policy_4bit):
    """The copy that samples is in 16 bits and beside them: rounded back to 4 bits an adapter would be lost."""
    adapter = add_random_adapter(policy_4bit, seed=2)
    before = {name: p.clone() for name, p in policy_4bit.model.named_parameters()}
    roll(policy_4bit, adapter, num_generations=2, max_completion_length=4)
    assert all(torch.equal(p, before[name]) for name, p in policy_4bit.model.named_parameters())
    policy_4bit.remove_adapter(adapter)


def test_the_default_learning_rate_is_one_for_lora():
    assert 1e-5 <= RunConfig().learning_rate <= 5e-5


@pytest.mark.parametrize("base", ["bfloat16", "4-bit"])
def test_the_adapter_moves_on_a_small_base_as_it_does_in_float32(policy, base, request):
    """At 1e-5 an A matrix in bfloat16 keeps an eighth of its movement (rounding swallows the rest). Ours is float32 always."""
    small = request.getfixturevalue("policy_4bit") if base == "4-bit" else Policy.load(
        "tiny", device="cpu", dtype="bfloat16", load_in_4bit=False, num_threads=1)
    expected, got = movement(policy), movement(small)
    for matrix in ("lora_A", "lora_B"):
        assert got[matrix] >= 0.95 * expected[matrix] > 0


def finished(stream):
    """What a generator returns."""
    while True:
        try:
            next(stream)
        except StopIteration as stop:
            return stop.value


def movement(policy):
    """Summed size of what A and B moved in ten steps at 1e-5, over elements."""
    config = RunConfig(model="tiny", task="add2", rewards=(letters,), num_generations=4, prompts_per_step=2, max_completion_length=8,
                       learning_rate=1e-5, max_steps=10, lora_r=8)
    trainer = Trainer(config, policy=policy, adapter="movement")
    start = {key: p.detach().clone() for key, p in policy.adapters.parameters("movement").items()}
    list(trainer)
    moved = {"lora_A": 0.0, "lora_B": 0.0}
    for key, p in policy.adapters.parameters("movement").items():
        moved["lora_A" if "lora_A" in key else "lora_B"] += float((p.detach() - start[key]).abs().sum())
    trainer.close()
    return moved


def test_mathematics_is_graded_off_the_main_thread_too():
    pytest.importorskip("math_verify", reason="math-verify is an extra")
    graded = []

    def grade():
        function = resolve("accuracy(source='boxed', math=True)")[0].function
        graded.extend(function(completions=[r"\boxed{\frac{1}{2}}", r"\boxed{3}"], answer=["0.5", "4"]))

    thread = threading.Thread(target=grade)
    thread.start()
    thread.join()
    assert graded == [1.0, 0.0]
