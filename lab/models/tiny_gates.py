"""Measures the tiny model on held-out problems and says whether it is fit to ship.

Three questions per task: can it do the sum when made to think (skill), how often is it right and well formed
when sampled at temperature 1, how often when decoded greedily. RL needs the first high and the others low. Right
and well formed are what the lab's own rewards say. Leaves out training and writing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab.models.tiny_corpus import FILLER, OTHER_FILLERS, SYSTEM_MESSAGE
from lab.rewards import builtin
from lab.tasks.arithmetic import rows

MEASURED_TASKS = ("add2", "sub2", "add3", "chain", "parity", "cmp")
MAX_NEW_TOKENS = 56

# The gates: (lowest, highest) allowed. Two-answer tasks are half right by chance, so only their skill is gated.
SKILL = {
    "add2": (0.95, 1), "sub2": (0.95, 1), "add3": (0.95, 1), "chain": (0.85, 1), "parity": (0.9, 1), "cmp": (0.9, 1),
}  # fmt: skip
SAMPLED_ACCURACY = {"add2": (0.08, 0.30), "sub2": (0.08, 0.30), "add3": (0.08, 0.30), "chain": (0.02, 0.30)}
SAMPLED_FORMAT = {"add2": (0.40, 0.65), "sub2": (0.40, 0.65), "add3": (0.40, 0.65), "chain": (0.35, 0.65)}
GREEDY_ACCURACY = dict.fromkeys(("add2", "sub2", "add3", "chain"), (0, 0.25))


@dataclass(frozen=True)
class TaskScores:
    """Shares between 0 and 1, each over the same held-out problems of one task."""

    skill: float
    sampled_accuracy: float
    sampled_format: float
    greedy_accuracy: float
    greedy_format: float


@dataclass(frozen=True)
class Report:
    """Everything measured on one set of weights; `count` problems per task."""

    scores: dict[str, TaskScores]
    count: int
    parameters: int

    def lines(self) -> list[str]:
        return [
            f"{task:7s} skill {s.skill:.3f} | T=1 accuracy {s.sampled_accuracy:.3f} format {s.sampled_format:.3f}"
            f" | greedy accuracy {s.greedy_accuracy:.3f} format {s.greedy_format:.3f}"
            for task, s in self.scores.items()
        ]


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, seed: int, count: int = 256) -> Report:
    """Score `model` (fp32 weights) on `count` held-out problems of every task; reseeds torch's generator."""
    torch.manual_seed(seed)
    model.eval()
    scores = {task: _score_task(model, tokenizer, task, seed, count) for task in MEASURED_TASKS}
    return Report(scores, count, sum(p.numel() for p in model.parameters()))


def measure_skill(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, count: int) -> dict[str, float]:
    """Share of right answers per task when the model is made to think and decoded greedily."""
    model.eval()
    return {task: _skill(model, tokenizer, rows(task, count, seed=1, held_out=True)) for task in MEASURED_TASKS}


def failed_gates(report: Report) -> list[str]:
    """One sentence per missed gate; empty means fit to ship."""
    measured = (
        ("skill", SKILL),
        ("sampled_accuracy", SAMPLED_ACCURACY),
        ("sampled_format", SAMPLED_FORMAT),
        ("greedy_accuracy", GREEDY_ACCURACY),
    )
    return [
        f"{task}: {name} is {getattr(scores, name):.3f}, outside {gate[task][0]:g} to {gate[task][1]:g}"
        for task, scores in report.scores.items()
        for name, gate in measured
        if task in gate and not gate[task][0] <= getattr(scores, name) <= gate[task][1]
    ]


def _score_task(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, seed: int, count: int) -> TaskScores:
    problems = rows(task, count, seed=seed + 1, held_out=True)
    sampled = _complete(model, tokenizer, problems, do_sample=True)
    greedy = _complete(model, tokenizer, problems, do_sample=False)
    return TaskScores(
        skill=_skill(model, tokenizer, problems),
        sampled_accuracy=_accuracy(sampled, problems),
        sampled_format=_format(sampled),
        greedy_accuracy=_accuracy(greedy, problems),
        greedy_format=_format(greedy),
    )


def _skill(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[dict[str, str]]) -> float:
    """The forced beginning is `<think>`, and what follows may not be the first letter of a filler."""
    filler_starts = sorted({tokenizer(filler[0])["input_ids"][0] for filler in (FILLER, *OTHER_FILLERS)})
    completions = _complete(model, tokenizer, problems, beginning="<think>", do_sample=False, begin_suppress_tokens=filler_starts)
    return _accuracy(completions, problems)


@torch.no_grad()
def _complete(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[dict[str, str]],
    *,
    beginning: str = "",
    **decoding: object,
) -> list[str]:
    texts = [_render(tokenizer, problem["prompt"]) + beginning for problem in problems]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    if not decoding["do_sample"]:  # the sampling settings of the folder mean nothing to greedy decoding
        decoding |= {"temperature": None, "top_k": None, "top_p": None}
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **decoding)
    completions = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [beginning + text for text in completions]


def _render(tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    messages = [{"role": "system", "content": SYSTEM_MESSAGE}, {"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _accuracy(completions: Sequence[str], problems: Sequence[dict[str, str]]) -> float:
    return fmean(builtin.accuracy()(completions=completions, answer=[row["answer"] for row in problems]))


def _format(completions: Sequence[str]) -> float:
    return fmean(builtin.format()(completions=completions))
