"""One frozen dataclass that says everything about a run.

The page's form, the command line and the README table are all made from `RunConfig`'s fields: the help text sits beside
the field and nowhere else. Names and meanings are TRL's wherever TRL has the setting; defaults are the DeepSeekMath
paper's (arXiv 2402.03300), and TRL 1.16's default is kept beside ours in `trl`. Contradictions are refused here, at
construction, with a sentence that says what to change. Standard library only: the page imports this without torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
SCALE_REWARDS = ("group", "batch", "none")
KL_ESTIMATORS = ("k1", "k2", "k3", "k3_corrected")
DTYPES = ("auto", "float32", "bfloat16")
SCHEDULES = ("constant", "linear", "cosine")


class ConfigError(ValueError):
    """A setting that cannot work: the message names the field, the value and what to change."""


def knob(default: Any, label: str, help: str, *, group: str, trl: Any = None, choices: tuple[str, ...] = (),
         low: float | None = None, high: float | None = None, simple: bool = False, live: bool = False) -> Any:
    """A config field with everything a form, a command line and a README table need to show it.

    `trl` is TRL 1.16's default (None where TRL has no such setting), `simple` puts the field among the simple settings
    of the page, `live` says that it may be changed while a run is going.
    """
    return field(default=default, metadata=dict(label=label, help=help, group=group, trl=trl, choices=choices,
                                                low=low, high=high, simple=simple, live=live))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run does. Two runs with equal configs on one machine's CPU are bit-equal."""

    # -- what is trained on what
    model: str = knob("tiny", "Model", "A name from `grpo-lab models`, a Hugging Face Hub id, or a folder of safetensors.",
                      group="model", simple=True)
    adapter: str | None = knob(None, "Start from adapter", "A folder with an existing LoRA adapter to go on training. "
                               "Its frozen start is then the reference.", group="model")
    task: Any = knob("add2", "Task", "Where prompts come from: a built-in task, a list of rows with a prompt column, "
                     "or a JSONL file.", group="task", simple=True)
    system_prompt: str | None = knob("", "System message", "Put before every prompt. Empty: the model's own default; "
                                     "none: no system message.", group="task", simple=True)
    rewards: Any = knob(("accuracy", "format"), "Rewards", "Reward functions by name; in Python also callables with TRL's "
                        "signature. Each completion's reward is their weighted sum.", group="rewards", simple=True)
    reward_weights: tuple[float, ...] | None = knob(None, "Reward weights", "One weight per reward function, in order. "
                                                    "None: all 1.", group="rewards", simple=True, live=True)

    # -- sampling
    num_generations: int = knob(8, "Group size G", "Completions sampled for each prompt. The advantage compares each with "
                                "the others of its group.", group="sampling", trl=8, low=2, high=64, simple=True)
    prompts_per_step: int = knob(8, "Prompts per step", "Fresh prompts in each step. Completions per step = prompts × G.",
                                 group="sampling", trl=1, low=1, high=512, simple=True)
    max_completion_length: int = knob(256, "Max tokens", "A completion that has not ended after this many tokens is cut off.",
                                      group="sampling", trl=512, low=1, high=32768, simple=True, live=True)
    temperature: float = knob(1.0, "Temperature", "Logits are divided by it, when sampling and in every log-probability.",
                              group="sampling", trl=1.0, low=0.05, high=5.0, simple=True, live=True)
    top_p: float = knob(1.0, "Top-p", "Sample only from the smallest set of tokens with this probability. Below 1 the ratio "
                        "to the full distribution is biased.", group="sampling", trl=1.0, low=0.01, high=1.0)
    top_k: int = knob(0, "Top-k", "Sample only from the k likeliest tokens; 0 is off. Biases the ratio like top-p.",
                      group="sampling", trl=0, low=0)
    min_p: float = knob(0.0, "Min-p", "Drop tokens below this share of the likeliest token's probability; 0 is off. "
                        "Biases the ratio like top-p.", group="sampling", low=0.0, high=1.0)
    seed: int = knob(42, "Seed", "Decides prompts, sampling and the adapter's start.", group="sampling", trl=42, low=0, simple=True)

    # -- the update
    max_steps: int = knob(100, "Steps", "Optimiser steps of the whole run.", group="update", low=1, simple=True)
    learning_rate: float = knob(2e-5, "Learning rate", "AdamW's step size. LoRA wants about ten times a full fine-tune's.",
                                group="update", trl=1e-6, low=0.0, simple=True, live=True)
    lr_scheduler_type: str = knob("constant", "Schedule", "How the learning rate moves after the warm-up.", group="update",
                                  trl="linear", choices=SCHEDULES)
    lr_end_ratio: float = knob(0.0, "Final share of the rate", "Share of the learning rate left at the last step of a "
                               "linear or cosine schedule.", group="update", low=0.0, high=1.0)
    warmup_steps: int = knob(0, "Warm-up steps", "Steps in which the learning rate rises from near zero.", group="update", trl=0, low=0)
    beta: float = knob(0.04, "KL weight β", "Weight of the KL term that keeps the policy near the reference. KL is computed "
                       "and drawn even at 0.", group="update", trl=0.0, low=0.0, simple=True, live=True)
    kl_estimator: str = knob("k3", "KL estimator", "k3 is the paper's; k3_corrected multiplies it by the ratio as TRL does, "
                             "which changes its gradient.", group="update", trl="k3_corrected", choices=KL_ESTIMATORS)
    epsilon: float = knob(0.2, "Clip ε", "The ratio of new to old probability counts only between 1 − ε and 1 + ε_high.",
                          group="update", trl=0.2, low=0.0, live=True)
    epsilon_high: float | None = knob(None, "Clip ε_high", "Upper clip; None: the same as ε. DAPO uses 0.28.", group="update", low=0.0, live=True)
    delta: float | None = knob(None, "Two-sided clip δ", "Also bounds the ratio of completions with negative advantage "
                               "(INTELLECT-2); None is off.", group="update", low=0.0)
    loss_type: str = knob("grpo", "Loss", "How token losses are averaged: grpo per completion (the paper), bnpo and dapo over "
                          "tokens, dr_grpo by a constant length.", group="update", trl="dapo", choices=LOSS_TYPES)
    scale_rewards: str = knob("group", "Advantage scale", "What the centred reward is divided by: the group's std (the paper), "
                              "the batch's, or nothing (Dr. GRPO).", group="update", trl="group", choices=SCALE_REWARDS)
    importance_sampling_level: str = knob("token", "Ratio level", "One ratio per token (GRPO) or one per completion (GSPO).",
                                          group="update", trl="token", choices=("token", "sequence"))
    num_iterations: int = knob(1, "Updates per rollout μ", "How often each sampled batch is used. Above 1 the clip can act.",
                               group="update", trl=1, low=1)
    mask_truncated_completions: bool = knob(False, "Mask cut-off completions", "Leave completions that were cut off out of the "
                                            "loss; their rewards still count in the group.", group="update", trl=False)
    weight_decay: float = knob(0.0, "Weight decay", "AdamW's weight decay on the adapter.", group="update", trl=0.0, low=0.0)
    adam_beta1: float = knob(0.9, "Adam β1", "Decay of AdamW's mean of gradients.", group="update", trl=0.9, low=0.0, high=1.0)
    adam_beta2: float = knob(0.99, "Adam β2", "Decay of AdamW's mean of squared gradients.", group="update", trl=0.999, low=0.0, high=1.0)
    max_grad_norm: float = knob(1.0, "Gradient clip", "The gradient is scaled down to this norm.", group="update", trl=1.0, low=0.0)

    # -- adapter and precision
    lora_r: int = knob(16, "LoRA rank", "Rank of the adapter on every linear layer.", group="adapter", low=1, high=512)
    lora_alpha: int = knob(32, "LoRA alpha", "The adapter's output is scaled by alpha / rank.", group="adapter", low=1)
    dtype: str = knob("auto", "Precision of the base", "auto takes float32 for small models on CPU and bfloat16 on CUDA. The "
                      "adapter is float32 always.", group="adapter", choices=DTYPES)
    load_in_4bit: bool | None = knob(None, "4-bit base", "NF4 with double quantisation. None: on for CUDA, off on CPU.",
                                     group="adapter")
    device: str = knob("auto", "Device", "auto takes CUDA if there is one, then MPS, else CPU.", group="adapter",
                       choices=("auto", "cpu", "cuda", "mps"))
    num_threads: int = knob(0, "CPU threads", "0: as many as the machine offers. Stored with the run: results on CPU depend on it.",
                            group="adapter", low=0)
    micro_batch_tokens: int = knob(16384, "Tokens per micro-batch", "Upper limit of tokens in one forward and backward. "
                                   "Changes memory, never the result.", group="adapter", low=64)

    # -- keeping
    save_steps: int = knob(10, "Checkpoint every", "Steps between checkpoints; resume goes on from the last one.", group="keeping",
                           trl=500, low=1)
    store_tokens: bool = knob(True, "Store token arrays", "Keep log-probabilities, entropy and KL of every token, so that each "
                              "number can be opened.", group="keeping")

    def __post_init__(self):
        object.__setattr__(self, "rewards", _as_tuple(self.rewards))
        if self.reward_weights is not None:
            object.__setattr__(self, "reward_weights", tuple(float(w) for w in _as_tuple(self.reward_weights)))
        for f in fields(self):
            _check_range(f, getattr(self, f.name))
        if not self.rewards:
            raise ConfigError("rewards is empty: name at least one reward function, for example accuracy.")
        if self.reward_weights is not None and len(self.reward_weights) != len(self.rewards):
            raise ConfigError(f"reward_weights has {len(self.reward_weights)} numbers for {len(self.rewards)} reward "
                              f"functions: give one weight per function, in the order of rewards.")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}: use 0 for off, or a positive number of tokens.")

    @property
    def completions_per_step(self) -> int:
        return self.num_generations * self.prompts_per_step

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight per reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. Reward callables become the name they are shown under (their code is not stored here)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["rewards"] = [reward if isinstance(reward, str) else reward_name(reward) for reward in self.rewards]
        values["task"] = str(self.task) if isinstance(self.task, Path) else self.task
        return json.loads(json.dumps(values))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"Unknown setting {', '.join(unknown)}. Known settings: {', '.join(sorted(known))}.")
        values = {k: tuple(v) if isinstance(v, list) and k in ("rewards", "reward_weights") else v for k, v in values.items()}
        return cls(**values)

    def replace(self, **changes: Any) -> "RunConfig":
        return dataclasses.replace(self, **changes)


def reward_name(reward: Callable | str) -> str:
    """The name a reward function is shown and stored under (TRL: the function's own name)."""
    return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _check_range(f: dataclasses.Field, value: Any) -> None:
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{f.name} is {value!r}: choose one of {', '.join(choices)}.")
    if value is None or (low is None and high is None):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"{f.name} is {value!r}: a number is needed.")
    if low is not None and value < low:
        raise ConfigError(f"{f.name} is {value}: the smallest value is {low}.")
    if high is not None and value > high:
        raise ConfigError(f"{f.name} is {value}: the largest value is {high}.")
