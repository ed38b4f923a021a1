"""The reward model with a tiny sequence-classification model of random weights: at the end, at each step, refusals."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.assets import asset
from lab.models.registry import ModelError
from lab.records import Completion, Group
from lab.rewards import RewardError, RewardNotFound, resolve, score
from lab.rewards.reward_model import step_positions


def save_classifier(folder: Path, labels: int) -> Path:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(labels)
    own = LlamaConfig(vocab_size=1024, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                      num_key_value_heads=2, max_position_embeddings=128, num_labels=labels, pad_token_id=0, initializer_range=0.5)
    own.id2label = {i: name for i, name in enumerate(("bad", "fair", "good")[:labels])}
    own.label2id = {name: i for i, name in own.id2label.items()}
    LlamaForSequenceClassification(own).save_pretrained(folder, safe_serialization=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(asset("models/tiny") / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("three"), 3)


def scored(reward, texts, prompt="What is 1 + 1?"):
    made = Group(0, prompt, [1], {"prompt": prompt}, [Completion(i, text, [1], True) for i, text in enumerate(texts)])
    score(resolve(reward), None, [made])
    return made.completions


def by_hand(folder, text, prompt="What is 1 + 1?"):
    """The model's outputs for one text, without batches and padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
    ids = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False, return_tensors="pt").input_ids
    with torch.inference_mode():
        return model(input_ids=ids[:, -128:]).logits[0]


TEXTS = ["<answer>2</answer>", "2", "First 1 and then 1 more.\nThat is 2.", "", "nine " * 9]


def test_the_models_own_number_is_the_reward_whatever_it_is_computed_beside(one):
    values = [c.reward for c in scored(f"reward_model(model={str(one)!r})", TEXTS * 3)]
    expected = [float(by_hand(one, text)[0]) for text in TEXTS] * 3
    assert values == pytest.approx(expected, abs=1e-5) and len({round(v, 4) for v in expected}) == len(TEXTS)


def test_of_several_outputs_the_named_ones_probability(three):
    expected = [by_hand(three, text).softmax(0) for text in TEXTS]
    for label, column in (("good", 2), (0, 0)):
        values = [c.reward for c in scored(f"reward_model(model={str(three)!r}, label={label!r})", TEXTS)]
        assert values == pytest.approx([float(p[column]) for p in expected], abs=1e-5)


def test_each_step_is_scored_with_all_before_it(one):
    text = "1 and 1.\n\nThat is 2.\n"
    scored_steps = scored(f"reward_model(model={str(one)!r}, each=True)", [text, "2", "\n\n"])
    steps = [c.steps["reward_model"] for c in scored_steps[:2]]
    assert [[end for end, _ in found] for found in steps] == [[8, 20], [1]]
    assert [value for _, value in steps[0]] == pytest.approx([float(by_hand(one, text[:end])[0]) for end in (8, 20)], abs=1e-5)
    assert scored_steps[0].reward == pytest.approx(sum(value for _, value in steps[0]) / 2)
    assert scored_steps[2].reward is None


def test_what_is_too_long_loses_its_beginning(one):
    long = "one two three four five six seven " * 60
    assert scored(f"reward_model(model={str(one)!r})", [long])[0].reward == pytest.approx(float(by_hand(one, long)[0]), abs=1e-5)


@pytest.mark.parametrize("text, found", [("a", [1]), ("a\n", [1]), ("a\n\nb", [1, 4]), ("\na", [2]), ("", []), ("\n \n", [])])
def test_where_steps_end(text, found):
    assert step_positions(text, "\n") == found


def test_a_model_that_cannot_serve_is_refused_in_a_sentence(three, tmp_path):
    with pytest.raises(RewardNotFound, match="needs a model"):
        resolve("reward_model")
    with pytest.raises(RewardError, match="outputs are bad, fair, good: name one"):
        scored(f"reward_model(model={str(three)!r})", ["2"])
    with pytest.raises(RewardError, match="no trained classification head"):
        scored("reward_model(model='tiny')", ["2"])
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(RewardError, match="only pickled weights") as told:
        scored(f"reward_model(model={str(pickled)!r})", ["2"])
    assert isinstance(told.value.__cause__, ModelError)


def test_it_trains(one, make_trainer):
    step = next(make_trainer(rewards=(f"reward_model(model={str(one)!r})",)))
    assert step.metrics["rewards/reward_model/std"] > 0 and step.metrics["grad_norm"] > 0


def test_naming_it_costs_no_torch_and_the_pages_process_never_loads_it():
    code = ("import sys; from lab.rewards import resolve; f = resolve('reward_model(model=\"tiny\")')[0].function\n"
            "assert 'torch' not in sys.modules; sys.modules['gradio'] = sys\n"
            "try: f(prompts=['p'], completions=['c'])\n"
            "except RuntimeError as error: sys.exit(7 if 'scores in the engine' in str(error) else 8)")
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7
