"""What a run will take, before it starts: memory part by part, seconds per step, and the micro-batch that fits.

Works from a model's config.json and the run's settings alone, without torch, so the page can show it while a person types.
After the first step `Plan.beside` puts the measured numbers next to the predicted ones, and the next plan is scaled by them.

    L layers · D hidden · F inner width · q, k widths of all query and all key heads · V vocabulary · r adapter rank
    P prompt tokens · G completions · C completion tokens · e bytes of one number of the base
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from lab.config import RunConfig

OWN_LAYERS = ("llama", "qwen2", "qwen3")  # families whose layers are written for training here (`merged.FAMILIES`)
PROGRAM = 0.55e9  # Python, torch, transformers and what their allocator keeps
CUDA_CONTEXT = 0.5e9  # on the card, beside everything counted
NF4 = 0.516  # bytes a weight: 4 bits and doubly quantised scales (QLoRA, arXiv 2305.14314 §3)
MODULES_OVERHEAD = 2.5  # bytes kept for each number of a layer's own modules with PEFT, measured
HEAD_CHUNK = 2**22 * 12  # logits alive at once, in the base's format, as float32, as probabilities and again rounded
MARGIN = 0.92  # of the memory there is, to be on the safe side of the estimate
SMALLEST_BATCH = 64


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide memory and time."""

    family: str
    layers: int
    hidden: int
    inner: int
    query_width: int
    key_width: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: dict[str, Any]) -> ModelShape:
        """From config.json. Raises KeyError with the missing name for a config of an unknown layout."""
        config = config.get("text_config", config)
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return cls(
            family=config.get("model_type", ""), layers=config["num_hidden_layers"], hidden=config["hidden_size"],
            inner=config["intermediate_size"], query_width=size * config["num_attention_heads"],
            key_width=size * (config.get("num_key_value_heads") or config["num_attention_heads"]),
            vocabulary=config["vocab_size"], tied=config.get("tie_word_embeddings", True),
        )

    @property
    def linear(self) -> int:
        """Weights of the layers, which LoRA sits on and 4 bits apply to."""
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def embeddings(self) -> int:
        """Weights of embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def lora(self, r: int) -> int:
        """Weights of an adapter of rank r on every linear layer."""
        d, f, q, k = self.hidden, self.inner, self.query_width, self.key_width
        return self.layers * r * ((d + q) + 2 * (d + k) + (q + d) + 2 * (d + f) + (f + d))


@dataclass(frozen=True)
class Speed:
    """What the machine does: operations a second in matrix products, bytes a second when reading weights."""

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Plan:
    """Bytes by part, the peak they make, and what to set."""

    parts: dict[str, float]  # weights, adapter, program, then by phase: copy, cache | activations, workspace, head
    sampling: float
    training: float
    micro_batch_tokens: int
    checkpointing: bool
    fits: bool | None  # None: the memory is not known
    seconds: float | None

    @property
    def peak(self) -> float:
        return max(self.sampling, self.training)

    def beside(self, peak: float, seconds: float) -> str:
        """Predicted and measured in one sentence, for after the first step."""
        predicted = f"{self.peak / 1e9:.1f} GB" + (f" and {self.seconds:.1f} s a step" if self.seconds else "")
        return f"Planned {predicted}; measured {peak / 1e9:.1f} GB and {seconds:.1f} s."

    @property
    def sentence(self) -> str:
        """What the plan says about fitting, for a person."""
        need = f"About {self.peak / 1e9:.1f} GB at the peak, while {'sampling' if self.sampling > self.training else 'learning'}"
        batch = f"{self.micro_batch_tokens} tokens at a time"
        how = f", {batch}" + (" and layers computed twice to save memory" if self.checkpointing else "")
        too_much = ": more than there is. Take fewer or shorter completions, or a smaller model."
        return need + how + (too_much if self.fits is False else ".")


def plan(config: RunConfig, shape: ModelShape, *, prompt_tokens: int, device: str, dtype: str, load_in_4bit: bool,
         memory: float | None = None, speed: Speed | None = None, correction: float = 1.0) -> Plan:
    """The plan with the largest micro-batch that fits into `memory` bytes.

    `prompt_tokens` is a prompt's usual length, `correction` what measured memory was in relation to an earlier plan's.
    Layers are computed twice (checkpointing) only if nothing else fits.
    """
    everything = config.prompts_per_step * (prompt_tokens + config.num_generations * config.max_completion_length)
    one_row = prompt_tokens + config.max_completion_length
    largest = min(config.micro_batch_tokens, everything)
    budgets = [largest]
    while budgets[-1] // 2 >= max(SMALLEST_BATCH, one_row):
        budgets.append(budgets[-1] // 2)
    for checkpointing in (False, True):
        for budget in budgets:
            made = _estimate(config, shape, prompt_tokens, device, dtype, load_in_4bit, budget, checkpointing, correction)
            if memory is None or made.peak <= MARGIN * memory:
                return replace(made, fits=None if memory is None else True, seconds=_seconds(config, shape, prompt_tokens, dtype, speed))
    return replace(made, fits=False)


def _estimate(config: RunConfig, shape: ModelShape, prompt_tokens: int, device: str, dtype: str, load_in_4bit: bool,
              budget: int, checkpointing: bool, correction: float) -> Plan:
    e = 4 if dtype == "float32" else 2
    own = shape.family in OWN_LAYERS and not load_in_4bit
    lora = shape.lora(config.lora_r)
    base = (NF4 * shape.linear if load_in_4bit else e * shape.linear) + e * shape.embeddings
    # Beside the base: adapter, its gradient and Adam's two moments, all float32.
    parts = dict(weights=base, adapter=16.0 * lora, program=CUDA_CONTEXT if device == "cuda" else PROGRAM)
    rows = config.prompts_per_step * config.num_generations
    tokens = config.prompts_per_step * prompt_tokens + rows * config.max_completion_length
    parts["copy"] = e * (shape.linear + shape.vocabulary * shape.hidden) if own else 0.0
    parts["cache"] = 2.0 * shape.layers * shape.key_width * tokens * (2 if device == "cuda" else 4)
    parts["activations"] = budget * _kept(shape, config.lora_r, e, own, checkpointing)
    parts["workspace"] = _workspace(shape, config, prompt_tokens, budget, e)
    parts["head"] = HEAD_CHUNK + e * budget * shape.hidden
    parts = {name: size * correction for name, size in parts.items()}
    always = parts["weights"] + parts["adapter"] + parts["program"]
    return Plan(
        parts=parts, sampling=always + parts["copy"] + parts["cache"],
        training=always + parts["activations"] + max(parts["workspace"], parts["head"]),
        micro_batch_tokens=budget, checkpointing=checkpointing, fits=None, seconds=None,
    )


def _kept(shape: ModelShape, r: int, e: int, own: bool, checkpointing: bool) -> float:
    """Bytes kept for the backward pass for each token, over all layers."""
    d, f, q, k = shape.hidden, shape.inner, shape.query_width, shape.key_width
    if own:  # both residuals, q, k, v, what attention gave, gate and up, the adapters' inner values, two norms
        layer = e * (2 * d + 2 * q + 2 * k + 2 * f + 7 * r) + 8
    else:
        layer = MODULES_OVERHEAD * (8 * d + 2 * q + 2 * (q + 2 * k) + 5 * f)
    return shape.layers * e * d + layer if checkpointing else shape.layers * layer


def _workspace(shape: ModelShape, config: RunConfig, prompt_tokens: int, budget: int, e: int) -> float:
    """Bytes alive for a moment while one layer is computed backwards: attention scores, and the inner width."""
    heads_per_width = max(1, shape.query_width // 64)
    answers = min(budget, config.num_generations * config.max_completion_length)
    scores = heads_per_width * answers * (prompt_tokens + config.max_completion_length)
    return e * 5 * scores + e * 5 * budget * shape.inner


def _seconds(config: RunConfig, shape: ModelShape, prompt_tokens: int, dtype: str, speed: Speed | None) -> float | None:
    """Seconds of a step from the machine's speed: two forwards and a backward, and weights read once for each new token."""
    if speed is None:
        return None
    rows = config.prompts_per_step * config.num_generations
    answers = rows * config.max_completion_length
    tokens = config.prompts_per_step * prompt_tokens + answers
    head = shape.vocabulary * shape.hidden
    learning = (6 * shape.linear * tokens + 6 * head * answers) / speed.flops
    read = (4 if dtype == "float32" else 2) * (shape.linear + head)
    batches = math.ceil(rows / 64)  # `decode.MAX_ROWS` rows at a time
    sampling = batches * config.max_completion_length * max(read / speed.bandwidth, 2 * (shape.linear + head) * min(rows, 64) / speed.flops)
    return learning + sampling
