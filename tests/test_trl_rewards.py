"""Rewards as TRL's documentation has them, in all their shapes, run unchanged here and give what TRL's trainer gets from them;
files exported from our editor run unchanged in TRL's trainer. One real step of TRL's on a tiny random model for each form."""

from __future__ import annotations

import importlib.util
import math
import re

import pytest
import torch

from lab.assets import asset
from lab.records import Completion, Group
from lab.rewards import TrainerState, resolve, score
from lab.web.reward.templates import templates
from tests.test_reward_model import save_classifier

trl = pytest.importorskip("trl", reason="TRL is only needed to compare with it")

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b), "level": a} for a, b in ((1, 2), (3, 4))]
G = 4


# -- for chat prompts: completions are lists of messages


def share_of_letters(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [sum(c.isalpha() for c in text) / max(1, len(text)) for text in texts]


def named_columns(prompts, completions, answer, level, **kwargs):
    return [float(right in completion[-1]["content"]) + row / 10 for completion, right, row in zip(completions, answer, level, strict=True)]


def of_token_ids(completion_ids, **kwargs):
    return [float(sum(ids) % 17) for ids in completion_ids]


def of_the_prompt(prompts, **kwargs):
    return [float(len(prompt[-1]["content"])) for prompt in prompts]


def only_for_some(completions, level, **kwargs):
    return [None if row == 1 else float(len(completion[0]["content"])) for completion, row in zip(completions, level, strict=True)]


async def from_far_away(completions, **kwargs):
    import asyncio

    await asyncio.sleep(0.001)
    return [float(len(completion[0]["content"])) for completion in completions]


def by_progress(completions, trainer_state, **kwargs):
    return [1.0 + trainer_state.global_step / max(1, trainer_state.max_steps)] * len(completions)


def that_logs(completions, log_extra, log_metric, **kwargs):
    lengths = [len(completion[0]["content"]) for completion in completions]
    log_extra("length", lengths)
    log_metric("mean_length", sum(lengths) / len(lengths))
    return [-0.01 * length for length in lengths]


class Callable:
    """An object that is called, as TRL accepts it too."""

    __name__ = "an_object"

    def __call__(self, completions, **kwargs):
        return [float(completion[0]["content"].count("1")) for completion in completions]


CHAT = [share_of_letters, named_columns, of_token_ids, of_the_prompt, only_for_some, from_far_away, by_progress, that_logs, Callable()]


# -- for plain prompts: completions are strings


def words(completions, **kwargs):
    return [float(len(completion.split())) for completion in completions]


def pattern(completions, **kwargs):
    return [1.0 if re.search(r"[0-9]{2}", content) else 0.0 for content in completions]


def with_prompt(prompts, completions, **kwargs):
    return [float(len(prompt) + len(completion)) for prompt, completion in zip(prompts, completions, strict=True)]


def answer_in_it(completions, answer, **kwargs):
    return [1.0 if text.endswith(right) else 0.1 * len(set(text)) for text, right in zip(completions, answer, strict=True)]


async def later(prompts, completions, completion_ids, **kwargs):
    return [None if len(ids) % 2 else 1.0 for ids in completion_ids]


PLAIN = [words, pattern, with_prompt, answer_in_it, later]


def one_trl_step(functions, folder, chat):
    """TRL's own rewards of one step, by function, and what it gave the functions."""
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(asset("models/tiny"))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128))
    rows = [{"prompt": [{"role": "user", "content": row["question"]}] if chat else row["question"], **row} for row in ROWS]
    seen = {}

    def witness(prompts, completions, completion_ids, trainer_state, **kwargs):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, columns=kwargs,
                    state=(trainer_state.global_step, trainer_state.max_steps))
        return [0.0] * len(completions)

    config = GRPOConfig(output_dir=str(folder), per_device_train_batch_size=G, gradient_accumulation_steps=len(ROWS), num_generations=G,
                        max_completion_length=12, max_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
                        logging_strategy="steps", logging_steps=1, save_strategy="no", disable_tqdm=True, seed=1)
    trainer = GRPOTrainer(model=model, reward_funcs=[*functions, witness], args=config, train_dataset=Dataset.from_list(rows),
                          processing_class=tokenizer)
    trainer.train()
    given = {name: list(values) for name, values in trainer._logs["rewards"].items()}
    extra = {name: list(values) for name, values in trainer._logs["extra"].items()}
    return given, extra, seen, trainer.state.log_history[0]


def ours_on(seen, functions):
    """The same completions scored here."""
    made, names = [], [name for name in seen["columns"] if name in ROWS[0]]
    for first in range(0, len(seen["completions"]), G):
        texts = [c if isinstance(c, str) else c[0]["content"] for c in seen["completions"][first:first + G]]
        completions = [Completion(i, text, list(seen["completion_ids"][first + i]), True) for i, text in enumerate(texts)]
        row = {name: seen["columns"][name][first] for name in names}
        made.append(Group(len(made), row["question"], [1], {"prompt": seen["prompts"][first], **row}, completions))
    metrics = score(resolve(functions), None, made, trainer_state=TrainerState(*seen["state"]))
    return [c for group in made for c in group.completions], metrics


def agree(theirs, ours, name):
    values = [math.nan if c.rewards[name] is None else c.rewards[name] for c in ours]
    assert values == pytest.approx(theirs[name], rel=1e-6, abs=1e-6, nan_ok=True), name


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("trl") / "classifier", 1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Every template of our editor, as the file that Export writes: (path, its function imported as TRL's users would)."""
    folder, found = tmp_path_factory.mktemp("exported"), []
    for template in templates(["answer"]):
        path = folder / f"{template['name']}.py"
        path.write_text(template["source"], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(template["name"], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = next(value for value in vars(module).values() if getattr(value, "__module__", "") == template["name"])
        found.append((path, function))
    return found


@pytest.fixture(scope="module")
def chat_step(tmp_path_factory, exported, classifier):
    functions = [*CHAT, *(function for _, function in exported), str(classifier)]
    return one_trl_step(functions, tmp_path_factory.mktemp("chat"), chat=True)


def test_every_shape_for_chat_prompts_gives_what_trl_gets(chat_step):
    theirs, extra, seen, log = chat_step
    ours, metrics = ours_on(seen, CHAT)
    for function in CHAT:
        agree(theirs, ours, function.__name__)
    assert len({tuple(values) for values in theirs.values()}) > len(CHAT) - 2  # they differ, so agreement says something
    assert [c.extra["length"] for c in ours] == extra["length"]
    assert metrics["mean_length"] == pytest.approx(log["mean_length"])
    assert [c.rewards["only_for_some"] is None for c in ours] == [row == 1 for row in seen["columns"]["level"]]


def test_every_shape_for_plain_prompts_gives_what_trl_gets(tmp_path):
    theirs, _, seen, _ = one_trl_step(PLAIN, tmp_path, chat=False)
    assert isinstance(seen["completions"][0], str)
    ours, _ = ours_on(seen, PLAIN)
    for function in PLAIN:
        agree(theirs, ours, function.__name__)


def test_what_our_editor_exports_runs_in_trls_trainer_and_scores_as_it_does_here(chat_step, exported):
    theirs, _, seen, log = chat_step
    ours, _ = ours_on(seen, [path for path, _ in exported])  # here in the locked worker
    for _, function in exported:
        agree(theirs, ours, function.__name__)
        assert f"rewards/{function.__name__}/mean" in log
    assert len(exported) >= 4


def test_a_reward_model_scores_as_trl_has_it_score(chat_step, classifier):
    theirs, _, seen, _ = chat_step
    ours, _ = ours_on(seen, [f"reward_model(model={str(classifier)!r})"])
    name = next(name for name in theirs if "classifier" in name)
    assert [c.reward for c in ours] == pytest.approx(theirs[name], abs=1e-4)
