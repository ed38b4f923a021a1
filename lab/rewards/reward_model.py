"""A reward from a trained reward model: any sequence-classification model, at the end of a completion or at each step of it.

The model runs trusted, in the process that trains (the engine, a notebook): torch is imported at the first call and not
before, so the page can name this reward without it. Only safetensors are read and no code from a repository runs
(`lab.models.registry`). A model is loaded once per process. Leaves out training one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lab.rewards.common import RewardFunction, builtin, texts_of
from lab.rewards.contract import text_of

TOGETHER = 8  # texts in one forward
PAGE = ("The page's process does without torch, so a reward model cannot be tried there: it scores in the engine. Sample a group in Lab, "
        "or train.")


@builtin
def reward_model(model: str = "", label: str | int | None = None, each: bool = False, step_ends: str = "\n",
                 max_tokens: int = 2048) -> RewardFunction:
    r"""What a sequence-classification model makes of prompt and completion: its one output, or the probability of `label`.

    `model` is a folder or a Hub id with safetensors. A model with several outputs needs `label`, a name or a number.
    `each`: every step of the completion, ended by `step_ends`, is scored with all that came before it, and rewards its
    own tokens (process supervision); a completion without text gets None. Texts longer than `max_tokens` lose their
    beginning. With a chat template in the model's folder prompt and completion are put into it.

    `reward_model(model="my-reward-model")(prompts=["2+2?"], completions=["4"])` gives `[3.1]`, the model's own number; with
    `each` it is asked at these places:

    >>> step_positions("One.\nTwo.\n\nThree.", "\n")
    [4, 9, 17]

    Source: Training Verifiers to Solve Math Word Problems (arXiv 2110.14168); with `each`, Let's Verify Step by Step
    (arXiv 2305.20050).
    """
    if not model:
        raise ValueError("it needs a model: give the folder or Hub id of a sequence-classification model, such as "
                         "reward_model(model='my-reward-model').")
    if not step_ends:
        raise ValueError(r"step_ends is empty: give the text that ends a step, such as '\n'.")

    def reward_model(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[Any]:
        if "gradio" in sys.modules and "torch" not in sys.modules:
            raise RuntimeError(PAGE)
        classifier = _loaded(model)
        column = classifier.column_of(label)
        texts = texts_of(completions)
        if not each:
            return classifier.scores(list(zip(prompts, texts, strict=True)), column, max_tokens)
        ends = [step_positions(text, step_ends) for text in texts]
        prefixes = [(prompt, text[:end]) for prompt, text, found in zip(prompts, texts, ends, strict=True) for end in found]
        scores = iter(classifier.scores(prefixes, column, max_tokens))
        return [[(end, next(scores)) for end in found] or None for found in ends]

    return reward_model


def step_positions(text: str, step_ends: str) -> list[int]:
    """Where each step of `text` ends, in characters: before each run of `step_ends`, and at the end. Empty steps do not count."""
    ends = [match.start() for match in re.finditer(f"(?:{re.escape(step_ends)})+", text)] + [len(text)]
    begins = [0, *ends]
    return [end for begin, end in zip(begins, ends, strict=False) if text[begin:end].strip()]


@dataclass
class Classifier:
    """A loaded model and its tokenizer."""

    model: Any
    tokenizer: Any

    def column_of(self, label: str | int | None) -> int | None:
        """The output that `label` names; None where there is only one. ValueError lists what there is."""
        names = self.model.config.id2label
        if self.model.config.num_labels == 1 and label is None:
            return None
        number = label if isinstance(label, int) else {name: number for number, name in names.items()}.get(label)
        if number not in names:
            raise ValueError(f"label is {label!r}, but the model's outputs are {', '.join(map(str, names.values()))}: name one of them.")
        return int(number)

    def scores(self, pairs: list[tuple[Any, str]], column: int | None, max_tokens: int) -> list[float]:
        """One score for each (prompt, text), computed together for texts of like length."""
        ids = [self._ids(prompt, text)[-self._longest(max_tokens):] for prompt, text in pairs]
        order = sorted(range(len(ids)), key=lambda row: (len(ids[row]), row))
        scores = [0.0] * len(ids)
        for start in range(0, len(order), TOGETHER):
            rows = order[start:start + TOGETHER]
            for row, score in zip(rows, self._forward([ids[row] for row in rows], column), strict=True):
                scores[row] = score
        return scores

    def _forward(self, ids: list[list[int]], column: int | None) -> list[float]:
        import torch

        width = max(map(len, ids))
        pad = self.model.config.pad_token_id
        tokens = torch.tensor([row + [pad] * (width - len(row)) for row in ids], device=self.model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, attention_mask=mask).logits.float()
        return (logits[:, 0] if column is None else logits.softmax(1)[:, column]).tolist()

    def _ids(self, prompt: Any, text: str) -> list[int]:
        if self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            rendered = self.tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], tokenize=False)
            return self.tokenizer(rendered, add_special_tokens=False).input_ids
        return self.tokenizer(f"{text_of(prompt)}\n{text}").input_ids

    def _longest(self, max_tokens: int) -> int:
        return min(max_tokens, getattr(self.model.config, "max_position_embeddings", None) or max_tokens)


@lru_cache(maxsize=2)
def _loaded(name: str) -> Classifier:
    """The model of this name. Raises ModelError."""
    from lab.models.registry import ModelError, fetch, resolve

    folder = fetch(resolve(name))
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        model, told = AutoModelForSequenceClassification.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, local_files_only=True, output_loading_info=True)
    except ValueError as error:
        raise ModelError(f"{name} cannot be used as a reward model: {error}") from error
    if told["missing_keys"]:
        raise ModelError(f"{name} has no trained classification head ({', '.join(sorted(told['missing_keys'])[:2])} missing): it is no "
                         f"sequence-classification model, and its scores would be random.")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
    return Classifier(model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)
